// SPDX-License-Identifier: Apache-2.0
#include "engine/precision.h"

#include <fmt/format.h>

#include "base/error.h"

namespace deepspeed::engine {

std::optional<base::Dtype> dtype_at(const config::Config& config, const std::string& key) {
  const auto name = config.find<std::string>(key);
  if (!name) return std::nullopt;
  base::Dtype type = base::Dtype::f32;
  if (!base::parse_dtype(*name, type)) {
    throw base::ConfigError(fmt::format("{}: '{}' is none of fp32, fp16, bf16", key, *name));
  }
  return type;
}

Precision precision_of(const config::Config& config, bool accelerator) {
  Precision precision;
  if (config.get<bool>("fp16.enabled")) {
    if (!accelerator) {
      throw base::ConfigError(
          "fp16.enabled: Type fp16 is not supported on your device: Cannot use fp16 without accelerator. Use bf16, "
          "which "
          "the CPU has, or set DS_ACCELERATOR=cpu to compute fp16 on the CPU all the same");
    }
    precision.working = base::Dtype::f16;
    precision.scaled = true;
    precision.skip_non_finite = true;
  } else if (config.get<bool>("bf16.enabled")) {
    precision.working = base::Dtype::bf16;
    precision.skip_non_finite = config.get<bool>("bf16.check_grad_overflow");
  }
  if (config.get<std::string>("training.on_nan") == "skip") precision.skip_non_finite = true;
  precision.accumulation = precision.working;
  if (const auto type = dtype_at(config, "data_types.grad_accum_dtype")) precision.accumulation = *type;
  return precision;
}

}  // namespace deepspeed::engine
