// SPDX-License-Identifier: Apache-2.0
// How a job ends. Each rank reports to rank 0 how its program ended. Rank 0 waits until all have, or, after a failure,
// for a moment only: others may sit in a collective for ever. It then speaks for the job, and tells the ranks the exit
// code; if some still run, it ends them. All this happens on the communication threads, which stay alive beside any
// program, and beside collectives that hang.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/ending.h"
#include "comm/group_error.h"
#include "comm/process_impl.h"

namespace deepspeed::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/// After the first failure, how long rank 0 waits for the other ranks to report theirs.
constexpr milliseconds failure_grace{1500};
/// After its own failure, how long a rank waits for rank 0's answer before it ends the job itself.
constexpr seconds answer_grace{4};
/// After a rank ended without failure, when the others are told that they needn't wait for it.
constexpr seconds departure_notice{2};
constexpr seconds settle_grace{1};
constexpr milliseconds watch_interval{50};
constexpr milliseconds end_interval{1};
constexpr std::size_t longest_message = 16384;

enum Tag : int { tag_report = 1, tag_verdict = 2, tag_departed = 3 };

/// What goes over the wire: code, stuck or not, length of host, host, message.
std::vector<char> pack(const Ending& ending) {
  const std::array<std::int32_t, 3> head{ending.code, ending.stuck ? 1 : 0,
                                         static_cast<std::int32_t>(ending.host.size())};
  std::vector<char> bytes(sizeof head);
  std::memcpy(bytes.data(), head.data(), sizeof head);
  bytes.insert(bytes.end(), ending.host.begin(), ending.host.end());
  bytes.insert(bytes.end(), ending.message.begin(), ending.message.end());
  return bytes;
}

Ending unpack(int rank, const std::vector<char>& bytes) {
  std::array<std::int32_t, 3> head{};
  std::memcpy(head.data(), bytes.data(), sizeof head);
  const auto host_end = bytes.begin() + static_cast<std::ptrdiff_t>(sizeof head) + head[2];
  return {rank, std::string(bytes.begin() + sizeof head, host_end), head[0], std::string(host_end, bytes.end()),
          head[1] != 0};
}

void say(const std::string& text) {
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  if (!text.empty()) log::write_to_file(text.substr(0, text.find_last_not_of('\n') + 1));
}

/// One rank's side of the talk. All but the constructor and `conclude` runs on the communication thread.
class Conclusion {
 public:
  Conclusion(std::string program, CommunicationThread& thread, const Communicator& control)
      : program_(std::move(program)), thread_(thread), control_(control) {
    thread_.set_service([this] { return serve(); });
  }

  /// Reports this rank's ending, the first one that it is told; returns the job's exit code.
  int conclude(Ending own) {
    if (decided_) return code_;
    std::fflush(nullptr);  // the job may be ended as soon as all have reported
    own.message.resize(std::min(own.message.size(), longest_message));
    thread_
        .run([this, own] {
          own_ = own;
          own_->stuck = !thread_.sound();
          own_since_ = Clock::now();
          report();
        })
        .wait();
    decided_.wait(false);
    // No service after the verdict: this object is about to go.
    thread_.set_service({});
    // What all ranks had started before they failed ends by itself, and may still write to memory that is about to go.
    thread_.settle(settle_grace);
    return code_;
  }

 private:
  nanoseconds serve() {
    if (decided_) return std::chrono::hours(1);
    if (control_.rank == 0) {
      lead();
      return own_ ? nanoseconds(end_interval) : nanoseconds(watch_interval);
    }
    follow();
    return own_ ? nanoseconds(end_interval) : nanoseconds(std::chrono::hours(1));
  }

  void report() {
    if (control_.rank == 0) {
      take(*own_);
      return;
    }
    std::vector<char> bytes = pack(*own_);
    post(0, tag_report, std::move(bytes));
  }

  void take(Ending ending) {
    const Clock::time_point now = Clock::now();
    if (!ending.message.empty() && !failed_since_) failed_since_ = now;
    if (!ended_since_) ended_since_ = now;
    endings_.push_back(std::move(ending));
  }

  void lead() {
    MPI_Status status;
    while (arrived(MPI_ANY_SOURCE, tag_report, status)) take(unpack(status.MPI_SOURCE, fetch(status)));
    const Clock::time_point now = Clock::now();
    if (static_cast<int>(endings_.size()) == control_.size) {
      // A rank that gave up a call can't leave MPI. Were it just to end, the others would wait for it in MPI_Finalize,
      // and launchers are at a loss then (Open MPI's hangs or crashes at times).
      const auto is_stuck = [](const Ending& ending) { return ending.stuck; };
      if (std::any_of(endings_.begin(), endings_.end(), is_stuck)) end_all(endings_);
      const Verdict verdict = judge(program_, endings_, control_.size);
      say(verdict.text);
      for (int rank = 1; rank < control_.size; ++rank) {
        std::vector<char> bytes(sizeof(std::int32_t));
        const std::int32_t code = verdict.code;
        std::memcpy(bytes.data(), &code, sizeof code);
        post(rank, tag_verdict, std::move(bytes));
      }
      decide(verdict.code);
    } else if (failed_since_ && now - *failed_since_ > failure_grace) {
      end_all(endings_);
    } else if (!failed_since_ && ended_since_ && now - *ended_since_ > departure_notice &&
               noticed_ != endings_.size()) {
      notify();
    }
  }

