// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "layout/placement.h"

namespace deepspeed::layout {

/// What decides in which flat row a parameter lies.
struct ParameterFacts {
  std::int64_t numel = 0;
  std::vector<int> units;  ///< numbers of the units that run with it, ascending
  bool root = false;       ///< used outside of every unit (too)
  bool trainable = true;
  std::size_t hyper = 0;  ///< which set of hyper-parameters
  base::Dtype type = base::Dtype::f32;
  bool looked_up = false;  ///< a table of which a step reaches few rows
};

/// One flat row: parameters that are gathered, reduced and updated together.
struct RowPlan {
  std::vector<std::size_t> parameters;  ///< numbers of the parameters, in the model's order
  std::vector<int> units;               ///< whose runs need it; none: the root's
  bool keep_whole = true;               ///< whole on every rank all the time
  bool trainable = true;
  std::size_t hyper = 0;
  base::Dtype type = base::Dtype::f32;
  bool table = false;  ///< one looked-up parameter and nothing else
  bool operator==(const RowPlan&) const = default;
};

/// Which parameters stay whole where parameters are sharded, since gathering small ones costs latency, not bandwidth:
/// DeepSpeed's stage3_param_persistence_threshold (elements of one) and stage3_model_persistence_threshold (of all).
struct Persistence {
  std::int64_t parameter = 0;
  std::int64_t model = std::numeric_limits<std::int64_t>::max();
};

/// Deals the parameters out to rows: one row for each set of units that share parameters, and of those one for each
/// type, set of hyper-parameters and for the frozen ones; a looked-up parameter has a row of its own. A parameter that
/// is used outside of units too belongs to the root, as do the persistent ones. Order: the root's rows, rows that
/// several units share, then unit by unit, so that backward completes them from the last on. No row is empty.
std::vector<RowPlan> plan_rows(std::span<const ParameterFacts> parameters, const Placement& placement,
                               const Persistence& persistence);

}  // namespace deepspeed::layout
