// SPDX-License-Identifier: Apache-2.0
#include "profile/throughput.h"

#include <fmt/format.h>

#include <cmath>

namespace deepspeed::profile {

void Throughput::add(std::int64_t tokens, double seconds) {
  if (steps_.size() == 1 && !warm_) {
    warm_ = true;
    steps_.clear();
  }
  steps_.push_back({tokens, seconds});
  if (steps_.size() > window_) steps_.pop_front();
}

double Throughput::tokens_per_second() const {
  double tokens = 0.0;
  double seconds = 0.0;
  for (const Step& step : steps_) {
    tokens += static_cast<double>(step.tokens);
    seconds += step.seconds;
  }
  return seconds > 0.0 ? tokens / seconds : 0.0;
}

double Throughput::seconds_per_step() const {
  double seconds = 0.0;
  for (const Step& step : steps_) seconds += step.seconds;
  return steps_.empty() ? 0.0 : seconds / static_cast<double>(steps_.size());
}

double model_flops_utilization(double tokens_per_second, double flops_per_token, double peak_flops_per_second) {
  return tokens_per_second * flops_per_token / peak_flops_per_second;
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0.0) || seconds > 1e11) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t minutes = whole / 60;
  const std::int64_t hours = minutes / 60;
  if (whole < 60) return fmt::format("{}s", whole);
  if (hours < 1) return fmt::format("{}m{:02}s", minutes, whole % 60);
  if (hours < 24) return fmt::format("{}h{:02}m", hours, minutes % 60);
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::string format_count(double number) {
  static constexpr const char* units[] = {"", "k", "M", "G", "T", "P"};
  if (!std::isfinite(number)) return "?";
  std::size_t unit = 0;
  // From 999.5 on, three digits would round up to a thousand of this unit.
  for (; std::abs(number) >= 999.5 && unit + 1 < std::size(units); ++unit) number /= 1000.0;
  const double size = std::abs(number);
  const int decimals = unit == 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", number, decimals, units[unit]);
}

}  // namespace deepspeed::profile
