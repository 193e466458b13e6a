// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "zero/row.h"

namespace deepspeed::zero {

/// While one exists the parameters are whole, wherever they live: for looking at weights, and for changing them by
/// hand.
///     {
///       zero::GatheredParameters whole({model->embedding}, 0);
///       if (rank == 0) model->embedding.fill_(1);
///       whole.close();
///     }
/// Collective: all ranks make and close the same ones in the same order. They may overlap and nest; a parameter that no
/// engine and no zero::Init holds is left alone.
class GatheredParameters {
 public:
  /// `modifier_rank`: whose changes become everybody's at the end, masters too; none: nothing may be changed.
  explicit GatheredParameters(const std::vector<at::Tensor>& parameters, std::optional<int> modifier_rank = {},
                              bool enabled = true);
  /// Closes; what close() would throw is logged. While an exception is on its way nothing is exchanged: weights that
  /// were sharded are as before.
  ~GatheredParameters();
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

  /// Collective: the end of the scope. Throws std::runtime_error if parameters were changed with no modifier_rank.
  void close();

 private:
  void let_go();
  std::vector<std::shared_ptr<Row>> rows_;
  std::vector<std::pair<at::Tensor, std::uint32_t>> versions_;
  std::optional<int> modifier_rank_;
  int exceptions_;
};

}  // namespace deepspeed::zero
