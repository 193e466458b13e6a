// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/communication_thread.h"
#include "comm/group.h"

namespace deepspeed::comm {

/// The communication thread, and the communicators of all groups that were made: they are freed together when the
/// process ends, since MPI_Comm_free is itself collective and groups may die at any time and in any order.
class MpiSession {
 public:
  /// `nodes`: for each rank of the world a number that ranks of one host share.
  MpiSession(std::chrono::nanoseconds timeout, bool check, std::string host, std::vector<int> nodes);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  CommunicationThread& thread() { return *thread_; }
  const std::string& host() const { return host_; }
  /// Takes over a communicator. Only before the thread has work, or on it.
  const Communicator& adopt(MPI_Comm handle, const std::string& name);
  /// Ends the thread, then frees the communicators. False if calls were given up and MPI can't be finalised.
  bool close();

 private:
  std::string host_;
  std::vector<int> nodes_;
  std::mutex mutex_;
  std::deque<Communicator> communicators_;  // addresses stay
  std::unique_ptr<CommunicationThread> thread_;
};

/// A group over this communicator (of more than one rank).
std::shared_ptr<Group> make_mpi_group(std::shared_ptr<MpiSession> session, const Communicator& communicator);

}  // namespace deepspeed::comm
