// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "optim/rules.h"
#include "zero/tensor_buffer.h"

namespace deepspeed {
namespace engine {
namespace {

/// DS_ACCELERATOR=cpu: the user lets the CPU stand for an accelerator.
bool accelerator_present() {
  const char* name = std::getenv("DS_ACCELERATOR");
  return name != nullptr && std::string_view(name) == "cpu";
}

}  // namespace

Engine::Engine(std::shared_ptr<torch::nn::Module> model, config::Config config, std::shared_ptr<comm::Group> group)
    : model_(std::move(model)), config_(std::move(config)), group_(std::move(group)) {
  precision_ = precision_of(config_, accelerator_present());
  train_batch_size_ = config_.get<std::int64_t>("train_batch_size");
  micro_batch_size_ = config_.get<std::int64_t>("train_micro_batch_size_per_gpu");
  gas_ = config_.get<std::int64_t>("gradient_accumulation_steps");
  const std::int64_t ranks = train_batch_size_ / (micro_batch_size_ * gas_);
  if (ranks != group_->size()) {
    throw base::ConfigError(
        fmt::format("train_batch_size: the config was resolved for {} data-parallel ranks and is used on {}", ranks,
                    group_->size()));
  }
  clipping_ = config_.get<double>("gradient_clipping");
  find_units();
  build_optimizer();
}

Engine::~Engine() {
  for (const auto& unit : units_) unit->set_driver(nullptr);
}

void Engine::find_units() {
  const bool checkpointing = config_.get<bool>("training.activation_checkpointing");
  units_ = nn::units_of(*model_);
  for (const auto& unit : units_) {
    unit->set_driver(this);
    unit->set_checkpointing(checkpointing);
    unit_states_[unit.get()] = {};
  }
  if (units_.empty()) {
    log::warn_once("the model has no nn::Unit: it is driven as one piece, so its memory can't be saved piece by piece");
  }
}

// The root's row first, then one for each unit in the order of the model: backward completes them from the last on.
// A weight that occurs outside its unit too (tied, shared by units) belongs to the root, which is always whole.
std::vector<zero::ParameterGroup> Engine::find_rows() {
  const auto parameters = model_->named_parameters();
  std::unordered_map<const void*, std::int64_t> uses;
  for (const auto& item : parameters) ++uses[item.value().unsafeGetTensorImpl()];
  std::unordered_map<const void*, std::size_t> row_of_unit_parameter;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    std::unordered_map<const void*, std::int64_t> inside;
    for (const auto& item : units_[u]->named_parameters()) ++inside[item.value().unsafeGetTensorImpl()];
    for (const auto& [parameter, count] : inside) {
      if (count == uses.at(parameter)) row_of_unit_parameter[parameter] = u + 1;
    }
  }

