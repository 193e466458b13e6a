// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/call.h"
#include "comm/group.h"

namespace deepspeed::comm {

/// The queue of one group. Collectives run one after the other; sends and receives start at once, in the order of the
/// calls, and pass by waiting collectives.
class Channel;

/// The one thread of the process that calls MPI after start-up, since few MPI libraries move data while nobody calls
/// them. It starts what is handed over, drives everything under way on all groups at once, and sleeps when nothing
/// moves: a spinning thread would take a core from the arithmetic it overlaps with.
class CommunicationThread {
 public:
  using Clock = std::chrono::steady_clock;

  /// `timeout`: how long a call may take before it fails; zero means for ever. `check`: whether to compare the
  /// signatures of each collective between the ranks first.
  CommunicationThread(std::chrono::nanoseconds timeout, bool check);
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  std::shared_ptr<Channel> make_channel() const;
  /// Hands over a call. `make` builds its coroutine on the communication thread. `ordered`: it waits for those handed
  /// over before on this channel.
  Work submit(const std::shared_ptr<Channel>& channel, std::unique_ptr<Call> call,
              std::function<Task(const Call&)> make, bool ordered = true);
  /// A job of its own between steps of the others: `job` may make any MPI call, blocking ones if no other group's
  /// progress is needed for them.
  Work run(std::function<void()> job);

  /// Ends the thread once all that was handed over is done, but doesn't wait long for what no longer moves. False if a
  /// call was given up, then or before: MPI can't be finalised any more.
  bool end();

  /// Waits until nothing is under way, but no longer than this.
  void settle(std::chrono::nanoseconds limit) const;

  /// Called on the thread whenever nothing moves. Returns the longest time until it wants to be called again.
  void set_service(std::function<std::chrono::nanoseconds()> service);
  /// These ranks of the world have left: what is under way with them fails after a grace.
  void note_departed(const std::vector<int>& world_ranks, const std::string& description);

  bool check() const { return check_; }

  /// Whether no call was given up. On the thread only.
  bool sound() const { return sound_; }

 private:
  friend class Channel;
  struct Operation;
  void loop();
  void accept(std::unique_ptr<Operation> operation);
  void start(std::unique_ptr<Operation> operation);
  bool advance(Operation& operation);
  void complete(Operation& operation, std::exception_ptr error);
  void look_for_lost_calls();
  void wait_for_work(std::chrono::nanoseconds pause);

  const std::chrono::nanoseconds timeout_;
  const bool check_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Operation>> incoming_;  // under mutex_
  bool stop_ = false;                                // under mutex_
  std::atomic<bool> has_incoming_{false};
  std::atomic<int> under_way_{0};

  // On the thread only (sound_: and after its end).
  std::vector<std::unique_ptr<Operation>> running_;
  std::deque<std::unique_ptr<Operation>> ready_;  // next of their channels
  bool sound_ = true;
  std::function<std::chrono::nanoseconds()> service_;
  std::vector<int> departed_;
  std::string departed_text_;
  Clock::time_point departed_since_;

  std::thread thread_;  // last: it starts when all else stands
};

}  // namespace deepspeed::comm