  /// Tells the ranks that still run who has left.
  void notify() {
    noticed_ = endings_.size();
    std::vector<bool> left(static_cast<std::size_t>(control_.size));
    std::vector<char> bytes;
    for (const Ending& ending : endings_) {
      left[static_cast<std::size_t>(ending.rank)] = true;
      const std::int32_t rank = ending.rank;
      bytes.insert(bytes.end(), reinterpret_cast<const char*>(&rank), reinterpret_cast<const char*>(&rank + 1));
    }
    for (int rank = 1; rank < control_.size; ++rank) {
      if (!left[static_cast<std::size_t>(rank)]) post(rank, tag_departed, bytes);
    }
    if (!left[0]) departed(bytes);
  }

  void departed(const std::vector<char>& bytes) {
    std::vector<int> ranks(bytes.size() / sizeof(std::int32_t));
    std::memcpy(ranks.data(), bytes.data(), bytes.size());
    std::sort(ranks.begin(), ranks.end());
    thread_.note_departed(ranks, fmt::format("rank{} {} {} ended", ranks.size() == 1 ? "" : "s", list_ranks(ranks),
                                             ranks.size() == 1 ? "has" : "have"));
  }

  void follow() {
    MPI_Status status;
    if (arrived(0, tag_departed, status)) departed(fetch(status));
    if (!own_) return;
    if (arrived(0, tag_verdict, status)) {
      std::int32_t code = 0;
      std::memcpy(&code, fetch(status).data(), sizeof code);
      decide(code);
    } else if (!own_->message.empty() && Clock::now() - own_since_ > answer_grace) {
      end_all({*own_});
    }
  }

  void end_all(const std::vector<Ending>& endings) {
    const Verdict verdict = judge(program_, endings, control_.size);
    say(verdict.text);
    MPI_Abort(MPI_COMM_WORLD, verdict.code);
  }

  void decide(int code) {
    // The messages are short and their receivers look for them all the time.
    MPI_Waitall(static_cast<int>(posted_.size()), posted_.data(), MPI_STATUSES_IGNORE);
    code_ = code;
    decided_ = true;
    decided_.notify_all();
  }

  bool arrived(int source, int tag, MPI_Status& status) const {
    int flag = 0;
    return MPI_Iprobe(source, tag, control_.handle, &flag, &status) == MPI_SUCCESS && flag != 0;
  }

  std::vector<char> fetch(const MPI_Status& status) const {
    int bytes = 0;
    MPI_Get_count(&status, MPI_CHAR, &bytes);
    std::vector<char> data(static_cast<std::size_t>(bytes));
    MPI_Recv(data.data(), bytes, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, control_.handle, MPI_STATUS_IGNORE);
    return data;
  }

  void post(int to, int tag, std::vector<char> bytes) {
    const std::vector<char>& kept = sent_.emplace_back(std::move(bytes));
    MPI_Isend(kept.data(), static_cast<int>(kept.size()), MPI_CHAR, to, tag, control_.handle,
              &posted_.emplace_back(MPI_REQUEST_NULL));
  }

  const std::string program_;
  CommunicationThread& thread_;
  const Communicator& control_;
  std::optional<Ending> own_;
  Clock::time_point own_since_;
  std::vector<Ending> endings_;
  std::optional<Clock::time_point> failed_since_;
  std::optional<Clock::time_point> ended_since_;
  std::size_t noticed_ = 0;
  std::deque<std::vector<char>> sent_;
  std::vector<MPI_Request> posted_;
  int code_ = 0;
  std::atomic<bool> decided_{false};
};

/// Runs `body` and tells how it ended.
Ending ending_of(const std::function<int()>& body, const std::string& host, int rank) {
  using base::ExitCode;
  const auto failed = [&](ExitCode code, const std::string& message) {
    return Ending{rank, host, static_cast<int>(code), message.empty() ? "failed without a message" : message, false};
  };
  try {
    return {rank, host, body(), "", false};
  } catch (const GroupError& error) {
    return failed(error.code(), error.everywhere());
  } catch (const base::Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ExitCode::failure, base::MemoryError().what());
  } catch (const std::exception& error) {
    return failed(ExitCode::failure, error.what());
  } catch (...) {
    return failed(ExitCode::failure, "an exception of an unknown type");
  }
}

}  // namespace

int run_program(const std::string& program, int argc, char** argv,
                const std::function<int(Process&, int argc, char** argv)>& body) {
  std::optional<Process> process;
  const auto start = [&] {
    process.emplace(&argc, &argv);
    return 0;
  };
  const auto run = [&] { return body(*process, argc, argv); };

  Ending ending = ending_of(start, "", 0);
  if (!process || process->size() == 1) {
    if (process) ending = ending_of(run, process->host(), 0);
    // A start that failed is told by every rank: they can't talk to each other.
    const Verdict verdict = judge(program, {ending}, 1);
    say(verdict.text);
    return verdict.code;
  }
  Process::Impl& p = *process->impl_;
  Conclusion conclusion(program, p.session->thread(), *p.control);
  p.report_failure = [&] {
    const auto again = []() -> int { throw; };
    conclusion.conclude(ending_of(again, p.host, p.rank));
  };
  ending = ending_of(run, p.host, p.rank);
  p.report_failure = nullptr;
  const int code = conclusion.conclude(std::move(ending));
  std::fflush(nullptr);
  return code;
}

}  // namespace deepspeed::comm
