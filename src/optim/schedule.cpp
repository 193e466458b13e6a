// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/log.h"
#include "optim/params.h"

namespace deepspeed::optim {

Schedule::Schedule(std::string name, std::vector<GroupRates> base, std::int64_t iteration, Function function)
    : name_(std::move(name)),
      base_(std::move(base)),
      rates_(base_),
      first_(iteration),
      iteration_(iteration),
      function_(std::move(function)) {
  set(iteration);
}

void Schedule::set(std::int64_t iteration) {
  iteration_ = iteration;
  if (iteration == first_ && first_ != -1) {
    rates_ = base_;
    return;
  }
  for (std::size_t group = 0; group < base_.size(); ++group) rates_[group] = function_(group, iteration);
}

void Schedule::step() {
  set(iteration_ + 1);
}

nlohmann::json Schedule::state() const {
  return {{"last_batch_iteration", iteration_}};
}

void Schedule::load(const nlohmann::json& state) {
  const auto at = state.find("last_batch_iteration");
  if (!state.is_object() || at == state.end() || !at->is_number_integer()) {
    throw base::CheckpointError(
        fmt::format("the learning-rate schedule's state has no integer last_batch_iteration: {}", state.dump()));
  }
  set(at->get<std::int64_t>());
}

namespace {

using nlohmann::json;
using Rates = std::vector<GroupRates>;
using Values = std::vector<double>;

constexpr const char* path = "scheduler.params";

[[noreturn]] void refuse(const std::string& what) {
  throw base::ConfigError(fmt::format("{}: {}", path, what));
}

void check_names(const std::string& type, const Params& params, const std::vector<std::string_view>& known,
                 const std::vector<std::string_view>& required) {
  if (const auto key = params.unknown(known)) {
    refuse(
        fmt::format("{}.__init__() got an unexpected keyword argument '{}' (it takes {})", type, *key, listing(known)));
  }
  for (const std::string_view key : required) {
    if (params.find(key) == nullptr) {
      refuse(fmt::format("{}.__init__() missing 1 required positional argument: '{}'", type, key));
    }
  }
}

/// One value for each group, from a number or a list.
Values per_group(const Params& params, std::string_view key, const Values& fallback, const char* expected) {
  const json* value = params.find(key);
  if (value == nullptr) return fallback;
  const std::size_t groups = fallback.size();
  if (!value->is_array()) return Values(groups, params.number(key, 0));
  if (value->size() != groups) refuse(fmt::format("expected {} {}, got {}", groups, expected, value->size()));
  Values values;
  for (const json& entry : *value) {
    if (!entry.is_number()) params.refuse(key, fmt::format("{} isn't a number", entry.dump()));
    values.push_back(entry.get<double>());
  }
  return values;
}

/// A count of steps; 1e3 is one too.
std::int64_t positive_integer(const Params& params, std::string_view key, std::int64_t fallback) {
  const json* value = params.find(key);
  if (value == nullptr) return fallback;
  const double number = value->is_number() ? value->get<double>() : 0;
  if (!(number >= 1 && number < 9e15 && number == std::floor(number))) {
    refuse(fmt::format("{} must be a positive integer, got {}", key, value->dump()));
  }
  return static_cast<std::int64_t>(number);
}

std::int64_t start_of(const Params& params) {
  const double iteration = params.number("last_batch_iteration", -1);
  if (!(iteration >= -1 && iteration < 9e15 && iteration == std::floor(iteration))) {
    params.refuse("last_batch_iteration", fmt::format("{} isn't an integer >= -1", iteration));
  }
  return static_cast<std::int64_t>(iteration);
}

Values lrs(const Rates& base) {
  Values values;
  for (const GroupRates& rates : base) values.push_back(rates.lr);
  return values;
}

/// The warm-up shared by three schedules: 0 at iteration 0, 1 from `steps` on. It takes two steps at least, since
/// log(1) divides.
struct Warmup {
  std::int64_t steps;
  bool logarithmic;
  std::int64_t given;

  explicit Warmup(const Params& params)
      : steps(std::max<std::int64_t>(2, positive_integer(params, "warmup_num_steps", 1000))),
        logarithmic(true),
        given(positive_integer(params, "warmup_num_steps", 1000)) {
    const std::string type = params.text("warmup_type", "log");
    if (type == "linear") {
      logarithmic = false;
    } else if (type != "log") {
      log::warn_once("Using unknown warmup_type: {}. The increasing function is set to default (log)", type);
    }
  }

