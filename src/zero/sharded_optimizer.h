// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
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
  base::Dtype accumulation = base::Dtype::f32;  ///< the sum over micro batches
  std::int64_t reduce_bucket = 500'000'000;     ///< elements of one reduction
  bool overlap = true;                          ///< reduce a row while backward goes on with the next
};

/// The one optimizer of every ZeRO stage: what is replicated and what is sharded is the Placement's choice, and nothing
/// here asks for the stage. The model is a list of flat rows, one a unit and one for the root. Gradients come in
/// parameter by parameter; a row that is complete is reduced while backward goes on, always in the same order of rows,
/// and summed in rank order (so that no owner, bucket or timing changes a bit). At the accumulation boundary they are
/// measured, clipped, and applied to this rank's part.
class ShardedOptimizer {
 public:
  /// Collective: weights become those of the group's rank 0.
  ShardedOptimizer(std::shared_ptr<comm::Group> data, std::vector<ParameterGroup> rows,
                   std::vector<optim::Hyper> hypers, std::unique_ptr<optim::UpdateRule> rule, Settings settings);
  ~ShardedOptimizer();

  /// Before each backward. `boundary`: it is the last one before an update. Where gradients are sharded every
  /// backward's are reduced, else only the boundary's.
  void begin_backward(bool boundary);
  /// Adds one gradient of this rank. A parameter that isn't this optimizer's, or an undefined gradient, is left out; a
  /// parameter without any gradient counts as zero. Throws std::logic_error naming the parameter where its row is being
  /// reduced already, so that no gradient is lost.
  void accumulate(const at::Tensor& parameter, const at::Tensor& gradient);
  /// No more gradients come for this row in this backward.
  void row_done(const FlatGroup& row);
  /// Collective, after each backward: no more gradients come for any row.
  void end_backward();

  /// Collective, at the boundary: finishes the mean over ranks and returns its sum of squares over all parameters, the
  /// same on every rank. It is not finite exactly if some rank's gradient isn't.
  double reduce();
  /// Collective: applies the mean gradient times `factor` (what undoes the loss scale and clips: optim::GradientScale),
  /// and makes the weights whole again where they are to be.
  void update(float factor);
  /// Forgets the gradients; after update, and instead of it where a step is skipped.
  void clear_gradients();

  const std::vector<std::unique_ptr<FlatGroup>>& rows() const { return rows_; }
  /// The row that holds a parameter; nullptr if none does.
  FlatGroup* row_of(const at::Tensor& parameter) const;
  std::vector<optim::Hyper>& hypers() { return hypers_; }
  const optim::UpdateRule& rule() const { return *rule_; }
  /// Applied (not skipped) updates.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  comm::Group& group() const { return *data_; }
  /// Collective: makes every rank's whole rows follow the slices; after slices were loaded.
  void refresh_whole_rows();
  /// Collective: brings a row here, for its parameters to be used. All ranks must gather the same rows in the same
  /// order; where they don't, the next reduce() throws CommError before anything is updated with what came of it.
  void gather(FlatGroup& row);

 private:
  struct Place {
    std::size_t row;
    std::size_t parameter;
  };
  /// The gradient of one row on its way: local sums of all ranks to the mean.
  struct Reduction {
    bool ready = false;     ///< no more local gradients come
    bool launched = false;  ///< in this backward
    std::vector<comm::Work> pending;
    at::Tensor incoming;  ///< fp32 [owned]: what the reduction writes
    at::Tensor sum;       ///< [owned]: over micro batches, where gradients are sharded
    bool has_sum = false;
  };
  bool gradients_sharded() const { return settings_.placement.gradients == layout::Spread::sharded; }
  bool optimizer_sharded() const { return settings_.placement.optimizer == layout::Spread::sharded; }
  /// One rank that keeps its gradients whole: the local sum is the mean.
  bool local_serves() const { return data_->size() == 1 && !gradients_sharded(); }
  void check_same_gathers();
  void launch_ready();
  void launch(std::size_t row);
  void finish(std::size_t row);
  base::Buffer mean_gradient(std::size_t row);

  std::shared_ptr<comm::Group> data_;
  std::vector<optim::Hyper> hypers_;
  std::unique_ptr<optim::UpdateRule> rule_;
  Settings settings_;
  std::vector<std::unique_ptr<FlatGroup>> rows_;
  std::vector<Reduction> reductions_;
  std::unordered_map<const void*, Place> places_;  // by TensorImpl
  bool reducing_ = false;                          ///< this backward's gradients are to be reduced
  std::size_t launched_ = 0;                       ///< rows launched in this backward, from the last row backwards
  std::deque<std::size_t> in_flight_;
  std::uint64_t gathers_ = 0;  ///< a hash of the rows gathered since the last reduce, in their order
  std::int64_t steps_ = 0;
};

}  // namespace deepspeed::zero
