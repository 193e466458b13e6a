// SPDX-License-Identifier: Apache-2.0
#include "optim/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace deepspeed::optim {

LossScaler::LossScaler(double scale) : dynamic_(false), scale_(scale), hysteresis_(1) {}

LossScaler::LossScaler(const DynamicScale& dynamic)
    : dynamic_(true), rule_(dynamic), scale_(dynamic.initial), hysteresis_(dynamic.hysteresis) {}

std::string LossScaler::update(bool overflow) {
  const std::string skipping = fmt::format("[deepspeed] OVERFLOW! Rank {} Skipping step.", log::rank());
  if (!dynamic_) {
    return overflow ? fmt::format("{} The loss scale stays at {}: it is static", skipping, scale_) : std::string();
  }
  std::string told;
  if (overflow) {
    if (rule_.hysteresis == 1 || hysteresis_ == 1) {
      if (scale_ == rule_.minimum) {
        throw base::DivergedError(
            "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
      }
      const double before = scale_;
      scale_ = std::max(scale_ / 2, rule_.minimum);
      told = fmt::format("{} Attempted loss scale: {:.0f}, reducing to {:.0f}", skipping, before, scale_);
    } else {
      told = fmt::format("{} Attempted loss scale: {:.0f}, but hysteresis is {}. Reducing hysteresis to {}", skipping,
                         scale_, hysteresis_, hysteresis_ - 1);
      --hysteresis_;
    }
    last_overflow_ = iteration_;
  } else {
    if (rule_.consecutive && hysteresis_ != rule_.hysteresis) {
      hysteresis_ = rule_.hysteresis;
      told = fmt::format("Consecutive hysteresis is enabled. Restoring hysteresis to {}", hysteresis_);
    }
    const std::int64_t good = iteration_ - last_overflow_ - 1;
    if (good > 0 && good % rule_.window == 0) {
      hysteresis_ = rule_.hysteresis;
      scale_ *= 2;
    }
  }
  ++iteration_;
  return told;
}

nlohmann::json LossScaler::state() const {
  if (!dynamic_) return {{"scale", scale_}};
  return {{"scale", scale_},
          {"hysteresis", hysteresis_},
          {"iteration", iteration_},
          {"last_overflow_iteration", last_overflow_}};
}

void LossScaler::load(const nlohmann::json& state) {
  try {
    const double scale = state.at("scale").get<double>();
    if (dynamic_ && state.contains("iteration")) {
      hysteresis_ = state.at("hysteresis").get<std::int64_t>();
      iteration_ = state.at("iteration").get<std::int64_t>();
      last_overflow_ = state.at("last_overflow_iteration").get<std::int64_t>();
    }
    // A config that now fixes the scale wins over what the checkpoint had.
    if (dynamic_) scale_ = scale;
  } catch (const nlohmann::json::exception& error) {
    throw base::CheckpointError(fmt::format("the loss scaler's state isn't whole: {}", error.what()));
  }
}

GradientScale gradient_scale(double sum_squares, double loss_scale, double clipping) {
  GradientScale result;
  result.norm = static_cast<float>(std::sqrt(sum_squares) / loss_scale);
  double divisor = loss_scale;
  if (clipping > 0) divisor *= std::max(1.0, (static_cast<double>(result.norm) + 1e-6) / clipping);
  result.factor = static_cast<float>(1 / divisor);
  return result;
}

}  // namespace deepspeed::optim
