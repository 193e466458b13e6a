// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comm/group.h"
#include "layout/placement.h"
#include "layout/rows.h"
#include "nn/unit.h"
#include "zero/row.h"
#include "zero/sharded_optimizer.h"

namespace deepspeed::zero {

/// How a model is cut into rows.
struct RowOptions {
  layout::Placement placement;
  base::Dtype working = base::Dtype::f32;  ///< type of the weights
  layout::Persistence persistence;
  bool round_robin = false;
  /// Which hyper-parameters train a parameter, by TensorImpl; what isn't here has number 0.
  std::unordered_map<const void*, std::size_t> hypers;
  /// Tables [rows, ...] of which a step reaches few rows, by TensorImpl.
  std::unordered_set<const void*> looked_up;
};

/// A model as rows.
struct ModelRows {
  std::vector<ModelRow> rows;
  std::unordered_map<const nn::Unit*, std::vector<std::shared_ptr<Row>>> of_unit;  ///< what each unit's runs need
};

/// Collective: moves all parameters of the model into rows (layout::plan_rows), with the values of the group's rank 0.
/// Rows that zero::Init made are taken over where they fit. Rows that may be released live as long as their units.
ModelRows make_rows(const torch::nn::Module& model, const std::shared_ptr<comm::Group>& group,
                    const RowOptions& options);

}  // namespace deepspeed::zero
