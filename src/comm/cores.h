// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deepspeed::comm {

/// Cores as this process sees them. Cores, not hardware threads.
struct Cores {
  int allowed = 1;  ///< that the job may use on this host
  int bound = 1;    ///< that this process is bound to
};

Cores find_cores();

/// Threads for host arithmetic in each of `local_size` ranks of a host: OMP_NUM_THREADS if it is set, else an equal
/// share of the cores, no more than this rank is bound to, at least 1.
int threads_for(const Cores& cores, int local_size);

/// What to say when this rank is bound to fewer cores than its share; empty if it isn't.
std::string binding_advice(const Cores& cores, int local_size);

}  // namespace deepspeed::comm
