// SPDX-License-Identifier: Apache-2.0
#include "layout/memory_model.h"

#include <algorithm>
#include <vector>

#include "layout/partition.h"

namespace deepspeed::layout {
namespace {

/// As zero::ShardedOptimizer: rows whose reduction is under way, and the one that backward fills meanwhile.
constexpr std::size_t rows_in_flight = 3;

struct RowSize {
  RowPlan plan;
  std::int64_t padded;
  std::int64_t slice;
};

std::vector<RowSize> sizes_of(std::span<const ParameterFacts> parameters, const TrainingShape& shape) {
  std::vector<RowSize> rows;
  for (RowPlan& plan : plan_rows(parameters, shape.placement, shape.persistence)) {
    std::vector<std::int64_t> numels;
    for (const std::size_t p : plan.parameters) numels.push_back(parameters[p].numel);
    const Partition partition(std::move(numels), shape.ranks, 2, shape.round_robin);
    rows.push_back({std::move(plan), partition.padded(), partition.slice_size()});
  }
  return rows;
}

std::int64_t bytes(base::Dtype type) {
  return static_cast<std::int64_t>(base::size_of(type));
}

/// Where every backward's gradients are reduced, and not only the last one's.
bool each_is_reduced(const TrainingShape& shape) {
  return shape.placement.gradients == Spread::sharded || shape.reduce_each_backward;
}

/// Elements gathered at once for units, at most.
std::int64_t live(const std::vector<RowSize>& rows, const TrainingShape& shape) {
  std::int64_t all = 0;
  std::int64_t largest = 0;
  for (const RowSize& row : rows) {
    if (row.plan.keep_whole) continue;
    all += row.padded;
    largest = std::max(largest, row.padded);
  }
  // What a unit needs is gathered whatever the limit; what is fetched ahead or kept comes on top up to it.
  std::int64_t most = largest;
  if (shape.prefetch > 0) most = 2 * largest;
  if (shape.prefetch > largest) most = largest + shape.prefetch;
  if (shape.reuse_distance > 0) most = std::max(most, std::min(all, shape.reuse_distance));
  return std::min(all, std::max(largest, std::min(most, shape.max_live)));
}

}  // namespace

MemoryEstimate estimate_memory(std::span<const ParameterFacts> parameters, const TrainingShape& shape) {
  const std::vector<RowSize> rows = sizes_of(parameters, shape);
  const bool sharded = shape.placement.parameters == Spread::sharded;
  const bool optimizer_sharded = shape.placement.optimizer == Spread::sharded;
  const bool alone = shape.ranks == 1 && !each_is_reduced(shape);
  MemoryEstimate estimate;
  std::vector<std::int64_t> trained;
  std::int64_t whole_gradients = 0;
  std::int64_t owned_gradients = 0;
  for (const RowSize& row : rows) {
    const std::int64_t weight = bytes(shape.working);
    estimate.parameters += weight * (sharded ? row.slice : row.padded);
    if (sharded && row.plan.keep_whole) estimate.gathered += weight * row.padded;
    if (!row.plan.trainable) continue;
    trained.push_back(row.padded);
    const std::int64_t owned = optimizer_sharded ? row.slice : row.padded;
    estimate.optimizer += owned * 4 * (shape.states + (shape.working == base::Dtype::f32 ? 0 : 1));
    whole_gradients += bytes(shape.accumulation) * row.padded;
    owned_gradients += bytes(shape.accumulation) * owned;
  }
  if (sharded) estimate.gathered += bytes(shape.working) * live(rows, shape);

  // Where micro batches are summed up before the exchange, the local sum is there when it begins, and goes row by row
  // as means come.
  const bool summed_up = alone || (!each_is_reduced(shape) && shape.gradient_accumulation_steps > 1);
  estimate.gradients = summed_up ? std::max(whole_gradients, owned_gradients) : owned_gradients;
  if (alone) return estimate;
  std::sort(trained.begin(), trained.end(), std::greater<>());
  for (std::size_t i = 0; i < std::min(rows_in_flight, trained.size()); ++i) {
    const std::int64_t mine = optimizer_sharded ? trained[i] / shape.ranks : trained[i];
    if (!summed_up) estimate.buckets += bytes(shape.accumulation) * trained[i];
    if (shape.accumulation != base::Dtype::f32 || shape.gradient_accumulation_steps > 1) estimate.buckets += 4 * mine;
    if (shape.communication != shape.accumulation) estimate.buckets += bytes(shape.communication) * trained[i];
  }
  return estimate;
}

TrafficEstimate estimate_traffic(std::span<const ParameterFacts> parameters, const TrainingShape& shape) {
  TrafficEstimate traffic;
  if (shape.ranks == 1) return traffic;
  const bool sharded = shape.placement.parameters == Spread::sharded;
  const bool optimizer_sharded = shape.placement.optimizer == Spread::sharded;
  const std::int64_t others = shape.ranks - 1;
  const std::int64_t backwards = each_is_reduced(shape) ? shape.gradient_accumulation_steps : 1;
  std::int64_t all = 0;
  const std::vector<RowSize> rows = sizes_of(parameters, shape);
  for (const RowSize& row : rows) all += row.plan.keep_whole ? 0 : row.padded;
  const bool stays = shape.reuse_distance >= all && shape.max_live >= all;
  for (const RowSize& row : rows) {
    // To each other rank its slice.
    if (row.plan.trainable) {
      traffic.gradients += backwards * bytes(shape.communication) * others * row.slice;
      if (!optimizer_sharded) traffic.gradients += backwards * 4 * others * row.slice;
      if (optimizer_sharded && row.plan.keep_whole) traffic.updates += bytes(shape.working) * others * row.slice;
    }
    if (sharded && !row.plan.keep_whole) {
      traffic.gathers +=
          (stays ? 1 : 2 * shape.gradient_accumulation_steps) * bytes(shape.working) * others * row.slice;
    }
  }
  return traffic;
}

}  // namespace deepspeed::layout
