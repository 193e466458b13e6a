// SPDX-License-Identifier: Apache-2.0
#include "zero/sharded_optimizer.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels/host.h"
#include "zero/tensor_buffer.h"

namespace deepspeed::zero {
namespace {

std::vector<std::int64_t> even_counts(std::int64_t numel, int ranks) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(numel * (r + 1) / ranks - numel * r / ranks);
  return counts;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::shared_ptr<comm::Group> data, std::vector<ParameterGroup> groups,
                                   std::unique_ptr<optim::UpdateRule> rule, Settings settings)
    : data_(std::move(data)), rule_(std::move(rule)), settings_(settings) {
  if (settings_.placement.parameters == layout::Spread::sharded) {
    throw std::logic_error("sharded parameters need a gatherer");
  }
  for (ParameterGroup& group : groups) {
    // Weights built or loaded on each rank may differ; training starts from those of rank 0.
    for (NamedParameter& parameter : group.parameters) {
      at::Tensor whole = parameter.tensor.detach().contiguous();
      data_->broadcast(view(whole), 0).wait();
      if (whole.data_ptr() != parameter.tensor.data_ptr()) parameter.tensor.set_data(whole);
    }
    groups_.push_back(std::make_unique<FlatGroup>(std::move(group), data_->rank(), data_->size(), settings_.placement,
                                                  settings_.working, settings_.accumulation, rule_->states()));
    FlatGroup& flat = *groups_.back();
    for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
      places_[flat.parameters()[i].tensor.unsafeGetTensorImpl()] = {&flat, i};
    }
  }
}

void ShardedOptimizer::accumulate(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  if (found == places_.end()) return;
  FlatGroup& group = *found->second.group;
  const std::size_t index = found->second.index;
  const at::Tensor contiguous = gradient.contiguous();
  const base::Buffer place = view(group.accumulation, group.partition().offset_of(index), contiguous.numel());
  if (group.touched[index] != 0) {
    kernels::accumulate(place, view(contiguous));
  } else {
    kernels::cast(place, view(contiguous));
    group.touched[index] = 1;
  }
}

void ShardedOptimizer::reduce_group(FlatGroup& group) {
  for (std::size_t i = 0; i < group.parameters().size(); ++i) {
    if (group.touched[i] != 0) continue;
    kernels::zero(view(group.accumulation, group.partition().offset_of(i), group.partition().numel_of(i)));
  }
  const int ranks = data_->size();
  if (ranks == 1) return;
  const float scale = settings_.average ? 1.0F / static_cast<float>(ranks) : 1.0F;
  const std::int64_t numel = group.partition().numel();

  // Bucket by bucket of the row. A bucket's elements go to their owners, or, where every rank keeps the mean, are split
  // evenly and gathered again: the sum is formed in rank order either way.
  std::vector<comm::Work> pending;
  for (std::int64_t begin = 0; begin < numel; begin += settings_.reduce_bucket) {
    const std::int64_t end = std::min(numel, begin + settings_.reduce_bucket);
    const std::vector<std::int64_t> counts =
        sharded() ? group.partition().counts(begin, end) : even_counts(end - begin, ranks);
    const std::int64_t own = counts[static_cast<std::size_t>(data_->rank())];
    const std::int64_t own_begin =
        begin + std::accumulate(counts.begin(), counts.begin() + data_->rank(), std::int64_t{0});
    const base::Buffer out = view(group.reduced, own == 0 ? 0 : own_begin - group.owned().begin, own);
    pending.push_back(
        data_->ordered_reduce_scatter(view(group.accumulation, begin, end - begin), counts, out, scale, false));
    if (!sharded()) pending.push_back(data_->all_gather(out, counts, view(group.reduced, begin, end - begin)));
  }
  for (comm::Work& work : pending) work.wait();
}

base::Buffer ShardedOptimizer::mean_gradient(const FlatGroup& group) const {
  if (data_->size() > 1) return view(group.reduced);
  return view(group.accumulation, group.owned().begin, group.owned().numel());
}

double ShardedOptimizer::reduce() {
  double sum = 0;
  for (const auto& group : groups_) {
    reduce_group(*group);
    sum += kernels::sum_squares(mean_gradient(*group));
  }
  if (sharded() && data_->size() > 1) sum = data_->all_reduce_value(sum);
  return sum;
}

void ShardedOptimizer::update(float factor) {
  ++steps_;
  for (const auto& group : groups_) {
    const Range owned = group->owned();
    if (owned.numel() > 0) {
      optim::Piece piece;
      piece.master = group->master();
      piece.gradient = mean_gradient(*group);
      for (const at::Tensor& state : group->states) piece.states.push_back(view(state));
      if (group->has_own_master()) piece.working = view(group->working, owned.begin, owned.numel());
      rule_->update(piece, group->hyper, steps_, factor);
    }
    gather_working(*group);
  }
}

void ShardedOptimizer::gather_working(FlatGroup& group) {
  if (data_->size() == 1 || !sharded()) return;
  const std::int64_t slice = group.partition().slice_size();
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(data_->size()), slice);
  data_->all_gather(view(group.working, slice * data_->rank(), slice), counts, view(group.working)).wait();
}

void ShardedOptimizer::refresh_working() {
  for (const auto& group : groups_) {
    const Range owned = group->owned();
    if (group->has_own_master()) kernels::cast(view(group->working, owned.begin, owned.numel()), group->master());
    gather_working(*group);
  }
}

void ShardedOptimizer::clear_gradients() {
  for (const auto& group : groups_) group->clear_gradients();
}

}  // namespace deepspeed::zero
