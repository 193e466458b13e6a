// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "layout/rows.h"

namespace deepspeed::layout {

/// All that decides what a training run holds and sends, but for the model's activations.
struct TrainingShape {
  Placement placement;
  int ranks = 1;  ///< data-parallel ones
  base::Dtype working = base::Dtype::f32;
  base::Dtype accumulation = base::Dtype::f32;
  base::Dtype communication = base::Dtype::f32;  ///< type of gradients on their way
  int states = 2;                                ///< fp32 optimizer states of a parameter, beside the master
  std::int64_t gradient_accumulation_steps = 1;
  bool reduce_each_backward = false;  ///< also where gradients are replicated
  Persistence persistence;
  std::int64_t prefetch = 0;
  std::int64_t max_live = std::numeric_limits<std::int64_t>::max();
  std::int64_t reuse_distance = 0;
  bool round_robin = false;
};

/// Bytes on the rank that holds most, by the ledger's categories.
struct MemoryEstimate {
  std::int64_t parameters = 0;
  std::int64_t gathered = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t buckets = 0;
  std::int64_t total() const { return parameters + gathered + gradients + optimizer + buckets; }
};

/// Bytes that each rank sends in one optimizer step (Rajbhandari et al. 2020, section 7).
struct TrafficEstimate {
  std::int64_t gradients = 0;  ///< reduce-scatter, and all-gather of the mean where it is replicated
  std::int64_t gathers = 0;    ///< weights for forward and backward, where they are sharded
  std::int64_t updates = 0;    ///< updated weights to the ranks that keep them whole
  std::int64_t total() const { return gradients + gathers + updates; }
};

MemoryEstimate estimate_memory(std::span<const ParameterFacts> parameters, const TrainingShape& shape);
TrafficEstimate estimate_traffic(std::span<const ParameterFacts> parameters, const TrainingShape& shape);

}  // namespace deepspeed::layout
