// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/ledger.h"
#include "base/trace.h"
#include "checkpoint/checkpoint.h"
#include "comm/group.h"
#include "config/config.h"
#include "engine/precision.h"
#include "layout/memory_model.h"
#include "nn/unit.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "zero/init.h"
#include "zero/sharded_optimizer.h"

namespace deepspeed {

namespace engine {

/// What zero::Init needs to make a model as the engine of this configuration holds it; disabled where that doesn't
/// shard parameters.
zero::Init::Options init_options(const config::Config& config);

/// What the engine of this configuration will hold and send, but for activations (layout::estimate_memory).
layout::TrainingShape training_shape(const config::Config& config, int ranks);

/// What load_checkpoint takes; DeepSpeed's arguments of the same names.
struct LoadOptions {
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  bool load_module_only = false;
};

/// Parameters that are trained with options of their own: keys of optimizer.params such as lr, betas, eps and
/// weight_decay take the place of the config's.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  nlohmann::json options = nlohmann::json::object();
};

class Engine;

/// While one exists, backward leaves this rank's gradients where they are (Engine::no_sync). Movable only.
class NoSync {
 public:
  NoSync(Engine& engine, bool flush);
  NoSync(NoSync&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), flush_(other.flush_) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  Engine* engine_;
  bool flush_;
};

/// Trains one model, whatever the placement: forward, backward, step. Made by deepspeed::initialize. Every method
/// marked collective must be called by all ranks of the data-parallel group in the same order.
class Engine : private nn::UnitDriver {
 public:
  Engine(std::shared_ptr<torch::nn::Module> model, config::Config config, std::shared_ptr<comm::Group> group,
         const std::vector<ParameterGroup>& groups = {});
  ~Engine() override;

  /// Runs the model under the engine: `f` calls the module and returns what it likes.
  ///     at::Tensor loss = engine.forward([&] { return model->forward(ids, labels).loss; });
  template <class F>
  auto forward(F&& f) {
    const base::ledger::Scope scope(base::ledger::Category::activations);
    const base::trace::Range range("forward", "engine");
    optimizer_->gatherer().begin_pass();
    return std::forward<F>(f)();
  }
  /// Backpropagates a scalar loss: divided by gradient_accumulation_steps (unless scale_wrt_gas is false) and
  /// multiplied by the loss scale on the way. Returns the loss as divided. The gradients are added to this rank's sum.
  at::Tensor backward(const at::Tensor& loss, bool retain_graph = false, bool scale_wrt_gas = true);
  /// To be called after each backward. Only at the accumulation boundary it acts: reduce, clip, update, schedule.
  /// Collective there. Throws DivergedError where the gradients are not finite and the config doesn't say skip, and
  /// ConfigError where no rank gave a parameter a gradient and zero_optimization.ignore_unused_parameters is false.
  void step();

  /// While the result lives, backward only adds to this rank's sums; the next backward without it exchanges all.
  /// step() is an error meanwhile. Works at every stage: where gradients are sharded they stay whole until then.
  [[nodiscard]] NoSync no_sync();
  /// The same, but at the end of the scope what came together is reduced at once. Collective there.
  [[nodiscard]] NoSync coalesce_grad_reduction();

  bool is_gradient_accumulation_boundary() const;
  /// Overrides the counting until called again with nullopt.
  void set_gradient_accumulation_boundary(std::optional<bool> boundary) { forced_boundary_ = boundary; }
  void zero_grad();
  void train(bool mode = true);
  void eval() { train(false); }
  bool training() const { return model_->is_training(); }

  torch::nn::Module& module() { return *model_; }
  const config::Config& config() const { return config_; }
  comm::Group& group() const { return *group_; }
  at::Device device() const { return at::Device(at::kCPU); }
  int global_rank() const { return group_->rank(); }
  int world_size() const { return group_->size(); }
  int dp_world_size() const { return group_->size(); }

  std::int64_t train_batch_size() const { return train_batch_size_; }
  std::int64_t train_micro_batch_size_per_gpu() const { return micro_batch_size_; }
  std::int64_t gradient_accumulation_steps() const { return gas_; }
  /// Changes gradient_accumulation_steps so that a step takes n samples from now on. Throws std::invalid_argument where
  /// n isn't a multiple of micro batch times ranks, and std::logic_error within an accumulation.
  void set_train_batch_size(std::int64_t n);
  /// The train batch follows; the accumulation stays.
  void set_train_micro_batch_size(std::int64_t n);
  /// The train batch follows.
  void set_gradient_accumulation_steps(std::int64_t n);
  std::int64_t micro_steps() const { return micro_steps_; }
  std::int64_t global_steps() const { return global_steps_; }
  std::int64_t global_samples() const { return global_samples_; }
  std::int64_t skipped_steps() const { return skipped_steps_; }

  /// The L2 norm over all parameters of the last step's mean gradient, unscaled, before clipping; infinity after a
  /// skipped step, nullopt before the first.
  std::optional<double> get_global_grad_norm() const { return grad_norm_; }
  bool was_step_applied() const { return step_applied_; }
  /// One rate a parameter group: what the next step will use.
  std::vector<double> get_lr() const;
  /// 1 unless fp16.
  double loss_scale() const { return scaler_.scale(); }
  const Precision& precision() const { return precision_; }
  zero::ShardedOptimizer& optimizer() { return *optimizer_; }
  optim::Schedule* lr_scheduler() { return schedule_ ? &*schedule_ : nullptr; }
  /// Trainable parameters and all parameters, in elements.
  std::int64_t parameter_count() const { return parameter_count_; }

