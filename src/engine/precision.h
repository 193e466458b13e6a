// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"
#include "config/config.h"

namespace deepspeed::engine {

/// The types that a configuration trains in.
struct Precision {
  base::Dtype working = base::Dtype::f32;       ///< weights and activations
  base::Dtype accumulation = base::Dtype::f32;  ///< the sum of micro-batch gradients: data_types.grad_accum_dtype
  bool scaled = false;                          ///< fp16: the loss is scaled
  bool skip_non_finite = false;  ///< a step whose gradients hold NaN or Inf is skipped, else it ends the run
};

/// The element type that a key names; nullopt where it is null. Throws ConfigError for one that training doesn't take.
std::optional<base::Dtype> dtype_at(const config::Config& config, const std::string& key);

/// Reads fp16, bf16 and data_types. fp16 needs an accelerator: without one (DS_ACCELERATOR=cpu lets the CPU stand for
/// it) throws ConfigError.
Precision precision_of(const config::Config& config, bool accelerator);

}  // namespace deepspeed::engine
