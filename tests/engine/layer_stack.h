// SPDX-License-Identifier: Apache-2.0
// A model whose memory is easily said: square matrices, each a unit, and hardly any activations.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nn/unit.h"

namespace deepspeed::engine::testing {

struct LayerStack : torch::nn::Module {
  struct Layer : nn::Unit {
    explicit Layer(std::int64_t width) : w(register_parameter("w", at::full({width, width}, 1e-3))) {}
    at::Tensor w;
    Tensors compute(const Tensors& inputs) override { return {at::tanh(at::matmul(inputs[0], w))}; }
  };

  LayerStack(int count, std::int64_t layer_width) : width(layer_width) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module(std::to_string(i), std::make_shared<Layer>(width)));
    }
  }
  at::Tensor loss() {
    at::Tensor x = at::ones({1, width}, at::kBFloat16);
    for (const auto& layer : layers) x = layer->run({x})[0];
    return x.sum();
  }

  std::int64_t width;
  std::vector<std::shared_ptr<Layer>> layers;
};

/// ZeRO's figures are for this: bf16 weights and gradients, an fp32 master and two fp32 states. Three layers of stage 3
/// are live at most.
inline nlohmann::json stack_config(int stage, std::int64_t accumulation, std::int64_t width) {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"gradient_accumulation_steps", accumulation},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
          {"bf16", {{"enabled", true}}},
          {"data_types", {{"grad_accum_dtype", "bf16"}}},
          {"zero_optimization",
           {{"stage", stage},
            {"overlap_comm", true},
            {"stage3_param_persistence_threshold", 0},
            {"stage3_max_live_parameters", 3 * width * width},
            {"stage3_prefetch_bucket_size", width * width},
            {"stage3_max_reuse_distance", 0}}}};
}

}  // namespace deepspeed::engine::testing
