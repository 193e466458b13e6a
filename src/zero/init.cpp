// SPDX-License-Identifier: Apache-2.0
#include "zero/init.h"

#include <exception>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "zero/row.h"

namespace deepspeed::zero {

Init::Init(std::shared_ptr<comm::Group> group, const Options& options) : group_(std::move(group)), options_(options) {}

Init::~Init() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    close();
  } catch (const std::exception& error) {
    log::error("zero::Init: {}", error.what());
  }
}

void Init::close() {
  if (closed_) return;
  closed_ = true;
  shard_last();
}

void Init::unit_begins(nn::Unit& unit) {
  if (closed_ || !options_.enabled) return;
  shard_last();
  last_ = &unit;
}

void Init::unit_ends(nn::Unit& unit) {
  if (last_ == &unit) last_ = nullptr;
}

// The rows are those that an engine of stage 3 would make, unless weights turn out to be shared, frozen or in a group
// of their own: then it makes them anew, one by one.
void Init::shard_last() {
  if (last_ == nullptr) return;
  nn::Unit& unit = *std::exchange(last_, nullptr);
  std::vector<NamedParameter> parameters;
  std::vector<layout::ParameterFacts> facts;
  std::unordered_set<const void*> seen;
  for (const auto& item : unit.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second || row_of(item.value()) != nullptr) continue;
    parameters.push_back({item.key(), item.value()});
    layout::ParameterFacts fact;
    fact.numel = item.value().numel();
    fact.units = {0};
    fact.trainable = item.value().requires_grad();
    fact.type = options_.type;
    facts.push_back(std::move(fact));
  }
  auto rows = std::make_shared<std::vector<std::shared_ptr<Row>>>();
  for (const layout::RowPlan& plan : layout::plan_rows(facts, layout::Placement::of_stage(3), options_.persistence)) {
    if (plan.keep_whole) {
      // Whole on every rank: they come into a row with others' in the engine.
      for (const std::size_t p : plan.parameters) options_.persistence.model -= facts[p].numel;
      continue;
    }
    std::vector<NamedParameter> members;
    for (const std::size_t p : plan.parameters) members.push_back(parameters[p]);
    rows->push_back(std::make_shared<Row>(std::move(members), group_, Holding{plan.type, true, false, false}, arena_));
  }
  unit.keep(std::move(rows));
}

}  // namespace deepspeed::zero