  double gamma(std::int64_t i) const {
    if (i >= steps) return 1;
    const auto x = static_cast<double>(i), n = static_cast<double>(steps);
    return logarithmic ? std::log(x + 1) / std::log(n) : x / n;
  }

  /// total_num_steps
  double total(const Params& params) const {
    const double value = params.number("total_num_steps", 0);
    if (value < static_cast<double>(steps)) {
      log::warn_once("total_num_steps {} is less than warmup_num_steps {}", value, given);
    }
    return value;
  }
  /// What is left to decay over.
  double rest(double total) const { return std::max(1.0, total - static_cast<double>(steps)); }
};

Schedule warmup_then(const std::string& type, const Params& params, Rates base, bool decay) {
  std::vector<std::string_view> known{"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type",
                                      "last_batch_iteration"};
  if (decay) known.insert(known.begin(), "total_num_steps");
  check_names(type, params, known,
              decay ? std::vector<std::string_view>{"total_num_steps"} : std::vector<std::string_view>{});
  const Values low = per_group(params, "warmup_min_lr", Values(base.size(), 0.0), "value for min_lr");
  const Values high =
      per_group(params, "warmup_max_lr", decay ? Values(base.size(), 0.001) : lrs(base), "value for max_lr");
  const Warmup warmup(params);
  const double total = decay ? warmup.total(params) : 0;
  const auto function = [=](std::size_t group, std::int64_t i) {
    double gamma = i < 0 ? 0 : warmup.gamma(i);
    if (decay && i >= warmup.steps) gamma = std::max(0.0, (total - static_cast<double>(i)) / warmup.rest(total));
    return GroupRates{low[group] + (high[group] - low[group]) * gamma, base[group].betas};
  };
  return Schedule(type, base, start_of(params), function);
}

Schedule warmup_cosine(const std::string& type, const Params& params, Rates base) {
  check_names(type, params,
              {"total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type",
               "last_batch_iteration"},
              {"total_num_steps"});
  const double start = params.number("warmup_min_ratio", 0), end = params.number("cos_min_ratio", 1e-4);
  const Warmup warmup(params);
  const double total = warmup.total(params);
  const auto function = [=](std::size_t group, std::int64_t i) {
    double ratio = 0;
    if (i >= warmup.steps) {
      const double progress = std::min(1.0, static_cast<double>(i - warmup.steps + 1) / warmup.rest(total));
      ratio = std::max(0.0, end + (1 - end) * (1 + std::cos(std::numbers::pi * progress)) / 2);
    } else if (i >= 0) {
      ratio = start + (1 - start) * warmup.gamma(i);
    }
    return GroupRates{base[group].lr * ratio, base[group].betas};
  };
  return Schedule(type, base, start_of(params), function);
}

struct Cycle {
  double first, second;                ///< lengths of the rising and the falling half in steps
  double first_stairs, second_stairs;  ///< 0 = continuous
  double decay_steps, lr_decay, momentum_decay;

