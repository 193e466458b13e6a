# SPDX-License-Identifier: Apache-2.0
# The installed package: find_package(deepspeed-mpi) gives deepspeed::ROOM targets.
include(CMakePackageConfigHelpers)

set(package_dir lib/cmake/deepspeed-mpi)
get_property(targets GLOBAL PROPERTY DS_ROOM_TARGETS)
install(TARGETS ${targets} EXPORT deepspeed-mpi LIBRARY DESTINATION lib)
install(EXPORT deepspeed-mpi NAMESPACE deepspeed:: DESTINATION ${package_dir} FILE deepspeed-mpi-targets.cmake)
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/deepspeed-mpi-config.cmake.in"
  "${CMAKE_BINARY_DIR}/deepspeed-mpi-config.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${CMAKE_BINARY_DIR}/deepspeed-mpi-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/deepspeed-mpi-config.cmake" "${CMAKE_BINARY_DIR}/deepspeed-mpi-config-version.cmake"
              "${CMAKE_SOURCE_DIR}/cmake/externals.cmake"
  DESTINATION ${package_dir})
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" DESTINATION share/doc/deepspeed-mpi)
