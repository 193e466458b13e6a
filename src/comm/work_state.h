// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <utility>

#include "comm/group.h"

namespace deepspeed::comm {

/// What a back end shares with the Work it hands out.
struct Work::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;
  virtual void wait() = 0;
  virtual bool done() const = 0;
};

/// A State that somebody sets, with or without an error.
class Future : public Work::State {
 public:
  void wait() override {
    done_.wait(false, std::memory_order_acquire);
    if (error_) std::rethrow_exception(error_);
  }
  bool done() const override { return done_.load(std::memory_order_acquire); }
  void set(std::exception_ptr error) {
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
    done_.notify_all();
  }

 private:
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

}  // namespace deepspeed::comm
