# SPDX-License-Identifier: Apache-2.0
set(prefix "${BUILD}/package-test/prefix")
set(consumer "${BUILD}/package-test/build")
file(REMOVE_RECURSE "${BUILD}/package-test")

# run(NAME COMMAND...): the command must succeed; its output is left in `output`.
function(run name)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${name} failed (${status}):\n${output}")
  endif()
  message(STATUS "${name}: good")
  set(output "${output}" PARENT_SCOPE)
endfunction()

run("install" ${CMAKE_COMMAND} --install "${BUILD}" --prefix "${prefix}")

# What is installed says nothing about the tree that it was built in.
file(GLOB_RECURSE described "${prefix}/lib/cmake/*")
foreach(file IN LISTS described)
  file(READ "${file}" text)
  string(FIND "${text}" "${BUILD}" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} names the build tree ${BUILD}")
  endif()
endforeach()

run("configure the examples" ${CMAKE_COMMAND} -S "${SOURCE}/tests/package/consumer" -B "${consumer}" -G "${GENERATOR}"
  -DCMAKE_PREFIX_PATH=${prefix} -DEXAMPLES=${SOURCE}/examples -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_COMPILER=${CC}
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run("build the examples" ${CMAKE_COMMAND} --build "${consumer}")

run("mesh" "${consumer}/bin/mesh" 8 2 2)
if(NOT output STREQUAL "pipe 2 x data 2 x tensor 2
pipe     [0 4] [1 5] [2 6] [3 7]
data     [0 2] [1 3] [4 6] [5 7]
tensor   [0 1] [2 3] [4 5] [6 7]")
  message(FATAL_ERROR "mesh says:\n${output}")
endif()
if(EXISTS "${consumer}/bin/own_module")
  run("own_module" ${MPIRUN} -n 2 "${consumer}/bin/own_module")
endif()

# Installed programs and libraries find each other in the prefix, and everything else too.
file(GLOB programs "${prefix}/bin/*" "${prefix}/lib/*.so")
foreach(program IN LISTS programs)
  execute_process(COMMAND ldd "${program}" OUTPUT_VARIABLE needed ERROR_QUIET)
  string(REGEX MATCHALL "[^\n]*not found[^\n]*" missing "${needed}")
  # A machine may have the plug-in but no NCCL or CUDA in its search path: the loader brings them in through libtorch.
  if(missing AND NOT program MATCHES "libdeepspeed_cuda")
    message(FATAL_ERROR "${program}: ${missing}")
  endif()
  string(FIND "${needed}" "${BUILD}/lib/" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${program} uses the build tree:\n${needed}")
  endif()
endforeach()
file(GLOB programs "${prefix}/bin/ds_*")
foreach(program IN LISTS programs)
  run("${program} --version" "${program}" --version)
endforeach()
