// SPDX-License-Identifier: Apache-2.0
#include "nn/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>
#include <unordered_set>

#include "base/ledger.h"
#include "base/trace.h"
#include "nn/random.h"

namespace deepspeed::nn {
namespace {

namespace ledger = base::ledger;
namespace trace = base::trace;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = Unit::Tensors;

constexpr char record_key[] = "run";

bool needs_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

/// One run of a unit, kept by its node in the outer graph until that node is gone.
struct Record : torch::CustomClassHolder {
  Unit* unit = nullptr;
  std::shared_ptr<torch::nn::Module> owner;  ///< keeps the unit alive; null for a unit that no shared_ptr owns
  Tensors inputs;   ///< detached, all positions; with checkpointing only those that the node doesn't save itself
  Tensors results;  ///< what the inner graph ends in, as defined outputs in order; empty with checkpointing
  bool recompute = false;
  RandomState random;              ///< before the forward, with checkpointing
  std::vector<std::size_t> edges;  ///< the input positions that the outer graph has an edge for
};

/// What run() hands to the function and gets back beside the tensors that autograd sees.
struct Call {
  Unit* unit;
  const Tensors* inputs;
  std::vector<std::size_t> edges;
  std::vector<std::size_t> outputs;  ///< positions of the defined outputs
  std::size_t output_count = 0;
};

/// before(), body(), after(); after() also when body throws, so that a driver's gathers and releases stay balanced.
template <class Before, class Body, class After>
auto bracket(Before before, Body body, After after) {
  before();
  std::invoke_result_t<Body> result;
  try {
    result = body();
  } catch (...) {
    after();
    throw;
  }
  after();
  return result;
}

/// Adds to .grad() as autograd itself does, hooks included.
void accumulate(const Tensors& parameters, Tensors& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    (*node)(variable_list{std::move(gradients[i])});
  }
}

Tensors detach_inputs(const Tensors& inputs, const std::vector<std::size_t>& edges) {
  Tensors detached(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) detached[i] = inputs[i].detach();
  }
  for (const std::size_t i : edges) detached[i].requires_grad_(true);
  return detached;
}

Tensors compute_forward(Unit& unit, const Tensors& inputs, bool recorded) {
  const auto compute = [&] {
    const ledger::Scope scope(ledger::Category::activations);
    const trace::Range range(unit.label(), "forward");
    return unit.compute(inputs);
  };
  UnitDriver* driver = unit.driver();
  if (!driver) return compute();
  return bracket([&] { driver->before_forward(unit, recorded); }, compute, [&] { driver->after_forward(unit); });
}

struct UnitFunction : torch::autograd::Function<UnitFunction> {
  /// `tracked` are the inputs at call->edges, or one dummy if there are none: it makes the outputs part of the graph.
  static variable_list forward(AutogradContext* ctx, Call* call, at::TensorList /*tracked*/) {
    Unit& unit = *call->unit;
    auto record = c10::make_intrusive<Record>();
    record->unit = &unit;
    record->owner = unit.weak_from_this().lock();
    record->edges = call->edges;
    record->recompute = unit.checkpointing();

    Tensors outputs;
    if (record->recompute) {
      record->random = RandomState::capture(*call->inputs);
      ctx->save_for_backward(*call->inputs);
      outputs = compute_forward(unit, detach_inputs(*call->inputs, {}), true);
    } else {
      record->inputs = detach_inputs(*call->inputs, call->edges);
      const at::AutoGradMode graph(true);
      outputs = compute_forward(unit, record->inputs, true);
    }

    call->output_count = outputs.size();
    variable_list visible;
    variable_list constant;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) continue;
      call->outputs.push_back(i);
      // The outer graph must see another tensor than the inner one's; detach() shares the version counter, so that
      // changing it in place where the inner graph saved it stays an error.
      visible.push_back(outputs[i].detach());
      const bool differentiable = record->recompute ? torch::autograd::isDifferentiableType(outputs[i].scalar_type())
                                                    : outputs[i].requires_grad();
      if (!differentiable) constant.push_back(visible.back());
      if (!record->recompute) record->results.push_back(std::move(outputs[i]));
    }
    ctx->mark_non_differentiable(constant);
    ctx->set_materialize_grads(false);
    ctx->saved_data[record_key] = c10::IValue::make_capsule(std::move(record));
    return visible;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    if (at::GradMode::is_enabled())
      throw std::logic_error(
          "a unit's gradient has no graph of its own (create_graph): second derivatives through "
          "a unit are not supported");
    const variable_list saved = ctx->get_saved_variables();  // throws the usual error on a second backward
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    const auto capsule = ctx->saved_data[record_key].toCapsule();
    Record& record = static_cast<Record&>(*capsule);
    Unit& unit = *record.unit;
    UnitDriver* driver = unit.driver();
    const Tensors parameters = unit.trainable();

    const auto walk = [&] {
      const ledger::Scope scope(ledger::Category::activations);  // autograd may run this on a thread of its own
      const trace::Range range(unit.label(), "backward");
      Tensors parameter_gradients(parameters.size());
      variable_list result(1 + std::max<std::size_t>(record.edges.size(), 1));  // first: `call`, no tensor
      {
        Tensors inputs;
        Tensors results;
        if (record.recompute) {
          inputs = detach_inputs(saved, record.edges);
          const trace::Range again("recompute", "backward");
          const RandomReplay replay(record.random);
          const at::AutoGradMode graph(true);
          for (at::Tensor& output : unit.compute(inputs)) {
            if (output.defined()) results.push_back(std::move(output));
          }
        } else if (keep) {
          inputs = record.inputs;
          results = record.results;
        } else {
          inputs.swap(record.inputs);
          results.swap(record.results);
        }

        if (results.size() != gradients.size())
          throw std::logic_error("a recomputed unit (" + unit.name() + ") gave another number of outputs than before");
        variable_list roots;
        variable_list seeds;
        for (std::size_t i = 0; i < results.size(); ++i) {
          if (!gradients[i].defined() || !results[i].requires_grad()) continue;
          roots.push_back(std::move(results[i]));
          seeds.push_back(std::move(gradients[i]));
        }
        results.clear();
        variable_list wanted;
        std::vector<std::size_t> wanted_edges;
        for (std::size_t e = 0; e < record.edges.size(); ++e) {
          if (!ctx->needs_input_grad(e)) continue;
          wanted.push_back(inputs[record.edges[e]]);
          wanted_edges.push_back(e);
        }
        wanted.insert(wanted.end(), parameters.begin(), parameters.end());
        inputs.clear();
        if (!roots.empty() && !wanted.empty()) {
          variable_list found = torch::autograd::grad(roots, wanted, seeds, /*retain_graph=*/keep && !record.recompute,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
          for (std::size_t i = 0; i < wanted_edges.size(); ++i) result[1 + wanted_edges[i]] = std::move(found[i]);
          for (std::size_t i = 0; i < parameters.size(); ++i)
            parameter_gradients[i] = std::move(found[wanted_edges.size() + i]);
        }
      }  // the inner graph and its activations are gone before the driver takes the gradients
      if (driver) {
        driver->gradients(unit, std::move(parameter_gradients));
      } else {
        accumulate(parameters, parameter_gradients);
      }
      return result;
    };
    if (!driver) return walk();
    return bracket([&] { driver->before_backward(unit); }, walk, [&] { driver->after_backward(unit); });
  }
};

