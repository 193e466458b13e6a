// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/cores.h"
#include "comm/mpi_group.h"
#include "comm/process.h"

namespace deepspeed::comm {

struct Process::Impl {
  bool started_mpi = false;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string host;
  Cores cores;
  int threads = 1;
  std::shared_ptr<MpiSession> session;
  std::shared_ptr<Group> world;
  /// For run_program's talk between the ranks, apart from all groups.
  const Communicator* control = nullptr;
  /// Set by run_program: tells the job that the exception being handled ends this rank.
  std::function<void()> report_failure;
};

}  // namespace deepspeed::comm