  std::vector<zero::ParameterGroup> rows(units_.size() + 1);
  rows[0].keep_whole = true;
  std::unordered_set<const void*> seen;
  for (const auto& item : parameters) {
    const void* parameter = item.value().unsafeGetTensorImpl();
    if (!seen.insert(parameter).second) continue;  // a tied weight is trained once, under its first name
    parameter_count_ += item.value().numel();
    if (!item.value().requires_grad()) {
      frozen_.push_back({item.key(), item.value()});
      continue;
    }
    const auto found = row_of_unit_parameter.find(parameter);
    rows[found == row_of_unit_parameter.end() ? 0 : found->second].parameters.push_back({item.key(), item.value()});
  }
  return rows;
}

void Engine::build_optimizer() {
  std::vector<zero::ParameterGroup> rows = find_rows();
  for (zero::NamedParameter& frozen : frozen_) {
    const at::Tensor whole = frozen.tensor.detach().contiguous();
    group_->broadcast(zero::view(whole), 0).wait();
    frozen.tensor.set_data(whole.to(zero::scalar_type(precision_.working)));
  }

  const auto type = config_.find<std::string>("optimizer.type");
  if (!type) {
    throw base::ConfigError(
        "optimizer.type: a training run needs an optimizer; give for example {\"type\": \"AdamW\"}");
  }
  const auto params = config_.get<nlohmann::json>("optimizer.params");
  zero::Settings settings;
  settings.placement =
      layout::Placement::of_stage(static_cast<int>(config_.get<std::int64_t>("zero_optimization.stage")));
  settings.working = precision_.working;
  settings.accumulation = precision_.accumulation;
  settings.reduce_bucket = config_.get<std::int64_t>("zero_optimization.reduce_bucket_size");
  settings.overlap = config_.find<bool>("zero_optimization.overlap_comm").value_or(true);
  optimizer_ =
      std::make_unique<zero::ShardedOptimizer>(group_, std::move(rows), std::vector{optim::hyper_from(*type, params)},
                                               optim::make_rule(*type, params), settings);
  for (const auto& unit : units_) {
    UnitState& state = unit_states_.at(unit.get());
    for (const at::Tensor& parameter : unit->trainable()) {
      zero::FlatGroup* row = optimizer_->row_of(parameter);
      if (row != nullptr && row != optimizer_->rows().front().get()) state.row = row;
    }
  }

  if (const auto schedule = config_.find<std::string>("scheduler.type")) {
    std::vector<optim::GroupRates> rates;
    for (const optim::Hyper& hyper : optimizer_->hypers()) {
      rates.push_back({hyper.lr, std::pair{hyper.beta1, hyper.beta2}});
    }
    schedule_ = optim::make_schedule(*schedule, config_.get<nlohmann::json>("scheduler.params"), std::move(rates));
    apply_rates();
  }
  if (precision_.scaled) {
    if (const double fixed = config_.get<double>("fp16.loss_scale"); fixed != 0) {
      scaler_ = optim::LossScaler(fixed);
    } else {
      optim::DynamicScale dynamic;
      dynamic.initial = std::ldexp(1.0, static_cast<int>(config_.get<std::int64_t>("fp16.initial_scale_power")));
      dynamic.window = config_.get<std::int64_t>("fp16.loss_scale_window");
      dynamic.hysteresis = config_.get<std::int64_t>("fp16.hysteresis");
      dynamic.minimum = config_.get<double>("fp16.min_loss_scale");
      dynamic.consecutive = config_.get<bool>("fp16.consecutive_hysteresis");
      scaler_ = optim::LossScaler(dynamic);
    }
  }
}

at::Tensor Engine::backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) {
  if (!loss.defined() || loss.numel() != 1) {
    throw std::invalid_argument("Engine::backward needs a scalar loss");
  }
  const double divisor = scale_wrt_gas ? static_cast<double>(gas_) : 1.0;
  at::Tensor divided = loss.to(at::kFloat);
  if (divisor != 1.0) divided = divided / divisor;
  const double scale = loss_scale();
  partial_ = true;
  optimizer_->begin_backward(is_gradient_accumulation_boundary());
  (scale == 1.0 ? divided : divided * scale).backward({}, retain_graph);
  collect_left_gradients();
  optimizer_->end_backward();
  return divided.detach();
}

void Engine::gather(nn::Unit& unit) {
  zero::FlatGroup* row = unit_states_.at(&unit).row;
  if (row != nullptr) optimizer_->gather(*row);
}

void Engine::release(nn::Unit& unit) {
  if (zero::FlatGroup* row = unit_states_.at(&unit).row) row->release();
}

void Engine::before_forward(nn::Unit& unit, bool recorded) {
  gather(unit);
  if (recorded) ++unit_states_.at(&unit).runs;
}

void Engine::after_forward(nn::Unit& unit) {
  release(unit);
}

void Engine::before_backward(nn::Unit& unit) {
  gather(unit);
}

void Engine::gradients(nn::Unit& unit, std::vector<at::Tensor> gradients) {
  UnitState& state = unit_states_.at(&unit);
  const std::vector<at::Tensor> parameters = unit.trainable();  // now: some may have been frozen since the start
  for (std::size_t i = 0; i < parameters.size(); ++i) optimizer_->accumulate(parameters[i], gradients[i]);
  if (--state.runs == 0 && state.row != nullptr) optimizer_->row_done(*state.row);
}

void Engine::after_backward(nn::Unit& unit) {
  release(unit);
}

