// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profile/append_file.h"

namespace deepspeed::profile {

/// What metrics.jsonl says of an optimizer step, in this order. Counts of samples, tokens and time are over all ranks.
struct StepMetrics {
  std::int64_t step = 0;  ///< optimizer steps so far, this one included
  double loss = 0.0;      ///< mean over the global batch
  double lr = 0.0;
  std::optional<double> grad_norm = std::nullopt;  ///< before clipping; null where the engine didn't compute it
  double loss_scale = 1.0;
  bool skipped = false;                ///< the update was left out because a gradient overflowed
  std::int64_t tokens = 0;             ///< trained on so far
  double tokens_per_s = 0.0;           ///< of this step
  double step_ms = 0.0;                ///< wall time
  std::int64_t peak_host_bytes = 0;    ///< largest of all ranks
  std::int64_t peak_device_bytes = 0;  ///< largest of all ranks
  /// Most bytes of each category (base::ledger) during this step, each the largest of all ranks.
  std::vector<std::pair<std::string_view, std::int64_t>> memory = {};
};

/// metrics.jsonl: one object a line, each written in one piece. Numbers have the shortest digits that give back the
/// same double; what isn't finite (NaN, infinities), which JSON can't say, is null.
class MetricsWriter {
 public:
  /// A fresh run begins the file anew; a resumed one keeps the lines up to step `resumed_at` and drops later ones and a
  /// half-written last line. Throws IoError.
  explicit MetricsWriter(const std::string& path, std::optional<std::int64_t> resumed_at = std::nullopt);

  void write(const StepMetrics& metrics);
  /// A line of its own: {"step": step, NAME: value, ...}, for an evaluation say.
  void write(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& values);

 private:
  AppendFile file_;
};

}  // namespace deepspeed::profile
