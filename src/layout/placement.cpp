// SPDX-License-Identifier: Apache-2.0
#include "layout/placement.h"

#include <fmt/format.h>

#include "base/error.h"

namespace deepspeed::layout {

Placement Placement::of_stage(int stage) {
  if (stage < 0 || stage > 3) {
    throw base::ConfigError(fmt::format("zero_optimization.stage: {} is not a stage; use 0, 1, 2 or 3", stage));
  }
  const auto from = [stage](int first) { return stage >= first ? Spread::sharded : Spread::replicated; };
  return {from(3), from(2), from(1)};
}

}  // namespace deepspeed::layout
