// SPDX-License-Identifier: Apache-2.0
#include "zero/memory_estimators.h"

#include <algorithm>
#include <unordered_set>

#include "layout/memory_estimators.h"

namespace deepspeed::zero {

ModelSize size_of(const torch::nn::Module& model) {
  ModelSize size;
  std::unordered_set<const void*> seen;
  const auto visit = [&](const auto& self, const torch::nn::Module& module) -> void {
    std::int64_t own = 0;
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      own += parameter.numel();
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) size.total_params += parameter.numel();
    }
    size.largest_layer_params = std::max(size.largest_layer_params, own);
    for (const auto& child : module.children()) self(self, *child);
  };
  visit(visit, model);
  return size;
}

std::string estimate_zero2_model_states_mem_needs_all_live(const torch::nn::Module& model, int num_gpus_per_node,
                                                           int num_nodes, double additional_buffer_factor) {
  return layout::estimate_zero2_model_states_mem_needs_all_cold(size_of(model).total_params, num_gpus_per_node,
                                                                num_nodes, additional_buffer_factor);
}

std::string estimate_zero3_model_states_mem_needs_all_live(const torch::nn::Module& model, int num_gpus_per_node,
                                                           int num_nodes, double additional_buffer_factor) {
  const ModelSize size = size_of(model);
  return layout::estimate_zero3_model_states_mem_needs_all_cold(size.total_params, size.largest_layer_params,
                                                                num_gpus_per_node, num_nodes, additional_buffer_factor);
}

}  // namespace deepspeed::zero
