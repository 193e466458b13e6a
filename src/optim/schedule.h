// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepspeed::optim {

/// What a schedule sets for one parameter group.
struct GroupRates {
  double lr = 0;
  std::optional<std::pair<double, double>> betas;  ///< none: the optimizer has no betas
};

/// A learning-rate schedule. It is stepped once after each optimizer step that was applied; rates() are those of the
/// next optimizer step. A pure function of the iteration: what load() restores goes on as if never stopped.
class Schedule {
 public:
  using Function = std::function<GroupRates(std::size_t group, std::int64_t iteration)>;
  /// `base` are the optimizer's own rates. They hold until the first step where `iteration` (last_batch_iteration)
  /// isn't -1, else the schedule's value at -1 does.
  Schedule(std::string name, std::vector<GroupRates> base, std::int64_t iteration, Function function);

  const std::string& name() const { return name_; }
  void step();
  double lr(std::size_t group = 0) const { return rates_.at(group).lr; }
  const std::vector<GroupRates>& rates() const { return rates_; }
  std::int64_t iteration() const { return iteration_; }

  /// {"last_batch_iteration": n}
  nlohmann::json state() const;
  /// Throws CheckpointError if it isn't such a state.
  void load(const nlohmann::json& state);

 private:
  void set(std::int64_t iteration);

  std::string name_;
  std::vector<GroupRates> base_;
  std::vector<GroupRates> rates_;
  std::int64_t first_;
  std::int64_t iteration_;
  Function function_;
};

/// The schedule that a config names: scheduler.type (WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest)
/// and scheduler.params (null = {}) over the optimizer's parameter groups. OneCycle and LRRangeTest are Smith's (2017).
/// Throws ConfigError: an unknown type or parameter, a missing one, a value out of range, a list that has not one value
/// for each group.
Schedule make_schedule(std::string_view type, const nlohmann::json& params, std::vector<GroupRates> base);

}  // namespace deepspeed::optim
