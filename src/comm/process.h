// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/group.h"

namespace deepspeed::comm {

/// This rank: the MPI session (RAII), its place on the node, its communication thread. One a process. Works under
/// mpirun, under srun, and without a launcher as a single rank. MPI is started with MPI_THREAD_SERIALIZED and, if
/// somebody else started it, is left running at the end.
class Process {
 public:
  Process(int* argc, char*** argv);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  ///< place among the ranks of this host
  int local_size() const;
  const std::string& host() const;
  /// Threads for host arithmetic that don't get in the way of the other ranks of the host: OMP_NUM_THREADS, or the
  /// share of the cores.
  int threads_per_rank() const;
  /// All ranks.
  std::shared_ptr<Group> world() const;
  /// Runs `job` on the communication thread, the only place for MPI calls of others (parallel HDF5): between steps of
  /// the groups' calls, which stand still meanwhile. With one rank it runs here and now.
  Work run(std::function<void()> job);
  /// For a body that owns memory which collectives may still write to: call it in a catch block, where that memory
  /// still stands, then rethrow. The other ranks are told of the exception, and if they can't end by themselves the job
  /// ends here; when it returns nothing is under way any more. Without run_program it does nothing.
  void report_failure() noexcept;
  /// Ends every rank of the job at once with this exit code. Never returns.
  [[noreturn]] void abort(int exit_code);

 private:
  friend int run_program(const std::string& program, int argc, char** argv,
                         const std::function<int(Process&, int argc, char** argv)>& body);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The whole life of an MPI program: runs `body`, turns what it throws into ONE message for the job (equal messages of
/// many ranks become one line with the rank list) and a documented exit code (base::ExitCode), and ends every rank.
/// `program` prefixes the message. Returns the exit code for `main`.
int run_program(const std::string& program, int argc, char** argv,
                const std::function<int(Process&, int argc, char** argv)>& body);

}  // namespace deepspeed::comm
