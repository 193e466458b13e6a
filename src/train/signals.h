// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deepspeed::train {

/// Stop requests. SIGUSR1 is the documented preemption signal, and SIGTERM and SIGINT mean the same: finish the step,
/// save a checkpoint, exit with code 75. A second one ends the process at once. At the first, rank 0 names the last
/// good checkpoint at once, since after a SIGTERM to mpirun only about a second is left.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// True from the first signal on, on this rank.
  bool requested() const;
  /// "SIGUSR1", "SIGTERM", "SIGINT" or "".
  std::string name() const;
  /// What the handler writes to stderr; kept ready, since a handler may not format. "" writes nothing.
  void set_notice(const std::string& text);
};

}  // namespace deepspeed::train
