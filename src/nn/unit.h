// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
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

/// The piece of a model that is gathered, released, recomputed, offloaded or captured as one: normally one transformer
/// block. libtorch has no module hooks, so a unit runs as ONE autograd function: forward runs `compute` on detached
/// inputs with its own inner graph (or, with activation checkpointing, without a graph), backward walks that inner
/// graph (recomputed under the restored RNG state if checkpointed) and hands the parameters' gradients to the driver.
class Unit : public torch::nn::Module {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// The arithmetic. Inputs and outputs may hold undefined or integer tensors.
  virtual Tensors compute(const Tensors& inputs) = 0;
  /// Runs `compute` as one autograd function.
  Tensors run(const Tensors& inputs);

  void set_driver(UnitDriver* driver) { driver_ = driver; }
  UnitDriver* driver() const { return driver_; }
  void set_checkpointing(bool on) { checkpointing_ = on; }
  bool checkpointing() const { return checkpointing_; }
  /// This unit's parameters that require a gradient, in registration order, without duplicates.
  std::vector<at::Tensor> trainable() const;

 private:
  UnitDriver* driver_ = nullptr;
  bool checkpointing_ = false;
};

/// All units of a model in module order; units don't nest.
std::vector<std::shared_ptr<Unit>> units_of(const torch::nn::Module& model);

}  // namespace deepspeed::nn
