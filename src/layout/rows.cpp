// SPDX-License-Identifier: Apache-2.0
#include "layout/rows.h"

#include <map>
#include <tuple>
#include <utility>

namespace deepspeed::layout {

std::vector<RowPlan> plan_rows(std::span<const ParameterFacts> parameters, const Placement& placement,
                               const Persistence& persistence) {
  const bool sharded = placement.parameters == Spread::sharded;
  // root before shared before single, units in order; the rest only has to tell rows apart.
  using Key = std::tuple<int, std::vector<int>, bool, std::size_t, base::Dtype, std::size_t>;
  std::map<Key, RowPlan> rows;
  std::int64_t persistent = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterFacts& p = parameters[i];
    bool root = p.root || p.units.empty();
    if (sharded && !root && p.numel <= persistence.parameter && p.numel <= persistence.model - persistent) {
      persistent += p.numel;
      root = true;
    }
    std::vector<int> units = root ? std::vector<int>() : p.units;
    const int kind = root ? 0 : units.size() > 1 ? 1 : 2;
    RowPlan& row = rows[Key{kind, units, !p.trainable, p.hyper, p.type, p.looked_up ? i + 1 : 0}];
    if (row.parameters.empty()) {
      row = {{}, std::move(units), !sharded || root, p.trainable, p.hyper, p.type, p.looked_up};
    }
    row.parameters.push_back(i);
  }
  std::vector<RowPlan> plan;
  plan.reserve(rows.size());
  for (auto& [key, row] : rows) plan.push_back(std::move(row));
  return plan;
}

}  // namespace deepspeed::layout
