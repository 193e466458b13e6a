// SPDX-License-Identifier: Apache-2.0
#include "comm/communication_thread.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/trace.h"
#include "comm/group_error.h"
#include "comm/work_state.h"

namespace deepspeed::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int yields = 200;
constexpr microseconds longest_yield{50};
constexpr microseconds shortest_sleep{20};
constexpr milliseconds longest_sleep{1};
/// A peer may leave right after its last part of a collective that others are still in.
constexpr std::chrono::seconds departure_grace{5};
constexpr std::chrono::seconds stop_grace{2};

}  // namespace

struct CommunicationThread::Operation {
  std::shared_ptr<Channel> channel;  // none: a job
  std::unique_ptr<Call> call;
  std::function<Task(const Call&)> make;
  std::function<void()> job;
  bool ordered = true;
  Task task;
  Halt halt;
  Clock::time_point queued;
  Clock::time_point started;
  base::trace::AsyncRange range;  ///< from the call to its end
  std::shared_ptr<Future> future = std::make_shared<Future>();
};

class Channel {
 public:
  // Under the thread's mutex. Collectives are numbered apart from messages, so that their numbers agree on all ranks.
  std::uint64_t collectives = 0;
  std::uint64_t messages = 0;
  // On the communication thread only.
  bool busy = false;
  std::string broken;
  std::deque<std::unique_ptr<CommunicationThread::Operation>> waiting;
};

CommunicationThread::CommunicationThread(std::chrono::nanoseconds timeout, bool check)
    : timeout_(timeout), check_(check), thread_([this] { loop(); }) {}

CommunicationThread::~CommunicationThread() {
  end();
}

bool CommunicationThread::end() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  return sound_;
}

std::shared_ptr<Channel> CommunicationThread::make_channel() const {
  return std::make_shared<Channel>();
}

Work CommunicationThread::submit(const std::shared_ptr<Channel>& channel, std::unique_ptr<Call> call,
                                 std::function<Task(const Call&)> make, bool ordered) {
  auto operation = std::make_unique<Operation>();
  operation->channel = channel;
  operation->call = std::move(call);
  operation->make = std::move(make);
  operation->ordered = ordered;
  operation->queued = Clock::now();
  operation->range =
      base::trace::AsyncRange(operation->call->name, "comm",
                              {{"group", operation->call->communicator->name}, {"bytes", operation->call->bytes}});
  Work work(operation->future);
  {
    const std::lock_guard lock(mutex_);
    operation->call->number = ordered ? ++channel->collectives : ++channel->messages;
    if (stop_) operation->call->fail("the communication thread has ended");
    incoming_.push_back(std::move(operation));
    ++under_way_;
    has_incoming_ = true;
  }
  wake_.notify_one();
  return work;
}

Work CommunicationThread::run(std::function<void()> job) {
  auto operation = std::make_unique<Operation>();
  operation->job = std::move(job);
  Work work(operation->future);
  {
    const std::lock_guard lock(mutex_);
    if (stop_) throw base::CommError("the communication thread has ended");
    incoming_.push_back(std::move(operation));
    ++under_way_;
    has_incoming_ = true;
  }
  wake_.notify_one();
  return work;
}

void CommunicationThread::settle(nanoseconds limit) const {
  const Clock::time_point begin = Clock::now();
  while (under_way_ > 0 && Clock::now() - begin < limit) std::this_thread::sleep_for(longest_sleep);
}

void CommunicationThread::set_service(std::function<std::chrono::nanoseconds()> service) {
  run([this, service = std::move(service)] { service_ = service; }).wait();
}

void CommunicationThread::note_departed(const std::vector<int>& world_ranks, const std::string& description) {
  departed_ = world_ranks;
  departed_text_ = description;
  departed_since_ = Clock::now();
}

void CommunicationThread::accept(std::unique_ptr<Operation> operation) {
  if (operation->job) {
    std::exception_ptr error;
    try {
      operation->job();
    } catch (...) {
      error = std::current_exception();
    }
    --under_way_;
    operation->future->set(error);
  } else if (operation->ordered && std::exchange(operation->channel->busy, true)) {
    operation->channel->waiting.push_back(std::move(operation));
  } else {
    start(std::move(operation));
  }
}

void CommunicationThread::start(std::unique_ptr<Operation> operation) {
  operation->started = Clock::now();
  operation->range.add(
      {"waited_us", std::chrono::duration_cast<microseconds>(operation->started - operation->queued).count()});
  try {
    if (!operation->channel->broken.empty()) {
      operation->call->fail("an earlier call failed: " + operation->channel->broken);
    }
    operation->task = operation->make(*operation->call);
  } catch (...) {
    complete(*operation, std::current_exception());
    return;
  }
  operation->task.start(operation->halt);
  if (operation->task.done()) {
    complete(*operation, operation->task.error());
  } else {
    running_.push_back(std::move(operation));
  }
}

