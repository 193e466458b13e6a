// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/group.h"
#include "config/config.h"
#include "train/run_folder.h"

namespace deepspeed::train {

/// training.profile: records what every rank does in a few steps (base/trace.h), and writes one file a rank.
class StepTrace {
 public:
  StepTrace(comm::Group& group, const config::Config& config, const RunFolder& folder);

  /// Collective. `step`: the how manieth of this run, from 1 on.
  void before(std::int64_t step);
  /// Writes this rank's file after the last step, also where the run is cut short after this one.
  void after(std::int64_t step, bool last);

 private:
  comm::Group& group_;
  const RunFolder& folder_;
  std::optional<std::pair<std::int64_t, std::int64_t>> steps_;
};

}  // namespace deepspeed::train
