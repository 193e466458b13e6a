// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "base/ledger.h"

namespace deepspeed::zero {

/// Host memory for large pieces that come and go all the time: gathered rows, gradients on their way. A piece that was
/// let go serves the next request of its size, since fresh pages cost more than the work on them. Pieces may outlive
/// the arena.
class Arena {
 public:
  enum class Holds {
    two,  ///< at most twice the largest piece is held back
    all,  ///< for what is there in every step: its pages are its own, and serve the next step again
  };
  /// `category`: what its memory is charged to.
  explicit Arena(base::ledger::Category category, Holds holds = Holds::two);
  at::DataPtr take(std::int64_t bytes);
  /// [numel], uninitialized.
  at::Tensor tensor(std::int64_t numel, base::Dtype type);

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace deepspeed::zero
