// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deepspeed::base {

/// "0.1.0"
std::string version();
/// The short git hash of the sources, or "unknown".
std::string git_hash();
/// What was built in: "MPI 3.1, HDF5 1.10.8 (parallel), Kokkos 3.4.01 (OPENMP;SERIAL), ...".
std::string back_ends();

}  // namespace deepspeed::base
