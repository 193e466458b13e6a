// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"

namespace deepspeed::profile {

/// What a progress line says; what isn't known is left out.
struct ProgressState {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;  ///< 0: not known
  double loss = 0.0;
  std::optional<double> validation_loss = std::nullopt;
  std::optional<double> lr = std::nullopt;
  double tokens_per_s = 0.0;
  std::optional<double> utilization = std::nullopt;  ///< MFU, 0 to 1
  std::optional<double> remaining_s = std::nullopt;
  std::int64_t host_bytes = 0;
  std::int64_t device_bytes = 0;
};

/// "step 120/500  loss 2.8123  12.3k tok/s  MFU 41.2%  ETA 3m20s  host 1.2 GiB"
std::string format_progress(const ProgressState& state);

struct ProgressOptions {
  enum class Mode { automatic, live, plain };
  Mode mode = Mode::automatic;
  std::int64_t interval = 10;  ///< steps from one plain line to the next (steps_per_print); 0: no plain lines
  int descriptor = 2;          ///< where the live line goes
  double seconds_between_draws = 0.1;
};

/// The progress of a run, on rank 0. On a terminal (stderr itself, or, since mpirun hands a rank's stderr on through a
/// pipe, that of a parent which is mpirun; TERM=dumb is none) one line, rewritten in place, which log messages push
/// upwards; else, and in the log file, a plain line every `interval` steps. NO_COLOR (https://no-color.org) leaves the
/// colours out. At most one object at a time.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  /// Leaves the last line standing.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool live() const { return static_cast<bool>(terminal_); }
  void update(const ProgressState& state);

 private:
  static void before_message();
  static void after_message();
  void draw();
  void put(std::string_view text) const;

  ProgressOptions options_;
  io::Descriptor terminal_;  ///< open where there is a live line; knows the width
  bool color_;
  std::mutex mutex_;
  std::string line_;  ///< the newest, drawn or not
  std::optional<std::chrono::steady_clock::time_point> drawn_;
};

}  // namespace deepspeed::profile
