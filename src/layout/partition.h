// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepspeed::layout {

/// A piece of one parameter in the flat buffer: `numel` elements (never 0) that begin at element `parameter_offset` of
/// parameter number `parameter` and at element `flat_offset` of the whole flat buffer.
struct Segment {
  std::int64_t parameter = 0;
  std::int64_t parameter_offset = 0;
  std::int64_t flat_offset = 0;
  std::int64_t numel = 0;
  bool operator==(const Segment&) const = default;
};

/// Elements of a rank's shard when `numel` elements are cut into `ranks` equal slices: ceil(numel / ranks). ZeRO stage
/// 3 shards every parameter so.
std::int64_t shard_size(std::int64_t numel, int ranks);

/// Where each of `parts` even runs of `items` things begins, and the end: parts + 1 numbers. The first runs are the
/// longer ones; with more parts than items the last are empty. DeepSpeed's partition_uniform.
std::vector<std::int64_t> partition_uniform(std::int64_t items, std::int64_t parts);

/// The flat layout of one parameter group over the ranks that share it: parameters back to back, zero padding at the
/// end up to a multiple of `alignment` elements a rank, and rank r owns the r-th of the equal slices. This is
/// DeepSpeed's layout for stages 1 and 2 (alignment 2). Any input is fine: empty groups, parameters of no elements,
/// more ranks than elements (padding may then fill several ranks).
class Partition {
 public:
  /// `numels`: elements of each parameter. With `round_robin` the flat order deals the parameters to the ranks in turn:
  /// first those with index = 0 (mod ranks), then 1, ...
  Partition(std::vector<std::int64_t> numels, int ranks, std::int64_t alignment = 2, bool round_robin = false);

  int ranks() const { return ranks_; }
  std::size_t parameters() const { return offsets_.size(); }
  /// Elements of all parameters.
  std::int64_t numel() const { return numel_; }
  /// Elements of the flat buffer, padding included.
  std::int64_t padded() const { return slice_size_ * ranks_; }
  /// Elements of a rank's slice: padded() / ranks().
  std::int64_t slice_size() const { return slice_size_; }
  /// The rank's slice is [slice_begin(rank), slice_begin(rank) + slice_size()) of the flat buffer.
  std::int64_t slice_begin(int rank) const { return slice_size_ * rank; }
  /// Elements of the rank's slice that are padding.
  std::int64_t padding(int rank) const;

  std::int64_t numel_of(std::size_t parameter) const { return numels_.at(parameter); }
  std::int64_t offset_of(std::size_t parameter) const { return offsets_.at(parameter); }
  /// Parameter numbers in flat order.
  const std::vector<std::size_t>& order() const { return order_; }

  /// The pieces of parameters in the rank's slice, in flat order.
  std::vector<Segment> segments(int rank) const;
  /// The pieces of parameters in [begin, end) of the flat buffer, in flat order.
  std::vector<Segment> segments(std::int64_t begin, std::int64_t end) const;
  /// How many elements of [begin, end) of the flat buffer each rank owns: the counts of a bucket's reduce-scatter.
  std::vector<std::int64_t> counts(std::int64_t begin, std::int64_t end) const;

 private:
  std::vector<std::int64_t> numels_;
  int ranks_;
  std::int64_t numel_ = 0;
  std::int64_t slice_size_ = 0;
  std::vector<std::size_t> order_;
  std::vector<std::int64_t> offsets_;  // by parameter number
};

}  // namespace deepspeed::layout
