// SPDX-License-Identifier: Apache-2.0
#include "zero/model_rows.h"

#include <optional>
#include <unordered_set>
#include <utility>

namespace deepspeed::zero {
namespace {

/// A row that holds exactly these parameters already, in this order and way; nullptr if there is none.
std::shared_ptr<Row> existing_row(const std::vector<NamedParameter>& parameters, const Holding& holding,
                                  const comm::Group& group) {
  Row* row = row_of(parameters.front().tensor);
  if (row == nullptr || row->parameters().size() != parameters.size() || row->group().size() != group.size() ||
      row->holding().type != holding.type || row->holding().sharded != holding.sharded ||
      row->holding().keep_whole != holding.keep_whole || row->holding().round_robin != holding.round_robin) {
    return nullptr;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!row->parameters()[i].tensor.is_same(parameters[i].tensor)) return nullptr;
  }
  row->rename(parameters);
  return row->shared_from_this();
}

}  // namespace

ModelRows make_rows(const torch::nn::Module& model, const std::shared_ptr<comm::Group>& group,
                    const RowOptions& options) {
  const std::vector<std::shared_ptr<nn::Unit>> units = nn::units_of(model);
  const auto items = model.named_parameters();
  std::unordered_map<const void*, std::int64_t> uses;
  for (const auto& item : items) ++uses[item.value().unsafeGetTensorImpl()];
  std::unordered_map<const void*, std::vector<int>> units_of;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto add = [&](const at::Tensor& parameter) {
      std::vector<int>& users = units_of[parameter.unsafeGetTensorImpl()];
      if (users.empty() || users.back() != static_cast<int>(u)) users.push_back(static_cast<int>(u));
    };
    for (const auto& item : units[u]->named_parameters()) {
      --uses[item.value().unsafeGetTensorImpl()];
      add(item.value());
    }
    for (const at::Tensor& external : units[u]->external_parameters()) add(external);
  }

  // A tied weight is held once, under its first name.
  std::vector<NamedParameter> parameters;
  std::vector<layout::ParameterFacts> facts;
  std::unordered_set<const void*> seen;
  for (const auto& item : items) {
    const void* id = item.value().unsafeGetTensorImpl();
    if (!seen.insert(id).second) continue;
    parameters.push_back({item.key(), item.value()});
    const auto hyper = options.hypers.find(id);
    layout::ParameterFacts fact;
    fact.numel = item.value().numel();
    fact.units = units_of[id];
    fact.root = uses[id] > 0;
    fact.trainable = item.value().requires_grad();
    fact.hyper = hyper == options.hypers.end() ? 0 : hyper->second;
    fact.type = options.working;
    fact.looked_up = fact.trainable && options.looked_up.contains(id);
    facts.push_back(std::move(fact));
  }

  const bool sharded = options.placement.parameters == layout::Spread::sharded;
  const Arena arena(base::ledger::Category::gathered);
  ModelRows result;
  for (const layout::RowPlan& plan : layout::plan_rows(facts, options.placement, options.persistence)) {
    std::vector<NamedParameter> members;
    for (const std::size_t p : plan.parameters) members.push_back(parameters[p]);
    const Holding holding{plan.type, sharded, plan.keep_whole, options.round_robin};
    std::shared_ptr<Row> row = existing_row(members, holding, *group);
    if (row == nullptr) {
      for (const NamedParameter& p : members) {
        if (Row* old = row_of(p.tensor)) old->take_out(p.tensor);
      }
      row = std::make_shared<Row>(std::move(members), group, holding, arena);
    }
    for (const int u : plan.units) result.of_unit[units[static_cast<std::size_t>(u)].get()].push_back(row);
    result.rows.push_back({std::move(row), plan.trainable ? std::optional(plan.hyper) : std::nullopt, plan.table});
  }
  for (const auto& unit : units) {
    unit->keep(std::make_shared<std::vector<std::shared_ptr<Row>>>(result.of_unit[unit.get()]));
  }
  return result;
}

}  // namespace deepspeed::zero
