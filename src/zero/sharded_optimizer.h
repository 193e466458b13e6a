// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "comm/group.h"
#include "layout/placement.h"
#include "optim/update_rule.h"
#include "zero/flat_group.h"

namespace deepspeed::zero {

struct Settings {
  layout::Placement placement;
  base::Dtype working = base::Dtype::f32;       ///< the model's weights
  base::Dtype accumulation = base::Dtype::f32;  ///< the local sum over micro batches
  std::int64_t reduce_bucket = 500'000'000;     ///< elements of one reduction
  bool average = true;                          ///< mean over ranks; false = sum
};

/// The one optimizer of every ZeRO stage: what is replicated and what is sharded is the Placement's choice, and nothing
/// here asks for the stage. Gradients come in parameter by parameter; at the accumulation boundary they are reduced in
/// rank order (so that no owner, stage or bucket changes a bit), measured, clipped, and applied to this rank's part.
class ShardedOptimizer {
 public:
  /// Collective: weights become those of the group's rank 0.
  ShardedOptimizer(std::shared_ptr<comm::Group> data, std::vector<ParameterGroup> groups,
                   std::unique_ptr<optim::UpdateRule> rule, Settings settings);

  /// Adds one gradient of this rank to the local sum. A parameter that isn't this optimizer's, or an undefined
  /// gradient, is left out; a parameter without any gradient up to the boundary counts as zero.
  void accumulate(const at::Tensor& parameter, const at::Tensor& gradient);

  /// Collective: makes the mean over ranks of the local sums, and returns its sum of squares over all parameters, the
  /// same on every rank. It is not finite exactly if some rank's gradient isn't.
  double reduce();
  /// Collective: applies the mean gradient times `factor` (what undoes the loss scale and clips: optim::GradientScale),
  /// and makes the weights whole again.
  void update(float factor);
  /// Forgets the gradients; after update, and instead of it where a step is skipped.
  void clear_gradients();

  const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return groups_; }
  const optim::UpdateRule& rule() const { return *rule_; }
  /// Applied (not skipped) updates.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  comm::Group& group() const { return *data_; }
  /// Collective: makes every rank's working weights follow the masters; after masters were loaded.
  void refresh_working();

 private:
  struct Place {
    FlatGroup* group;
    std::size_t index;
  };
  bool sharded() const { return settings_.placement.optimizer == layout::Spread::sharded; }
  void reduce_group(FlatGroup& group);
  /// The gradient of group.owned(): the reduced mean, or with one rank the local sum itself.
  base::Buffer mean_gradient(const FlatGroup& group) const;
  void gather_working(FlatGroup& group);

  std::shared_ptr<comm::Group> data_;
  std::unique_ptr<optim::UpdateRule> rule_;
  Settings settings_;
  std::vector<std::unique_ptr<FlatGroup>> groups_;
  std::unordered_map<const void*, Place> places_;  // by TensorImpl
  std::int64_t steps_ = 0;
};

}  // namespace deepspeed::zero