  // Whole parameters, gradients and states of a parameter that is sharded, in fp32 and the parameter's shape.
  // Collective: all ranks call them for the same parameters in the same order. nullopt for one that isn't trained.
  std::optional<at::Tensor> safe_get_full_fp32_param(const at::Tensor& parameter);
  /// `state`: "exp_avg", ...: a name that the optimizer keeps; another throws std::invalid_argument.
  std::optional<at::Tensor> safe_get_full_optimizer_state(const at::Tensor& parameter, const std::string& state);
  /// The mean over ranks, unscaled, between the boundary's backward and step(); nullopt while there is none.
  std::optional<at::Tensor> safe_get_full_grad(const at::Tensor& parameter);
  /// All ranks give the same value, of the parameter's number of elements.
  void safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_full_optimizer_state(const at::Tensor& parameter, const at::Tensor& value, const std::string& state);
  void safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value);
  // This rank's part of the same, flat; not collective. Parts of all ranks in rank order make the whole.
  std::optional<at::Tensor> safe_get_local_fp32_param(const at::Tensor& parameter);
  std::optional<at::Tensor> safe_get_local_optimizer_state(const at::Tensor& parameter, const std::string& state);
  std::optional<at::Tensor> safe_get_local_grad(const at::Tensor& parameter);
  /// The weights of 16-bit training follow here; whole copies follow after the next update or refresh.
  void safe_set_local_fp32_param(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_local_optimizer_state(const at::Tensor& parameter, const at::Tensor& value, const std::string& state);
  void safe_set_local_grad(const at::Tensor& parameter, const at::Tensor& value);
  /// Collective: lets go of every sharded weight that is here and not in use.
  void empty_partition_cache() { optimizer_->gatherer().finish(); }

  /// Collective. Saves folder/tag (default "global_stepN") and commits it as docs/checkpoint-format.md says.
  /// `keep_last` > 0 removes older ones afterwards.
  void save_checkpoint(const std::filesystem::path& folder, std::string tag = "",
                       const nlohmann::json& client_state = nlohmann::json::object(), bool save_latest = true,
                       int keep_last = 0);
  /// Collective. Loads folder/tag (default: what `latest` names) and returns the client state. Throws CheckpointError
  /// naming what is damaged, missing or doesn't fit, before anything is changed.
  nlohmann::json load_checkpoint(const std::filesystem::path& folder, const std::string& tag = "",
                                 const LoadOptions& options = {});
  /// The same from a checkpoint that is open.
  nlohmann::json load_checkpoint(const checkpoint::Reader& reader, const LoadOptions& options = {});
  /// Collective. Full name and weight of every parameter and buffer (whole, in the working type), each once; copies
  /// where the weights are sharded.
  std::vector<std::pair<std::string, at::Tensor>> module_state_dict() const;

 private:
  void before_forward(nn::Unit& unit, bool recorded) override;
  void after_forward(nn::Unit& unit) override;
  void before_backward(nn::Unit& unit) override;
  void gradients(nn::Unit& unit, std::vector<at::Tensor> gradients) override;
  void after_backward(nn::Unit& unit) override;
  friend class NoSync;
  struct Part;
  void find_units();
  void build_optimizer(const std::vector<ParameterGroup>& groups);
  std::unordered_set<const void*> find_tables();
  void build_schedule();
  void collect_left_gradients();
  void require_all_used();
  void require_boundary(const char* what) const;
  std::optional<Part> part_of(const at::Tensor& parameter);
  at::Tensor whole(const Part& part, const base::Buffer& owned);
  base::Buffer state_buffer(const Part& part, const std::string& state);
  std::optional<base::Buffer> gradient_buffer(const Part& part);
  void set_master(const Part& part, const base::Buffer& values);
  void set_gradient(const Part& part, const at::Tensor& own);
  void apply_rates();

  std::shared_ptr<torch::nn::Module> model_;
  config::Config config_;
  std::shared_ptr<comm::Group> group_;
  Precision precision_;
  std::int64_t train_batch_size_ = 0;
  std::int64_t micro_batch_size_ = 0;
  std::int64_t gas_ = 1;
  double clipping_ = 0;

  std::vector<std::shared_ptr<nn::Unit>> units_;
  struct UnitState {
    std::vector<zero::Row*> released;        ///< what its runs need gathered
    std::vector<zero::TrainedRow*> trained;  ///< what its runs give gradients to, but for the root's
    std::int64_t runs = 0;                   ///< recorded forwards whose backward hasn't come yet
  };
  std::unordered_map<const nn::Unit*, UnitState> unit_states_;
  std::unordered_map<const zero::TrainedRow*, std::vector<UnitState*>> users_;
  std::unique_ptr<zero::ShardedOptimizer> optimizer_;
  std::optional<optim::Schedule> schedule_;
  optim::LossScaler scaler_;

  std::optional<bool> forced_boundary_;
  bool no_sync_ = false;
  bool partial_ = false;  ///< gradients were summed up that no step has taken yet
  std::int64_t micro_steps_ = 0;
  std::int64_t global_steps_ = 0;
  std::int64_t global_samples_ = 0;
  std::int64_t skipped_steps_ = 0;
  std::int64_t parameter_count_ = 0;
  bool step_applied_ = false;
  std::optional<double> grad_norm_;
};

}  // namespace engine

/// Makes an Engine for any torch::nn::Module; its nn::Unit submodules are the pieces that are driven one by one, and
/// the rest of the model is the root. Collective: all ranks of `group` (default: this process alone) call it with the
/// same model and config. A trainable parameter that is in none of `groups` is trained as the config says. Weights
/// become those of rank 0, in the type that the config trains in.
std::unique_ptr<engine::Engine> initialize(std::shared_ptr<torch::nn::Module> model, const config::Config& config,
                                           std::shared_ptr<comm::Group> group = nullptr,
                                           const std::vector<engine::ParameterGroup>& groups = {});

}  // namespace deepspeed
