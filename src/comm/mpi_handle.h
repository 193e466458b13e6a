// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "comm/group.h"

namespace deepspeed::comm {

/// The communicator under a group, for libraries that take one (parallel HDF5); MPI_COMM_SELF for a group of one rank.
/// Only for calls inside Process::run, and not beside a collective of the same group. CommError if the group isn't
/// MPI's.
MPI_Comm mpi_handle(const Group& group);

}  // namespace deepspeed::comm
