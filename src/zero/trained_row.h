// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "layout/placement.h"
#include "optim/update_rule.h"
#include "zero/arena.h"
#include "zero/row.h"

namespace deepspeed::zero {

/// What training adds to a row: masters and optimizer states of the part that this rank updates, and the local sum of
/// gradients on its way to the mean.
class TrainedRow {
 public:
  /// Masters start from the working weights, as DeepSpeed's do; in fp32 they are the working weights. `hyper`: which
  /// hyper-parameters. `table`: the row is one parameter of which a step reaches few rows.
  TrainedRow(std::shared_ptr<Row> row, std::size_t hyper, const layout::Placement& placement, base::Dtype accumulation,
             const std::vector<optim::StateSpec>& states, Arena gradients, bool table = false);
  ~TrainedRow();
  TrainedRow(const TrainedRow&) = delete;
  TrainedRow& operator=(const TrainedRow&) = delete;

  Row& row() const { return *row_; }
  const std::vector<NamedParameter>& parameters() const { return row_->parameters(); }
  const layout::Partition& partition() const { return row_->partition(); }
  std::size_t hyper() const { return hyper_; }

  /// The part of the row whose masters, states and mean gradient live on this rank, without padding.
  Range owned() const { return owned_; }
  /// The working weights of owned().
  base::Buffer owned_working() const;
  /// fp32 masters of owned().
  base::Buffer master() const;
  bool has_own_master() const { return master_.defined(); }
  std::vector<at::Tensor> states;  ///< [owned], of the types that the rule declares

  bool table() const { return table_; }
  /// Elements of a row of the table.
  std::int64_t table_width() const;

  /// Adds one parameter's gradient of this rank, dense or sparse, to the local row.
  void accumulate(std::size_t parameter, const at::Tensor& gradient);
  /// The local row of gradients without padding, zero where a parameter got none; made if there was none at all.
  base::Buffer local_gradient();
  /// The rows of the table that have another local gradient than zero, ascending.
  std::vector<std::int64_t> table_rows() const;
  /// Of each parameter whether this rank gave it a gradient since forget_seen().
  const std::vector<std::uint8_t>& seen() const { return seen_; }
  void forget_seen();
  /// Forgets the local row; `free` gives its memory back.
  void drop_local_gradient(bool free);

 private:
  void make_local();
  base::Buffer place_of(std::size_t parameter) const;
  void accumulate_rows(std::size_t parameter, const at::Tensor& gradient);
  std::shared_ptr<Row> row_;
  std::size_t hyper_;
  bool optimizer_sharded_;
  bool table_;
  base::Dtype accumulation_;
  Arena arena_;
  Range owned_;
  at::Tensor master_;          // undefined where the weights are fp32 and serve
  at::Tensor local_;           // [padded] local sum of gradients; undefined while there is none
  std::vector<char> touched_;  // which parameters have a value in local_
  std::vector<std::uint8_t> seen_;
};

}  // namespace deepspeed::zero
