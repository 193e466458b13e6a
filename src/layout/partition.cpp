// SPDX-License-Identifier: Apache-2.0
#include "layout/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace deepspeed::layout {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::int64_t shard_size(std::int64_t numel, int ranks) {
  return (numel + ranks - 1) / ranks;
}

std::vector<std::int64_t> partition_uniform(std::int64_t items, std::int64_t parts) {
  std::vector<std::int64_t> begins{0};
  for (std::int64_t part = 0; part < parts; ++part) {
    begins.push_back(begins.back() + items / parts + (part < items % parts ? 1 : 0));
  }
  return begins;
}

Partition::Partition(std::vector<std::int64_t> numels, int ranks, std::int64_t alignment, bool round_robin)
    : numels_(std::move(numels)), ranks_(ranks), offsets_(numels_.size()) {
  if (ranks < 1 || alignment < 1) {
    throw std::invalid_argument(fmt::format("Partition: {} ranks, alignment {}: both must be >= 1", ranks, alignment));
  }
  const std::size_t stride = round_robin ? static_cast<std::size_t>(ranks) : 1;
  order_.reserve(numels_.size());
  for (std::size_t first = 0; first < std::min(stride, numels_.size()); ++first) {
    for (std::size_t i = first; i < numels_.size(); i += stride) order_.push_back(i);
  }
  for (const std::size_t i : order_) {
    if (numels_[i] < 0)
      throw std::invalid_argument(fmt::format("Partition: parameter {} has {} elements", i, numels_[i]));
    offsets_[i] = numel_;
    numel_ += numels_[i];
  }
  slice_size_ = round_up(numel_, alignment * ranks) / ranks;
}

std::int64_t Partition::padding(int rank) const {
  return std::clamp<std::int64_t>(slice_begin(rank) + slice_size_ - numel_, 0, slice_size_);
}

std::vector<Segment> Partition::segments(int rank) const {
  return segments(slice_begin(rank), slice_begin(rank) + slice_size_);
}

std::vector<Segment> Partition::segments(std::int64_t begin, std::int64_t end) const {
  std::vector<Segment> pieces;
  // The first parameter that ends behind `begin`.
  auto it = std::partition_point(order_.begin(), order_.end(),
                                 [&](std::size_t i) { return offsets_[i] + numels_[i] <= begin; });
  for (; it != order_.end() && offsets_[*it] < end; ++it) {
    const std::int64_t from = std::max(begin, offsets_[*it]);
    const std::int64_t to = std::min(end, offsets_[*it] + numels_[*it]);
    if (from < to) pieces.push_back({static_cast<std::int64_t>(*it), from - offsets_[*it], from, to - from});
  }
  return pieces;
}

std::vector<std::int64_t> Partition::counts(std::int64_t begin, std::int64_t end) const {
  std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::int64_t from = std::max(begin, slice_begin(rank));
    const std::int64_t to = std::min(end, slice_begin(rank) + slice_size_);
    owned[static_cast<std::size_t>(rank)] = std::max<std::int64_t>(0, to - from);
  }
  return owned;
}

}  // namespace deepspeed::layout
