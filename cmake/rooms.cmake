# SPDX-License-Identifier: Apache-2.0

# The include root under which the current folder is seen as "NAME/".
function(ds_include_root name result)
  set(root "${CMAKE_BINARY_DIR}/rooms/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${root}/${name}" SYMBOLIC)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

# ds_room(NAME SOURCES file... [USES room...] [LINK public target...] [PRIVATE private target...] [INTERNAL header...])
#
# One shared library for the room, whose headers are seen as "NAME/header.h" by those who use it and by no one else:
# each room has an include root of its own that holds just a link to it, and -z defs refuses a symbol from a room that
# isn't named.
function(ds_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;USES;LINK;PRIVATE;INTERNAL" ${ARGN})
  set(target deepspeed_${name})
  add_library(${target} SHARED ${ROOM_SOURCES})
  add_library(deepspeed::${name} ALIAS ${target})
  ds_include_root(${name} root)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}> $<INSTALL_INTERFACE:include/deepspeed>)
  foreach(used IN LISTS ROOM_USES)
    target_link_libraries(${target} PUBLIC deepspeed_${used})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ROOM_LINK} PRIVATE ${ROOM_PRIVATE} $<BUILD_INTERFACE:ds_options>)
  if(NOT DS_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
                                             SOVERSION ${PROJECT_VERSION_MAJOR})
  set_property(GLOBAL APPEND PROPERTY DS_ROOM_TARGETS ${target})
  # INTERNAL headers need what the room links privately, and aren't installed.
  set(internal)
  foreach(header IN LISTS ROOM_INTERNAL)
    list(APPEND internal PATTERN "${header}" EXCLUDE)
  endforeach()
  install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/" DESTINATION include/deepspeed/${name}
          FILES_MATCHING PATTERN "*.h" PATTERN "cuda" EXCLUDE ${internal})
endfunction()

# ds_program(NAME SOURCES file... [USES room...] [LINK target...]): a program in bin/.
function(ds_program name)
  cmake_parse_arguments(PROGRAM "" "" "SOURCES;USES;LINK" ${ARGN})
  add_executable(${name} ${PROGRAM_SOURCES})
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  ds_include_root(${folder} root)
  target_include_directories(${name} PRIVATE "${root}")
  foreach(used IN LISTS PROGRAM_USES)
    target_link_libraries(${name} PRIVATE deepspeed_${used})
  endforeach()
  target_link_libraries(${name} PRIVATE ${PROGRAM_LINK} ds_options)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# Only Open MPI counts cores and refuses more ranks than those; -q keeps its own paragraph on a failed rank away.
set(DS_MPIRUN ${MPIEXEC_EXECUTABLE})
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE mpi_version ERROR_QUIET)
if(mpi_version MATCHES "[Oo]pen ?(MPI|RTE|mpi|rte)")
  list(APPEND DS_MPIRUN --oversubscribe -q)
endif()

# ds_ranks_test(NAME RANKS n... COMMAND program [argument...] [TIMEOUT seconds] [LABELS label...])
#
# Registers NAME.ranksN for each N: the command under mpirun with N ranks, one thread each.
function(ds_ranks_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "RANKS;COMMAND;LABELS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  foreach(ranks IN LISTS TEST_RANKS)
    add_test(NAME ${name}.ranks${ranks} COMMAND ${DS_MPIRUN} -n ${ranks} ${TEST_COMMAND}
             WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(${name}.ranks${ranks} PROPERTIES
      TIMEOUT ${TEST_TIMEOUT} LABELS "ranks;${TEST_LABELS}" PROCESSORS 2
      ENVIRONMENT "OMP_NUM_THREADS=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;KOKKOS_DISABLE_WARNINGS=1")
  endforeach()
endfunction()

# ds_test(ROOM SOURCES file... [USES room...] [LINK target...] [RANKS n...] [CAMPAIGN] [TIMEOUT seconds])
#
# The room's one test program. Test suites whose name ends in "Ranks" run under mpirun at each of RANKS, the others
# alone as ROOM.unit. With CAMPAIGN there are suites whose name ends so: too large for each run, they are ROOM.campaign,
# which takes `ctest -C campaign`. Data lies in tests/data (macro DS_TEST_DATA).
function(ds_test room)
  cmake_parse_arguments(TEST "CAMPAIGN" "TIMEOUT" "SOURCES;USES;LINK;RANKS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  set(target ${room}_test)
  if(TEST_RANKS)
    list(APPEND TEST_SOURCES "${CMAKE_SOURCE_DIR}/tests/support/ranks_main.cpp")
    list(APPEND TEST_LINK ds_mpi)
  else()
    list(APPEND TEST_LINK GTest::gtest_main)
  endif()
  if(DS_SANITIZE)
    list(APPEND TEST_SOURCES "${CMAKE_SOURCE_DIR}/tests/support/sanitizers.cpp")
  endif()
  add_executable(${target} ${TEST_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
  target_compile_definitions(${target} PRIVATE DS_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
                                               DS_SOURCE_DIR="${CMAKE_SOURCE_DIR}" DS_BINARY_DIR="${CMAKE_BINARY_DIR}")
  foreach(used ${room} ${TEST_USES})
    if(TARGET deepspeed_${used})
      target_link_libraries(${target} PRIVATE deepspeed_${used})
    endif()
  endforeach()
  target_link_libraries(${target} PRIVATE ${TEST_LINK} GTest::gtest GTest::gmock ds_options)
  set(environment "OMP_NUM_THREADS=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;KOKKOS_DISABLE_WARNINGS=1")
  add_test(NAME ${room}.unit COMMAND ${target} --gtest_filter=-*Ranks.*:*Campaign.* WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${room}.unit PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS unit ENVIRONMENT "${environment}")
  if(TEST_CAMPAIGN)
    add_test(NAME ${room}.campaign COMMAND ${target} --gtest_filter=*Campaign.* CONFIGURATIONS campaign
             WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(${room}.campaign PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS campaign PROCESSORS 2
      ENVIRONMENT "${environment}")
  endif()
  if(TEST_RANKS)
    ds_ranks_test(${room} RANKS ${TEST_RANKS} TIMEOUT ${TEST_TIMEOUT}
                  COMMAND $<TARGET_FILE:${target}> --gtest_filter=*Ranks.*)
  endif()
endfunction()

# ds_fuzzer(NAME SOURCES file... [USES room...] [CORPUS folder])
#
# With DS_FUZZERS: a libFuzzer program fuzz/NAME over the rooms in USES, and a test NAME.fuzz that runs it for a few seconds from CORPUS.
function(ds_fuzzer name)
  if(NOT DS_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(FUZZ "" "CORPUS" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${FUZZ_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
  foreach(used IN LISTS FUZZ_USES)
    target_link_libraries(${name} PRIVATE deepspeed_${used})
    # The room tells the fuzzer which of its branches an input reached.
    target_compile_options(deepspeed_${used} PRIVATE -fsanitize=fuzzer-no-link)
  endforeach()
  target_link_libraries(${name} PRIVATE ds_options)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz/${name}.corpus")
  add_test(NAME ${name}.fuzz COMMAND ${name} -max_total_time=5 -rss_limit_mb=2048 "${CMAKE_BINARY_DIR}/fuzz/${name}.corpus"
           ${FUZZ_CORPUS} WORKING_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
  set_tests_properties(${name}.fuzz PROPERTIES TIMEOUT 60 LABELS fuzz)
endfunction()
