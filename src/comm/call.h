// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <coroutine>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace deepspeed::comm {

/// What the ranks of a communicator need to know of it. Lives as long as the communication thread.
struct Communicator {
  MPI_Comm handle = MPI_COMM_NULL;
  std::string name;
  int rank = 0;
  int size = 1;
  std::string host;
  std::vector<int> world_ranks;  ///< of each member
  bool one_host = false;         ///< all members share a host
};

/// One collective (or send, or receive) under way: its name for messages, and its communicator.
struct Call {
  const Communicator* communicator = nullptr;
  std::string name;       ///< "all_reduce"
  std::string signature;  ///< "fp32[1000] sum": what must agree between the ranks
  std::uint64_t number = 0;
  int peer = -1;           ///< of a send or receive
  std::int64_t bytes = 0;  ///< of the whole buffer, for the trace

  [[noreturn]] void fail(const std::string& what) const;
  /// Throws GroupError with MPI's text if `code` isn't MPI_SUCCESS.
  void check(int code) const;
};

/// Requests that a coroutine waits for with co_await; the communication thread tests them.
class Requests {
 public:
  explicit Requests(const Call& call) : call_(&call) {}
  Requests(Requests&&) = default;
  Requests& operator=(Requests&&) = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Room for one more request: `requests.check(MPI_Isend(..., requests.add()))`.
  MPI_Request* add() { return &list_.emplace_back(MPI_REQUEST_NULL); }
  void check(int code) const { call_->check(code); }
  /// The last request is a receive of exactly this many bytes.
  void expect(int bytes) {
    expected_.resize(list_.size(), -1);
    expected_.back() = bytes;
  }
  /// Whether all are done, or one failed.
  bool test();

  struct Awaiter {
    Requests* requests;
    bool await_ready() const { return requests->test(); }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> at) const {
      *at.promise().halt = {requests, at};
    }
    void await_resume() const { requests->finish(); }
  };
  Awaiter operator co_await() { return {this}; }

 private:
  void finish();

  const Call* call_;
  std::vector<MPI_Request> list_;
  std::vector<int> expected_;
  std::vector<MPI_Status> statuses_;
  int code_ = MPI_SUCCESS;
};

/// Where a coroutine, or one that it awaits, has come to a halt, and for what.
struct Halt {
  Requests* requests = nullptr;
  std::coroutine_handle<> at;
};

/// A collective as straight-line code: a coroutine that runs on the communication thread and is halted wherever it
/// awaits Requests. A Task may await another one.
class Task {
 public:
  struct promise_type {
    Halt* halt = nullptr;
    std::coroutine_handle<> caller;
    std::exception_ptr error;

    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    auto final_suspend() const noexcept {
      struct Return {
        bool await_ready() const noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
          return self.promise().caller ? self.promise().caller : std::noop_coroutine();
        }
        void await_resume() const noexcept {}
      };
      return Return{};
    }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// Runs to the first halt, or to the end.
  void start(Halt& halt) {
    handle_.promise().halt = &halt;
    handle_.resume();
  }
  bool done() const { return handle_.done(); }
  /// What the coroutine threw, or null.
  std::exception_ptr error() const { return handle_.promise().error; }
  /// Lets go of the coroutine without destroying it: MPI may still write to its buffers.
  void abandon() { handle_ = nullptr; }

  /// Runs the task inside the one that awaits it; throws what it threw.
  auto operator co_await() {
    struct Awaiter {
      std::coroutine_handle<promise_type> inner;
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> caller) const noexcept {
        inner.promise().halt = caller.promise().halt;
        inner.promise().caller = caller;
        return inner;
      }
      void await_resume() const {
        if (inner.promise().error) std::rethrow_exception(inner.promise().error);
      }
    };
    return Awaiter{handle_};
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace deepspeed::comm
