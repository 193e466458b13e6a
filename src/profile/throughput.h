// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace deepspeed::profile {

/// Speed over the last steps. The first step of a run, which pays for start-up, counts only until a second is there.
class Throughput {
 public:
  explicit Throughput(std::size_t window = 20) : window_(window) {}
  /// A step that trained on `tokens` (all ranks) and took `seconds` of wall time.
  void add(std::int64_t tokens, double seconds);
  /// 0 until a step is there.
  double tokens_per_second() const;
  double seconds_per_step() const;
  /// Time that `steps` more will take at this speed.
  double remaining_seconds(std::int64_t steps) const { return seconds_per_step() * static_cast<double>(steps); }

 private:
  struct Step {
    std::int64_t tokens;
    double seconds;
  };
  std::size_t window_;
  bool warm_ = false;
  std::deque<Step> steps_;
};

/// Model FLOPs utilization (A. Chowdhery et al., "PaLM", 2022, appendix B): the part of the peak that the model's own
/// arithmetic takes. `flops_per_token` is forward and backward; the peak is of all devices together.
double model_flops_utilization(double tokens_per_second, double flops_per_token, double peak_flops_per_second);

/// "45s", "3m20s", "1h02m", "2d03h"; "?" for what isn't finite or is negative.
std::string format_duration(double seconds);
/// Three significant digits with k, M, G: "950", "5.24k", "465k", "1.20M".
std::string format_count(double number);

}  // namespace deepspeed::profile
