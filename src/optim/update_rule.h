// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace deepspeed::optim {

using base::Buffer;
using base::ConstBuffer;
using base::Dtype;

/// The numbers of one parameter group that a schedule or a user may change between steps.
struct Hyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

/// One contiguous piece of one parameter group for one update. All buffers have the same numel and the same offset into
/// the logical parameters; host memory.
struct Piece {
  Buffer master;               ///< fp32 weights, updated in place
  ConstBuffer gradient;        ///< fp32, bf16 or fp16
  std::vector<Buffer> states;  ///< one for each of UpdateRule::states(), fp32
  Buffer working;              ///< the model's own copy (fp32, bf16 or fp16), rewritten from master; data null = none
};

/// What an optimizer keeps for each element.
struct StateSpec {
  std::string name;  ///< "exp_avg", ...: the name in checkpoints
  Dtype type = Dtype::f32;
};

/// What a rule must see at once.
enum class Needs {
  elementwise,     ///< any piece of any parameter
  parameter_norms  ///< two phases with a reduction between (Lamb)
  ,
  whole_matrices  ///< Muon
};

/// An optimizer's arithmetic on spans of master weights, gradients and states. It never sees ranks or stages.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual const std::string& name() const = 0;
  virtual Needs needs() const { return Needs::elementwise; }
  virtual std::vector<StateSpec> states() const = 0;
  /// Updates one piece. `step` is 1-based and counts applied (not skipped) steps. The gradient is multiplied by
  /// `gradient_scale` (1 / loss scale x clip factor) as it is read; it isn't written.
  virtual void update(const Piece& piece, const Hyper& hyper, std::int64_t step, float gradient_scale) = 0;
};

}  // namespace deepspeed::optim
