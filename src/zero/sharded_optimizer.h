// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/group.h"
#include "layout/placement.h"
#include "optim/update_rule.h"
#include "zero/arena.h"
#include "zero/gatherer.h"
#include "zero/trained_row.h"

namespace deepspeed::zero {

struct Settings {
  layout::Placement placement;
  base::Dtype accumulation = base::Dtype::f32;  ///< the sum over micro batches
  /// Gradients travel in this type; nullopt: as they were summed up.
  std::optional<base::Dtype> communication;
  /// Gradients are multiplied by `before`, summed over the ranks in fp32, and multiplied by `after`.
  float before = 1;
  float after = 1;
  std::int64_t reduce_bucket = 500'000'000;  ///< elements of one reduction
  std::int64_t gather_bucket = 500'000'000;  ///< elements of weights on their way at once after an update
  std::int64_t sub_group = 1'000'000'000;    ///< elements of one tile of the update
  bool overlap = true;                       ///< reduce a row while backward goes on with the next
  /// Every backward's gradients are reduced at once, also where they are replicated: then all placements add up the
  /// same numbers in the same order.
  bool reduce_each_backward = false;
  Gatherer::Settings gatherer;
};

/// A row and which hyper-parameters train it; none: it is frozen.
struct ModelRow {
  std::shared_ptr<Row> row;
  std::optional<std::size_t> hyper;
  /// One parameter of which a step reaches few rows: the ranks exchange those rows' gradients where that is less.
  bool table = false;
};

/// The one optimizer of every ZeRO stage: what is replicated and what is sharded is the Placement's choice, and nothing
/// here asks for the stage. The model is a list of flat rows. Gradients come in parameter by parameter; a row that is
/// complete is reduced while backward goes on, always in the same order of rows, and summed in rank order (so that no
/// owner, bucket or timing changes a bit). At the accumulation boundary they are measured, clipped, and applied to this
/// rank's part.
class ShardedOptimizer {
 public:
  /// Collective. Gradients of the last row are expected first in backward.
  ShardedOptimizer(std::shared_ptr<comm::Group> data, std::vector<ModelRow> rows, std::vector<optim::Hyper> hypers,
                   std::unique_ptr<optim::UpdateRule> rule, const Settings& settings);
  /// Waits for what is under way.
  ~ShardedOptimizer();

  /// Before each backward. `boundary`: it is the last one before an update. Where gradients are sharded every
  /// backward's are reduced, else only the boundary's. `sync` false: they stay local until a later backward.
  void begin_backward(bool boundary, bool sync = true);
  /// Adds one gradient of this rank, dense or sparse. A parameter that isn't trained here, or an undefined gradient, is
  /// left out; a parameter without any gradient counts as zero. Throws std::logic_error naming the parameter where its
  /// row is being reduced already, so that no gradient is lost.
  void accumulate(const at::Tensor& parameter, const at::Tensor& gradient);
  /// No more gradients come for this row in this backward.
  void row_done(const TrainedRow& row);
  /// Collective, after each backward: no more gradients come for any row.
  void end_backward();

  /// Collective, at the boundary: full names of the parameters that no rank gave a gradient since the last update; not
  /// of those that were frozen meanwhile.
  std::vector<std::string> without_gradient();
  /// Collective, at the boundary: finishes the mean over ranks and returns its sum of squares over all parameters, the
  /// same on every rank. It is not finite exactly if some rank's gradient isn't.
  double reduce();
  /// Collective: applies the mean gradient times `factor` (what undoes the loss scale and clips: optim::GradientScale),
  /// and makes the weights whole again where they are to be.
  void update(float factor);
  /// Forgets the gradients; after update, and instead of it where a step is skipped.
  void clear_gradients();

  const std::vector<std::unique_ptr<TrainedRow>>& rows() const { return rows_; }
  /// Rows of weights that nobody trains.
  const std::vector<std::shared_ptr<Row>>& frozen_rows() const { return frozen_; }
  /// The trained row that holds a parameter; nullptr if none does.
  TrainedRow* trained_row_of(const at::Tensor& parameter) const;
  /// After the boundary's backward and before clear_gradients(): the mean gradient of the part of the row that this
  /// rank owns, not unscaled; no elements where it wasn't formed yet.
  base::Buffer mean_gradient(const TrainedRow& row);

  std::vector<optim::Hyper>& hypers() { return hypers_; }
  const optim::UpdateRule& rule() const { return *rule_; }
  Gatherer& gatherer() { return *gatherer_; }
  /// Applied (not skipped) updates.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  comm::Group& group() const { return *data_; }
  /// Collective: makes every rank's whole rows follow the slices; after slices were changed.
  void refresh_whole_rows();

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
    std::vector<std::int64_t> table_rows;  ///< of a table: its rows that have a gradient here
    std::vector<std::int64_t> counts;      ///< and how many there are on each rank; empty for other rows
    std::vector<std::int64_t> numbers;     ///< table rows of all ranks, on their way
    at::Tensor sent;                       ///< what travels, where it isn't the local row itself
    at::Tensor incoming;                   ///< fp32 [owned]: what the reduction writes
    at::Tensor sum;  ///< [owned], in the accumulation's type: the mean over ranks, summed over reductions
    bool has_sum = false;
  };
  bool optimizer_sharded() const { return settings_.placement.optimizer == layout::Spread::sharded; }
  /// One rank that keeps its gradients whole: the local sum is the mean.
  bool local_serves() const { return data_->size() == 1 && !each_is_reduced(); }
  bool each_is_reduced() const;
  void launch_ready();
  void launch(std::size_t row);
  base::Buffer on_its_way(std::size_t row);
  at::Tensor place_for_mean(std::size_t row);
  void reduce_whole(std::size_t row);
  bool rows_are_less(std::size_t row) const;
  void exchange_rows(std::size_t row);
  void wait_for(Reduction& reduction);
  void finish(std::size_t row);
  base::Buffer mean_gradient(std::size_t row) const;
  void update_row(std::size_t row, float factor);

  std::shared_ptr<comm::Group> data_;
  std::vector<optim::Hyper> hypers_;
  std::unique_ptr<optim::UpdateRule> rule_;
  Settings settings_;
  Arena buckets_{base::ledger::Category::buckets};
  Arena gradients_{base::ledger::Category::gradients};
  Arena means_;  ///< of the slices that this rank owns, for Reduction::sum
  std::vector<std::unique_ptr<TrainedRow>> rows_;
  std::vector<std::shared_ptr<Row>> frozen_;
  std::unique_ptr<Gatherer> gatherer_;
  std::vector<Reduction> reductions_;
  std::unordered_map<const void*, Place> places_;  // by TensorImpl
  bool reducing_ = false;                          ///< this backward's gradients are to be reduced
  std::size_t launched_ = 0;                       ///< rows launched in this backward, from the last row backwards
  std::deque<std::size_t> in_flight_;
  bool gathering_ = true;  ///< some rank may want rows still
  std::int64_t steps_ = 0;
};

}  // namespace deepspeed::zero
