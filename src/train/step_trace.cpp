// SPDX-License-Identifier: Apache-2.0
#include "train/step_trace.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "base/trace.h"
#include "io/file.h"

namespace deepspeed::train {

namespace trace = base::trace;

StepTrace::StepTrace(comm::Group& group, const config::Config& config, const RunFolder& folder)
    : group_(group), folder_(folder) {
  if (const auto range = config.find<std::vector<std::int64_t>>("training.profile")) {
    steps_ = {range->at(0), range->at(1)};
  }
}

void StepTrace::before(std::int64_t step) {
  if (!steps_ || step != steps_->first) return;
  std::int64_t origin = trace::system_time();
  group_.broadcast({&origin, 1, base::Dtype::i64}, 0).wait();
  trace::start({.origin = origin});
}

void StepTrace::after(std::int64_t step, bool last) {
  if (!steps_ || step > steps_->second) return;
  if (step < steps_->first) {
    if (last) {
      log::warn("training.profile: the run ended after {} steps, before step {}: nothing was recorded", step,
                steps_->first);
    }
    return;
  }
  if (step < steps_->second && !last) return;
  trace::stop();
  io::write_file_atomically(folder_.trace(group_.rank()), trace::json());
  log::info("profile: steps {} to {} of this run are in {} (to be opened in ui.perfetto.dev), a file for each rank",
            steps_->first, step, folder_.trace(group_.rank()).string());
  if (const std::size_t dropped = trace::dropped(); dropped > 0) {
    log::warn("training.profile: {} later events didn't fit into the trace; profile fewer steps", dropped);
  }
}

}  // namespace deepspeed::train
