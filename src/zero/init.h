// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "comm/group.h"
#include "layout/rows.h"
#include "nn/unit.h"
#include "zero/arena.h"

namespace deepspeed::zero {

/// While one exists, a model is made already sharded: a unit's parameters are cut over the ranks as soon as the next
/// unit begins, so that at most one unit is whole at a time (DeepSpeed's zero.Init; Rajbhandari et al. 2021,
/// "ZeRO-Infinity", section 7.2). Their values, those of rank 0, must be there when a unit's constructor returns; later
/// they can be changed inside a GatheredParameters. Parameters outside of units stay whole.
///     std::shared_ptr<Model> model;
///     {
///       zero::Init sharded(group, {.type = base::Dtype::bf16});
///       model = std::make_shared<Model>();
///     }
///     auto engine = deepspeed::initialize(model, config, group);
class Init : private nn::UnitObserver {
 public:
  struct Options {
    base::Dtype type = base::Dtype::f32;  ///< of the weights from now on
    layout::Persistence persistence;      ///< small parameters stay whole
    bool enabled = true;
  };
  /// All ranks make the same units in the same order.
  Init(std::shared_ptr<comm::Group> group, const Options& options);
  /// Collective: shards the last unit. Where it can't, the program can't go on either: errors are logged.
  ~Init() override;
  /// Collective: the end of the scope, for a caller that wants its errors.
  void close();

 private:
  void unit_begins(nn::Unit& unit) override;
  void unit_ends(nn::Unit& unit) override;
  void shard_last();
  std::shared_ptr<comm::Group> group_;
  Options options_;
  Arena arena_{base::ledger::Category::gathered};
  nn::Unit* last_ = nullptr;
  bool closed_ = false;
};

}  // namespace deepspeed::zero
