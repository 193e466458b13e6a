// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace deepspeed::nn {

class Unit;

/// Who serves the units of a model: gathers and releases their parameters and takes their gradients. The engine is one;
/// a unit without a driver behaves like plain autograd (gradients are accumulated into .grad()).
class UnitDriver {
 public:
  virtual ~UnitDriver() = default;
  /// Parameters must be whole when this returns. `recorded`: autograd took the run down, so its backward may follow.
  virtual void before_forward(Unit&, [[maybe_unused]] bool recorded) {}
  virtual void after_forward(Unit&) {}
  virtual void before_backward(Unit&) {}
  /// Gradients of this backward, one for each of unit.trainable() in that order; an undefined tensor where the
  /// parameter got none. Called once for each run of the unit in this backward (twice for a unit used twice).
  virtual void gradients(Unit& unit, std::vector<at::Tensor> gradients) = 0;
  virtual void after_backward(Unit&) {}
};

/// Hears of every unit that is made on this thread while it exists, as the innermost observer: zero::Init shards a unit
/// once the next one begins. In a unit's constructor nothing of it is there yet.
class UnitObserver {
 public:
  UnitObserver();
  virtual ~UnitObserver();
  UnitObserver(const UnitObserver&) = delete;
  UnitObserver& operator=(const UnitObserver&) = delete;
  virtual void unit_begins(Unit& unit) = 0;
  /// The unit goes away, maybe before it was complete.
  virtual void unit_ends(Unit& unit) = 0;

 private:
  friend class Unit;
  UnitObserver* outer_;
};

/// The piece of a model that is gathered, released, recomputed, offloaded or captured as one: normally one transformer
/// block. libtorch has no module hooks, so a unit runs as ONE autograd function: forward runs `compute` on detached
/// inputs with its own inner graph (or, with activation checkpointing, without a graph), backward walks that inner
/// graph (recomputed under the restored RNG state if checkpointed) and hands the parameters' gradients to the driver.
class Unit : public torch::nn::Module {
 public:
  using Tensors = std::vector<at::Tensor>;

  Unit();
  ~Unit() override;

  /// The arithmetic. Inputs and outputs may hold undefined or integer tensors.
  virtual Tensors compute(const Tensors& inputs) = 0;
  /// Runs `compute` as one autograd function.
  Tensors run(const Tensors& inputs);

  void set_driver(UnitDriver* driver) { driver_ = driver; }
  UnitDriver* driver() const { return driver_; }
  /// What it is called in traces: its place in the model; its type until somebody says so.
  void set_label(std::string label) { label_ = std::move(label); }
  const std::string& label() const { return label_.empty() ? name() : label_; }
  void set_checkpointing(bool on) { checkpointing_ = on; }
  bool checkpointing() const { return checkpointing_; }
  /// Whether training.activation_checkpointing is to recompute this unit.
  virtual bool checkpointable() const { return true; }
  /// Parameters [rows, ...] that `compute` only looks rows up in, so that a step reaches few of them. Their gradients
  /// may come sparse where sparse_gradients() is on: at::embedding(..., sparse=true).
  virtual Tensors looked_up() const { return {}; }
  void set_sparse_gradients(bool on) { sparse_gradients_ = on; }
  bool sparse_gradients() const { return sparse_gradients_; }
  /// This unit's parameters that require a gradient, in registration order, then the external ones, without duplicates.
  std::vector<at::Tensor> trainable() const;

  /// A parameter of another module that `compute` uses (DeepSpeed's register_external_parameter): it is whole while
  /// this unit runs, and its gradient comes with this unit's.
  void add_external_parameter(const at::Tensor& parameter);
  void remove_external_parameter(const at::Tensor& parameter);
  const std::vector<at::Tensor>& external_parameters() const { return externals_; }

  /// Something that must live as long as the unit; takes the place of what was kept before.
  void keep(std::shared_ptr<const void> thing) { kept_ = std::move(thing); }

 private:
  UnitDriver* driver_ = nullptr;
  UnitObserver* observer_ = nullptr;
  bool checkpointing_ = false;
  bool sparse_gradients_ = false;
  std::string label_;
  std::vector<at::Tensor> externals_;
  std::shared_ptr<const void> kept_;
};

/// All units of a model in module order; units don't nest.
std::vector<std::shared_ptr<Unit>> units_of(const torch::nn::Module& model);

}  // namespace deepspeed::nn
