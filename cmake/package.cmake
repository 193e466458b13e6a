# SPDX-License-Identifier: Apache-2.0
# The installed package: find_package(deepspeed-mpi) gives deepspeed::ROOM targets.
include(CMakePackageConfigHelpers)

get_property(targets GLOBAL PROPERTY DS_ROOM_TARGETS)
set(externals ds_mpi ds_hdf5)
if(TARGET ds_torch)
  list(APPEND externals ds_torch)
endif()
install(TARGETS ${targets} ${externals} EXPORT deepspeed-mpi LIBRARY DESTINATION lib)
install(EXPORT deepspeed-mpi NAMESPACE deepspeed:: DESTINATION lib/cmake/deepspeed-mpi FILE deepspeed-mpi-targets.cmake)
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/deepspeed-mpi-config.cmake.in"
  "${CMAKE_BINARY_DIR}/deepspeed-mpi-config.cmake" INSTALL_DESTINATION lib/cmake/deepspeed-mpi)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/deepspeed-mpi-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/deepspeed-mpi-config.cmake" "${CMAKE_BINARY_DIR}/deepspeed-mpi-config-version.cmake"
  DESTINATION lib/cmake/deepspeed-mpi)