// Autograd leaves the gradients of the root's parameters in .grad(); a weight that a unit shares with the root gets one
// part here and the other from its unit.
void Engine::collect_left_gradients() {
  for (const auto& row : optimizer_->rows()) {
    for (const zero::NamedParameter& parameter : row->parameters()) {
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      if (!gradient.defined()) continue;
      optimizer_->accumulate(parameter.tensor, gradient);
      gradient.reset();
    }
  }
}

bool Engine::is_gradient_accumulation_boundary() const {
  if (forced_boundary_) return *forced_boundary_;
  return (micro_steps_ + 1) % gas_ == 0;
}

void Engine::step() {
  const bool boundary = is_gradient_accumulation_boundary();
  ++micro_steps_;
  if (!boundary) return;

  partial_ = false;
  const double scale = loss_scale();
  const optim::GradientScale gradient = optim::gradient_scale(optimizer_->reduce(), scale, clipping_);
  const bool finite = std::isfinite(gradient.norm);
  const bool skip = !finite && precision_.skip_non_finite;
  if (!finite && !skip) {
    throw base::DivergedError(fmt::format(
        "step {}: the gradients hold NaN or Inf, so the weights would too; nothing was changed by this step. Lower the "
        "learning rate or check the data; with bf16.check_grad_overflow such steps are skipped",
        global_steps_ + 1));
  }
  if (precision_.scaled) {
    const std::string told = scaler_.update(!finite);
    if (!told.empty()) log::info("step {}: {}", global_steps_ + 1, told);
  } else if (skip) {
    log::warn("step {}: skipped, since the gradients hold NaN or Inf; weights and optimizer states are as before",
              global_steps_ + 1);
  }
  if (skip) {
    ++skipped_steps_;
    grad_norm_ = std::numeric_limits<double>::infinity();
  } else {
    optimizer_->update(gradient.factor);
    grad_norm_ = gradient.norm;
    if (schedule_) {
      schedule_->step();
      apply_rates();
    }
  }
  step_applied_ = !skip;
  optimizer_->clear_gradients();
  ++global_steps_;
  global_samples_ += train_batch_size_;
}

void Engine::apply_rates() {
  const std::vector<optim::GroupRates>& rates = schedule_->rates();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    optim::Hyper& hyper = optimizer_->hypers()[i];
    hyper.lr = rates[i].lr;
    if (rates[i].betas) std::tie(hyper.beta1, hyper.beta2) = *rates[i].betas;
  }
}

void Engine::zero_grad() {
  partial_ = false;
  optimizer_->clear_gradients();
  for (const auto& row : optimizer_->rows()) {
    for (const zero::NamedParameter& parameter : row->parameters()) parameter.tensor.mutable_grad().reset();
  }
}

void Engine::train(bool mode) {
  model_->train(mode);
}

std::vector<double> Engine::get_lr() const {
  std::vector<double> rates;
  for (const optim::Hyper& hyper : optimizer_->hypers()) rates.push_back(hyper.lr);
  return rates;
}

std::vector<std::pair<std::string, at::Tensor>> Engine::module_state_dict() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::unordered_map<const void*, at::Tensor> copies;
  for (const auto& row : optimizer_->rows()) {
    if (row->whole()) continue;
    optimizer_->gather(*row);
    for (const zero::NamedParameter& p : row->parameters()) {
      copies[p.tensor.unsafeGetTensorImpl()] = p.tensor.detach().clone();
    }
    row->release();
  }
  std::unordered_set<const void*> seen;
  for (const auto& item : model_->named_parameters()) {
    const void* parameter = item.value().unsafeGetTensorImpl();
    if (!seen.insert(parameter).second) continue;
    const auto copy = copies.find(parameter);
    tensors.emplace_back(item.key(), copy == copies.end() ? item.value().detach() : copy->second);
  }
  for (const auto& item : model_->named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

}  // namespace engine

std::unique_ptr<engine::Engine> initialize(std::shared_ptr<torch::nn::Module> model, const config::Config& config,
                                           std::shared_ptr<comm::Group> group) {
  if (group == nullptr) group = comm::self_group();
  return std::make_unique<engine::Engine>(std::move(model), config, std::move(group));
}

}  // namespace deepspeed
