// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace deepspeed::comm {

using base::Buffer;
using base::ConstBuffer;

enum class ReduceOp { sum, max, min };

/// What an asynchronous collective gives back: a future. Copyable; the buffers handed to the collective must stay alive
/// and untouched until `wait` returned.
class Work {
 public:
  struct State;
  Work() = default;
  explicit Work(std::shared_ptr<State> state);
  /// Blocks until the collective is done; throws what it threw. A default-made Work is done.
  void wait();
  bool done() const;

 private:
  std::shared_ptr<State> state_;
};

/// A communicator: asynchronous collectives on typed buffers, the same call in the same order on every rank (FIFO in a
/// group). Errors: CommError naming the collective and the rank.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Name for messages: "world", "data", ...
  virtual const std::string& name() const = 0;

  /// In place, any dtype; 16-bit sums are formed in fp32 and rounded once. The order of summation is the library's.
  virtual Work all_reduce(Buffer buffer, ReduceOp op = ReduceOp::sum) = 0;
  /// `input`: size() slices of output.numel elements; rank r gets the reduction of slice r.
  virtual Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op = ReduceOp::sum) = 0;
  /// The deterministic reduction: slices are exchanged, then summed in rank order in fp32 and multiplied by `scale`, so
  /// that no bucket, owner or stage changes a bit. Slice r is `counts[r]` elements of `input` (back to back, any sizes,
  /// zero too); `output` (fp32, counts[rank()] elements) receives the sum, or is added to when `accumulate`.
  virtual Work ordered_reduce_scatter(ConstBuffer input, const std::vector<std::int64_t>& counts, Buffer output,
                                      float scale = 1.0F, bool accumulate = false) = 0;
  /// `output`: size() slices; slice r is counts[r] elements from rank r (any sizes). `input` may be the own slice of
  /// `output` (in place).
  virtual Work all_gather(ConstBuffer input, const std::vector<std::int64_t>& counts, Buffer output) = 0;
  virtual Work broadcast(Buffer buffer, int root) = 0;
  /// Equal slices: slice r of `input` goes to rank r.
  virtual Work all_to_all(ConstBuffer input, Buffer output) = 0;
  virtual Work send(ConstBuffer buffer, int to, int tag) = 0;
  virtual Work receive(Buffer buffer, int from, int tag) = 0;
  virtual Work barrier() = 0;
  /// A new group of the ranks that give the same color, ordered by key. Collective.
  virtual std::shared_ptr<Group> split(int color, int key, const std::string& name) = 0;

  // Small blocking helpers on host values, built on the above.
  std::vector<std::byte> broadcast_bytes(std::vector<std::byte> bytes, int root);
  std::string broadcast_text(const std::string& text, int root);
  /// The texts of all ranks, in rank order, on every rank.
  std::vector<std::string> all_gather_text(const std::string& text);
  double all_reduce_value(double value, ReduceOp op = ReduceOp::sum);
  std::int64_t all_reduce_value(std::int64_t value, ReduceOp op = ReduceOp::sum);
  /// True on every rank if it is true on any.
  bool any(bool value);
};

/// A group of this rank alone, with no MPI.
std::shared_ptr<Group> self_group();

}  // namespace deepspeed::comm
