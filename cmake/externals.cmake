# SPDX-License-Identifier: Apache-2.0
# The outside libraries that show in the rooms' interfaces, as imported targets of one short name. Read by the build,
# and by the installed package, which gives them to its user the same way: nothing of the build tree is written down.
# Before: macro ds_find(package...), DS_TORCH_ROOMS and, with it, DS_TORCH_PREFIX.

ds_find(Threads)
ds_find(fmt)
ds_find(nlohmann_json)

# MPI's C interface only: the C++ one left the standard.
ds_find(MPI COMPONENTS C)
if(NOT TARGET ds_mpi)
  add_library(ds_mpi INTERFACE IMPORTED GLOBAL)
  target_link_libraries(ds_mpi INTERFACE MPI::MPI_C)
  target_compile_definitions(ds_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()

# libtorch without its own CMake package: two include folders and two libraries. The include folders come last, since
# they carry copies of fmt and others that would hide the ones found above.
if(DS_TORCH_ROOMS AND NOT TARGET ds_torch)
  add_library(ds_torch INTERFACE IMPORTED GLOBAL)
  target_compile_options(ds_torch INTERFACE
    "SHELL:-idirafter ${DS_TORCH_PREFIX}/include" "SHELL:-idirafter ${DS_TORCH_PREFIX}/include/torch/csrc/api/include")
  target_link_libraries(ds_torch INTERFACE "${DS_TORCH_PREFIX}/lib/libtorch_cpu.so" "${DS_TORCH_PREFIX}/lib/libc10.so")
  # What libtorch_cpu itself needs is found by its own run path; the linker needn't look for it.
  target_link_options(ds_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs)
endif()