  /// The height in [0, 1] at iteration i of a cycle.
  double height(std::int64_t i) const {
    const double total = first + second, ratio = first / total, position = static_cast<double>(i + 1);
    const double x = 1 + position / total - std::floor(1 + position / total);
    const bool rising = x <= ratio;
    const double stairs = rising ? first_stairs : second_stairs;
    if (stairs > 0) {
      const double within = std::fmod(position, total);
      return std::floor(within <= first ? within * stairs / first : (total - within) * stairs / second) / stairs;
    }
    return rising ? x / ratio : (x - 1) / (ratio - 1);
  }
  bool cycling(std::int64_t i) const { return static_cast<double>(i) < first + second; }
  /// What a decay of this rate has grown to after the cycle; 1 where there is none.
  double grown(std::int64_t i, double rate) const {
    if (decay_steps == 0) return 1;
    return 1 + rate * (static_cast<double>(i) - (first + second) + 1) / decay_steps;
  }
};

Schedule one_cycle(const std::string& type, const Params& params, Rates base) {
  check_names(type, params,
              {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size",
               "cycle_first_stair_count", "cycle_second_stair_count", "decay_step_size", "cycle_momentum",
               "cycle_min_mom", "cycle_max_mom", "decay_mom_rate", "last_batch_iteration"},
              {"cycle_min_lr", "cycle_max_lr"});
  const std::size_t groups = base.size();
  Cycle cycle{};
  cycle.first = params.number("cycle_first_step_size", 2000);
  if (!(cycle.first > 0))
    refuse(fmt::format("cycle_first_step_size must be positive, got {}", json(cycle.first).dump()));
  cycle.second = params.number("cycle_second_step_size", cycle.first);
  if (!(cycle.second >= 0)) {
    refuse(fmt::format("cycle_second_step_size must be non-negative, got {}", json(cycle.second).dump()));
  }
  cycle.first_stairs = params.number("cycle_first_stair_count", 0);
  cycle.second_stairs = params.number("cycle_second_stair_count", cycle.first_stairs);
  cycle.decay_steps = params.number("decay_step_size", 0);
  cycle.lr_decay = params.number("decay_lr_rate", 0);
  cycle.momentum_decay = params.number("decay_mom_rate", 0);
  const Values zeros(groups, 0.0);
  const Values low = per_group(params, "cycle_min_lr", zeros, "value for cycle_min_lr");
  const Values high = per_group(params, "cycle_max_lr", zeros, "value for cycle_max_lr");
  bool momentum = params.flag("cycle_momentum", true);
  const auto has_betas = [](const GroupRates& rates) { return rates.betas.has_value(); };
  if (momentum && !std::all_of(base.begin(), base.end(), has_betas)) {
    log::warn_once(
        "cycle_momentum is disabled because the optimizer does not support momentum, no betas attribute in defaults");
    momentum = false;
  }
  const Values min_momentum = per_group(params, "cycle_min_mom", Values(groups, 0.8), "value for cycle_min_mom");
  const Values max_momentum = per_group(params, "cycle_max_mom", Values(groups, 0.9), "value for cycle_max_mom");

  const auto function = [=](std::size_t group, std::int64_t i) {
    GroupRates rates = base[group];
    double beta = min_momentum[group];
    if (i < 0) {
      rates.lr = low[group];
    } else if (cycle.cycling(i)) {
      const double height = cycle.height(i);
      rates.lr = low[group] + (high[group] - low[group]) * height;
      beta = max_momentum[group] - (max_momentum[group] - min_momentum[group]) * height;
    } else {
      rates.lr = low[group] / cycle.grown(i, cycle.lr_decay);
      beta = max_momentum[group] * cycle.grown(i, cycle.momentum_decay);
    }
    if (momentum) rates.betas = {beta, 0.99};
    return rates;
  };
  return Schedule(type, base, start_of(params), function);
}

Schedule range_test(const std::string& type, const Params& params, Rates base) {
  check_names(type, params,
              {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase",
               "last_batch_iteration"},
              {});
  const Values low = per_group(params, "lr_range_test_min_lr", Values(base.size(), 1e-3), "lr_range_test_min_lr");
  const auto size = static_cast<double>(positive_integer(params, "lr_range_test_step_size", 2000));
  const double rate = params.number("lr_range_test_step_rate", 1);
  const bool staircase = params.flag("lr_range_test_staircase", false);
  const auto function = [=](std::size_t group, std::int64_t i) {
    double interval = static_cast<double>(i + 1) / size;
    if (staircase) interval = std::floor(interval);
    return GroupRates{low[group] * (1 + rate * interval), base[group].betas};
  };
  return Schedule(type, base, start_of(params), function);
}

}  // namespace

Schedule make_schedule(std::string_view type, const json& values, std::vector<GroupRates> base) {
  const Params params(values, path);
  const std::string name(type);
  if (name == "WarmupLR") return warmup_then(name, params, std::move(base), false);
  if (name == "WarmupDecayLR") return warmup_then(name, params, std::move(base), true);
  if (name == "WarmupCosineLR") return warmup_cosine(name, params, std::move(base));
  if (name == "OneCycle") return one_cycle(name, params, std::move(base));
  if (name == "LRRangeTest") return range_test(name, params, std::move(base));
  throw base::ConfigError(fmt::format(
      "scheduler.type: {} isn't a schedule; there are WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest",
      name));
}

}  // namespace deepspeed::optim
