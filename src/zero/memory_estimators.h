// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

namespace deepspeed::zero {

/// What DeepSpeed's estimators count of a model, in elements. Whole sizes, also of weights that are sharded.
struct ModelSize {
  std::int64_t total_params = 0;          ///< a shared parameter once
  std::int64_t largest_layer_params = 0;  ///< of the module that holds most itself, without its submodules
};
ModelSize size_of(const torch::nn::Module& model);

/// The tables of layout/memory_estimators.h for a model that exists, by DeepSpeed's names.
std::string estimate_zero2_model_states_mem_needs_all_live(const torch::nn::Module& model, int num_gpus_per_node = 1,
                                                           int num_nodes = 1, double additional_buffer_factor = 1.5);
std::string estimate_zero3_model_states_mem_needs_all_live(const torch::nn::Module& model, int num_gpus_per_node = 1,
                                                           int num_nodes = 1, double additional_buffer_factor = 1.5);

}  // namespace deepspeed::zero