void CommunicationThread::complete(Operation& operation, std::exception_ptr error) {
  Channel& channel = *operation.channel;
  if (operation.ordered) {
    if (channel.waiting.empty()) {
      channel.busy = false;
    } else {
      ready_.push_back(std::move(channel.waiting.front()));
      channel.waiting.pop_front();
    }
  }
  operation.task = Task();  // lets go of what it refers to before the caller does
  operation.range.end();
  --under_way_;
  operation.future->set(std::move(error));
}

bool CommunicationThread::advance(Operation& operation) {
  if (!operation.halt.requests->test()) return false;
  operation.halt.at.resume();
  return true;
}

void CommunicationThread::look_for_lost_calls() {
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < running_.size();) {
    Operation& operation = *running_[i];
    const Communicator& communicator = *operation.call->communicator;
    std::string why;
    if (timeout_.count() > 0 && now - operation.started > timeout_) {
      why = fmt::format(
          "not done after {} s; a rank of the group does something else, hangs or is lost (DS_COMM_TIMEOUT sets the "
          "limit)",
          std::chrono::duration_cast<std::chrono::seconds>(timeout_).count());
    } else if (!departed_.empty() && now - departed_since_ > departure_grace &&
               now - operation.started > departure_grace) {
      const auto left = [this](int rank) {
        return std::find(departed_.begin(), departed_.end(), rank) != departed_.end();
      };
      const auto& members = communicator.world_ranks;
      const bool lost = operation.call->peer >= 0 ? left(members[static_cast<std::size_t>(operation.call->peer)])
                                                  : std::any_of(members.begin(), members.end(), left);
      if (lost) why = departed_text_ + " and doesn't take part";
    }
    if (why.empty()) {
      ++i;
      continue;
    }
    sound_ = false;
    const std::unique_ptr<Operation> lost = std::move(running_[i]);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    lost->task.abandon();
    lost->channel->broken = fmt::format("{} #{}", lost->call->name, lost->call->number);
    try {
      lost->call->fail(why);
    } catch (...) {
      // MPI may still look at what the call owns.
      complete(*lost, std::current_exception());
      static_cast<void>(lost->call.release());
    }
    i = 0;
  }
}

void CommunicationThread::wait_for_work(std::chrono::nanoseconds pause) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, pause, [this] { return !incoming_.empty() || stop_; });
}

void CommunicationThread::loop() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the program's threads' business
  prctl(PR_SET_NAME, "ds-comm");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the usual 50 us would make the short sleeps long
  int misses = 0;
  nanoseconds pause = shortest_sleep;
  Clock::time_point stop_since{};
  while (true) {
    bool moved = false;
    if (has_incoming_) {
      std::deque<std::unique_ptr<Operation>> taken;
      {
        const std::lock_guard lock(mutex_);
        taken.swap(incoming_);
        has_incoming_ = false;
      }
      for (auto& operation : taken) accept(std::move(operation));
      moved = true;
    }
    for (std::size_t i = 0; i < running_.size();) {
      const bool advanced = advance(*running_[i]);
      moved = moved || advanced;
      if (!advanced || !running_[i]->task.done()) {
        ++i;
        continue;
      }
      const std::unique_ptr<Operation> finished = std::move(running_[i]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      complete(*finished, finished->task.error());
    }
    for (; !ready_.empty(); moved = true) {
      std::unique_ptr<Operation> next = std::move(ready_.front());
      ready_.pop_front();
      start(std::move(next));
    }
    if (moved) {
      misses = 0;
      pause = shortest_sleep;
      continue;
    }
    if (!running_.empty() && ++misses <= yields) {
      const Clock::time_point before = Clock::now();
      sched_yield();
      // Others want the core. A thread that yields then waits for a whole round of theirs, one that sleeps is let in
      // soon after it wakes.
      if (Clock::now() - before > longest_yield) misses = yields;
      continue;
    }

    const nanoseconds wish = service_ ? service_() : std::chrono::hours(1);
    look_for_lost_calls();
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      if (!incoming_.empty()) continue;
      stopping = stop_;
    }
    if (stopping) {
      if (running_.empty()) return;
      if (stop_since == Clock::time_point{}) stop_since = Clock::now();
      if (Clock::now() - stop_since > stop_grace) {
        sound_ = false;
        for (auto& operation : running_) {
          operation->task.abandon();
          static_cast<void>(operation->call.release());
        }
        return;
      }
      std::this_thread::sleep_for(std::min<nanoseconds>(pause, wish));
    } else {
      wait_for_work(running_.empty() ? wish : std::min<nanoseconds>(pause, wish));
    }
    pause = std::min<nanoseconds>(2 * pause, longest_sleep);
  }
}

}  // namespace deepspeed::comm