void collect_parameters(const torch::nn::Module& module, std::unordered_set<const void*>& seen, Tensors& found) {
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& parameter = entry.value();
    if (needs_gradient(parameter) && seen.insert(parameter.unsafeGetTensorImpl()).second) found.push_back(parameter);
  }
  for (const auto& child : module.children()) collect_parameters(*child, seen, found);
}

void collect_units(const std::shared_ptr<torch::nn::Module>& module, const Unit* inside,
                   std::unordered_set<const void*>& seen, std::vector<std::shared_ptr<Unit>>& found) {
  auto unit = std::dynamic_pointer_cast<Unit>(module);
  if (unit && inside) throw std::logic_error("a unit (" + unit->name() + ") lies inside another: units don't nest");
  if (unit && seen.insert(unit.get()).second) found.push_back(unit);
  for (const auto& child : module->children()) collect_units(child, unit ? unit.get() : inside, seen, found);
}

thread_local UnitObserver* innermost = nullptr;

}  // namespace

UnitObserver::UnitObserver() : outer_(innermost) {
  innermost = this;
}

UnitObserver::~UnitObserver() {
  innermost = outer_;
}

Unit::Unit() : observer_(innermost) {
  if (observer_ != nullptr) observer_->unit_begins(*this);
}

Unit::~Unit() {
  // An observer that is gone has forgotten its units.
  for (UnitObserver* o = innermost; o != nullptr; o = o->outer_) {
    if (o == observer_) o->unit_ends(*this);
  }
}

Tensors Unit::trainable() const {
  std::unordered_set<const void*> seen;
  Tensors found;
  collect_parameters(*this, seen, found);
  for (const at::Tensor& parameter : externals_) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) found.push_back(parameter);
  }
  return found;
}

void Unit::add_external_parameter(const at::Tensor& parameter) {
  remove_external_parameter(parameter);
  externals_.push_back(parameter);
}

void Unit::remove_external_parameter(const at::Tensor& parameter) {
  std::erase_if(externals_, [&](const at::Tensor& other) { return other.is_same(parameter); });
}

Tensors Unit::run(const Tensors& inputs) {
  Call call{this, &inputs, {}, {}, 0};
  Tensors tracked;
  if (at::GradMode::is_enabled()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!needs_gradient(inputs[i])) continue;
      call.edges.push_back(i);
      tracked.push_back(inputs[i]);
    }
    if (tracked.empty() && !trainable().empty())
      tracked.push_back(at::empty({0}, at::TensorOptions().dtype(at::kFloat)).requires_grad_(true));
  }
  if (tracked.empty()) return compute_forward(*this, inputs, false);

  variable_list visible = UnitFunction::apply(&call, at::TensorList(tracked));
  Tensors outputs(call.output_count);
  for (std::size_t i = 0; i < visible.size(); ++i) outputs[call.outputs[i]] = std::move(visible[i]);
  return outputs;
}

std::vector<std::shared_ptr<Unit>> units_of(const torch::nn::Module& model) {
  std::unordered_set<const void*> seen;
  std::vector<std::shared_ptr<Unit>> found;
  const auto self = std::const_pointer_cast<torch::nn::Module>(model.weak_from_this().lock());
  if (self) {
    collect_units(self, nullptr, seen, found);
  } else {
    for (const auto& child : model.children()) collect_units(child, nullptr, seen, found);
  }
  return found;
}

}  // namespace deepspeed::nn
