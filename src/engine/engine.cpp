// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "layout/placement.h"
#include "nn/memory.h"
#include "nn/tensor_buffer.h"
#include "optim/rules.h"
#include "zero/model_rows.h"

namespace deepspeed {
namespace engine {
namespace {

/// DS_ACCELERATOR=cpu: the user lets the CPU stand for an accelerator.
bool accelerator_present() {
  const char* name = std::getenv("DS_ACCELERATOR");
  return name != nullptr && std::string_view(name) == "cpu";
}

/// Where slices have owners whose choice is free.
bool round_robin(const config::Config& config, const layout::Placement& placement) {
  return config.get<bool>("zero_optimization.round_robin_gradients") &&
         placement.optimizer == layout::Spread::sharded && placement.parameters == layout::Spread::replicated;
}

layout::Persistence persistence_of(const config::Config& config) {
  return {config.get<std::int64_t>("zero_optimization.stage3_param_persistence_threshold"),
          config.get<std::int64_t>("zero_optimization.stage3_model_persistence_threshold")};
}

}  // namespace

namespace {

zero::Settings settings_of(const config::Config& config, const Precision& precision, int ranks) {
  const std::string z = "zero_optimization.";
  const auto elements = [&](const char* key) { return config.get<std::int64_t>(z + key); };
  zero::Settings settings;
  settings.placement = layout::Placement::of_stage(static_cast<int>(elements("stage")));
  settings.accumulation = precision.accumulation;
  settings.communication = dtype_at(config, "communication_data_type");
  const auto n = static_cast<float>(ranks);
  const auto predivide = static_cast<float>(config.get<double>("gradient_predivide_factor"));
  if (config.get<std::string>("gradient_allreduce_op") == "mean") {
    const bool first = config.get<bool>("prescale_gradients");
    settings.before = 1.0F / (first ? n : predivide);
    settings.after = first ? 1.0F : predivide / n;
  }
  settings.reduce_bucket = elements("reduce_bucket_size");
  settings.gather_bucket = elements("allgather_bucket_size");
  settings.sub_group = std::max<std::int64_t>(elements("sub_group_size"), 1);
  settings.overlap = config.find<bool>(z + "overlap_comm").value_or(true);
  settings.reduce_each_backward = config.get<nlohmann::json>("training.deterministic") == true;
  settings.gatherer.prefetch = elements("stage3_prefetch_bucket_size");
  settings.gatherer.max_live = elements("stage3_max_live_parameters");
  settings.gatherer.reuse_distance = elements("stage3_max_reuse_distance");
  settings.gatherer.log_changes = config.get<bool>(z + "log_trace_cache_warnings");
  return settings;
}

}  // namespace

layout::TrainingShape training_shape(const config::Config& config, int ranks) {
  const Precision precision = precision_of(config, accelerator_present());
  const zero::Settings settings = settings_of(config, precision, ranks);
  layout::TrainingShape shape;
  shape.placement = settings.placement;
  shape.ranks = ranks;
  shape.working = precision.working;
  shape.accumulation = precision.accumulation;
  shape.communication = settings.communication.value_or(precision.accumulation);
  if (const auto type = config.find<std::string>("optimizer.type")) {
    const auto rule = optim::make_rule(*type, config.get<nlohmann::json>("optimizer.params"));
    shape.states = static_cast<int>(rule->states().size());
  }
  shape.gradient_accumulation_steps = config.get<std::int64_t>("gradient_accumulation_steps");
  shape.reduce_each_backward = settings.reduce_each_backward;
  shape.persistence = persistence_of(config);
  shape.prefetch = settings.gatherer.prefetch;
  shape.max_live = settings.gatherer.max_live;
  shape.reuse_distance = settings.gatherer.reuse_distance;
  shape.round_robin = round_robin(config, settings.placement);
  return shape;
}

zero::Init::Options init_options(const config::Config& config) {
  const int stage = static_cast<int>(config.get<std::int64_t>("zero_optimization.stage"));
  zero::Init::Options options;
  options.type = precision_of(config, accelerator_present()).working;
  options.persistence = persistence_of(config);
  options.enabled = layout::Placement::of_stage(stage).parameters == layout::Spread::sharded;
  return options;
}

Engine::Engine(std::shared_ptr<torch::nn::Module> model, config::Config config, std::shared_ptr<comm::Group> group,
               const std::vector<ParameterGroup>& groups)
    : model_(std::move(model)), config_(std::move(config)), group_(std::move(group)) {
  nn::count_allocations();
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
  build_optimizer(groups);
  build_schedule();
}

Engine::~Engine() {
  for (const auto& unit : units_) unit->set_driver(nullptr);
}

void Engine::find_units() {
  const bool checkpointing = config_.get<bool>("training.activation_checkpointing");
  units_ = nn::units_of(*model_);
  for (const auto& unit : units_) {
    unit->set_driver(this);
    unit->set_checkpointing(checkpointing && unit->checkpointable());
    unit_states_[unit.get()] = {};
  }
  for (const auto& item : model_->named_modules()) {
    if (auto* unit = dynamic_cast<nn::Unit*>(item.value().get())) unit->set_label(item.key());
  }
  if (units_.empty()) {
    log::warn_once("the model has no nn::Unit: it is driven as one piece, so its memory can't be saved piece by piece");
  }
}

void Engine::build_optimizer(const std::vector<ParameterGroup>& groups) {
  const auto type = config_.find<std::string>("optimizer.type");
  if (!type) {
    throw base::ConfigError(
        "optimizer.type: a training run needs an optimizer; give for example {\"type\": \"AdamW\"}");
  }
  const auto params = config_.get<nlohmann::json>("optimizer.params");
  const zero::Settings settings = settings_of(config_, precision_, group_->size());

  zero::RowOptions options;
  options.placement = settings.placement;
  options.working = precision_.working;
  options.persistence = persistence_of(config_);
  options.round_robin = round_robin(config_, settings.placement);
  std::vector<optim::Hyper> hypers;
  for (const ParameterGroup& group : groups) {
    for (const at::Tensor& parameter : group.parameters) {
      if (!options.hypers.emplace(parameter.unsafeGetTensorImpl(), hypers.size()).second) {
        throw std::invalid_argument("initialize: a parameter is in two parameter groups");
      }
    }
    nlohmann::json own = params;
    if (!group.options.is_null()) own.update(group.options);
    hypers.push_back(optim::hyper_from(*type, own));
  }
  std::unordered_set<const void*> seen;
  bool rest = groups.empty();
  for (const auto& item : model_->named_parameters()) {
    const void* id = item.value().unsafeGetTensorImpl();
    if (!seen.insert(id).second) continue;
    parameter_count_ += item.value().numel();
    if (item.value().requires_grad()) rest = options.hypers.emplace(id, groups.size()).second || rest;
  }
  if (rest) hypers.push_back(optim::hyper_from(*type, params));

  options.looked_up = find_tables();
  zero::ModelRows rows = zero::make_rows(*model_, group_, options);
  optimizer_ = std::make_unique<zero::ShardedOptimizer>(group_, std::move(rows.rows), std::move(hypers),
                                                        optim::make_rule(*type, params), settings);
  for (const auto& unit : units_) {
    UnitState& state = unit_states_.at(unit.get());
    for (const auto& row : rows.of_unit[unit.get()]) {
      if (!row->holding().keep_whole) state.released.push_back(row.get());
      zero::TrainedRow* trained = optimizer_->trained_row_of(row->parameters().front().tensor);
      if (trained == nullptr) continue;
      state.trained.push_back(trained);
      users_[trained].push_back(&state);
    }
  }
}

// What is looked up in one place only: a weight that serves a matrix product too has a gradient in every row.
std::unordered_set<const void*> Engine::find_tables() {
  const bool on = config_.get<bool>("sparse_gradients");
  std::unordered_map<const void*, int> users;
  for (const auto& unit : units_) {
    for (const at::Tensor& parameter : unit->trainable()) ++users[parameter.unsafeGetTensorImpl()];
  }
  std::unordered_set<const void*> tables;
  for (const auto& unit : units_) {
    const std::vector<at::Tensor> candidates = unit->looked_up();
    const bool sparse = on && !candidates.empty() &&
                        std::all_of(candidates.begin(), candidates.end(),
                                    [&](const at::Tensor& t) { return users[t.unsafeGetTensorImpl()] == 1; });
    unit->set_sparse_gradients(sparse);
    if (!sparse) continue;
    for (const at::Tensor& table : candidates) tables.insert(table.unsafeGetTensorImpl());
  }
  if (!on) return tables;
  for (const auto& module : model_->modules()) {
    const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(module.get());
    const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(module.get());
    if (embedding != nullptr) tables.insert(embedding->weight.unsafeGetTensorImpl());
    if (bag != nullptr) tables.insert(bag->weight.unsafeGetTensorImpl());
  }
  return tables;
}

void Engine::build_schedule() {
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
  const base::ledger::Scope scope(base::ledger::Category::activations);
  const base::trace::Range range("backward", "engine");
  const double divisor = scale_wrt_gas ? static_cast<double>(gas_) : 1.0;
  at::Tensor divided = loss.to(at::kFloat);
  if (divisor != 1.0) divided = divided / divisor;
  const double scale = loss_scale();
  partial_ = true;
  optimizer_->begin_backward(is_gradient_accumulation_boundary(), !no_sync_);
  (scale == 1.0 ? divided : divided * scale).backward({}, retain_graph);
  collect_left_gradients();
  optimizer_->end_backward();
  return divided.detach();
}

void Engine::before_forward(nn::Unit& unit, bool recorded) {
  UnitState& state = unit_states_.at(&unit);
  optimizer_->gatherer().use(state.released);
  if (recorded) ++state.runs;
}

void Engine::after_forward(nn::Unit& unit) {
  optimizer_->gatherer().done(unit_states_.at(&unit).released);
}

void Engine::before_backward(nn::Unit& unit) {
  optimizer_->gatherer().use(unit_states_.at(&unit).released);
}

void Engine::gradients(nn::Unit& unit, std::vector<at::Tensor> gradients) {
  UnitState& state = unit_states_.at(&unit);
  const std::vector<at::Tensor> parameters = unit.trainable();  // now: some may have been frozen since the start
  for (std::size_t i = 0; i < parameters.size(); ++i) optimizer_->accumulate(parameters[i], gradients[i]);
  if (--state.runs != 0) return;
  for (const zero::TrainedRow* row : state.trained) {
    const std::vector<UnitState*>& users = users_.at(row);
    if (std::all_of(users.begin(), users.end(), [](const UnitState* user) { return user->runs == 0; })) {
      optimizer_->row_done(*row);
    }
  }
}

void Engine::after_backward(nn::Unit& unit) {
  optimizer_->gatherer().done(unit_states_.at(&unit).released);
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
  if (no_sync_) throw std::logic_error("It is illegal to call Engine.step() inside no_sync context manager");
  const bool boundary = is_gradient_accumulation_boundary();
  if (boundary && !config_.get<bool>("zero_optimization.ignore_unused_parameters")) require_all_used();
  ++micro_steps_;
  if (!boundary) return;

  const base::trace::Range range("step", "engine");
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

void Engine::require_all_used() {
  const std::vector<std::string> unused = optimizer_->without_gradient();
  if (unused.empty()) return;
  throw base::ConfigError(fmt::format(
      "zero_optimization.ignore_unused_parameters: false, and in step {} your module has parameters that were not used "
      "in producing loss: '{}'. Make sure all trainable parameters participate in calculating loss, freeze these, or "
      "set the key to true, which counts their gradient as zero; nothing was changed by this step",
      global_steps_ + 1, fmt::join(unused, "', '")));
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

void Engine::require_boundary(const char* what) const {
  if (!partial_) return;
  throw std::logic_error(fmt::format("{} within an accumulation: call it after the step that ends it", what));
}

void Engine::set_train_batch_size(std::int64_t n) {
  require_boundary("set_train_batch_size");
  const std::int64_t each = micro_batch_size_ * group_->size();
  if (n <= 0 || n % each != 0) {
    throw std::invalid_argument(fmt::format(
        "Train batch size must be divisible by micro-batch data parallelism: {} isn't a multiple of {} x {} ranks", n,
        micro_batch_size_, group_->size()));
  }
  set_gradient_accumulation_steps(n / each);
}

void Engine::set_train_micro_batch_size(std::int64_t n) {
  require_boundary("set_train_micro_batch_size");
  if (n <= 0) throw std::invalid_argument(fmt::format("set_train_micro_batch_size: {} isn't above 0", n));
  micro_batch_size_ = n;
  train_batch_size_ = micro_batch_size_ * gas_ * group_->size();
}

void Engine::set_gradient_accumulation_steps(std::int64_t n) {
  require_boundary("set_gradient_accumulation_steps");
  if (n <= 0) throw std::invalid_argument(fmt::format("set_gradient_accumulation_steps: {} isn't above 0", n));
  gas_ = n;
  micro_steps_ = global_steps_ * gas_;  // counts within the accumulation
  train_batch_size_ = micro_batch_size_ * gas_ * group_->size();
}

NoSync Engine::no_sync() {
  return {*this, false};
}

NoSync Engine::coalesce_grad_reduction() {
  return {*this, true};
}

NoSync::NoSync(Engine& engine, bool flush) : engine_(&engine), flush_(flush) {
  if (engine.no_sync_) throw std::logic_error("no_sync context manager reentry is unsupported");
  engine.no_sync_ = true;
}

NoSync::~NoSync() {
  if (engine_ == nullptr) return;
  engine_->no_sync_ = false;
  if (!flush_ || std::uncaught_exceptions() > 0) return;
  try {
    engine_->optimizer_->begin_backward(engine_->is_gradient_accumulation_boundary());
    engine_->optimizer_->end_backward();
  } catch (const std::exception& error) {
    log::error("coalesce_grad_reduction: {}", error.what());
  }
}

std::vector<std::pair<std::string, at::Tensor>> Engine::module_state_dict() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::unordered_map<const void*, at::Tensor> copies;
  const auto copy_of = [&](zero::Row& row) {
    if (row.holding().keep_whole) return;
    ++row.users;
    row.bring();
    for (const zero::NamedParameter& p : row.parameters()) {
      copies[p.tensor.unsafeGetTensorImpl()] = p.tensor.detach().clone();
    }
    if (--row.users == 0) row.release();
  };
  for (const auto& row : optimizer_->rows()) copy_of(row->row());
  for (const auto& row : optimizer_->frozen_rows()) copy_of(*row);
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
                                           std::shared_ptr<comm::Group> group,
                                           const std::vector<engine::ParameterGroup>& groups) {
  if (group == nullptr) group = comm::self_group();
  return std::make_unique<engine::Engine>(std::move(model), config, std::move(group), groups);
}

}  // namespace deepspeed
