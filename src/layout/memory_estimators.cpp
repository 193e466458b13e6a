// SPDX-License-Identifier: Apache-2.0
#include "layout/memory_estimators.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace deepspeed::layout {
namespace {

std::string plural(int n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string head(std::int64_t total_params, const std::string& largest, int gpus, int nodes) {
  return fmt::format(
      "Estimated memory needed for params, optim states and gradients for a:\n"
      "HW: Setup with {}, {} per node.\n"
      "SW: Model with {}M total params{}.\n"
      "  per CPU  |  per GPU |   Options\n",
      plural(nodes, "node"), plural(gpus, "GPU"), total_params / 1'000'000, largest);
}

std::string line(const MemoryNeeds& needs, const std::string& options) {
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  return fmt::format(" {:7.2f}GB | {:6.2f}GB | {}\n", static_cast<double>(needs.cpu) / gib,
                     static_cast<double>(needs.gpu) / gib, options);
}

const char* device(bool cpu) {
  return cpu ? "cpu " : "none";
}

}  // namespace

MemoryNeeds estimate_zero2_model_states_mem_needs(std::int64_t total_params, int num_gpus_per_node, int num_nodes,
                                                  bool cpu_offload, double additional_buffer_factor) {
  const int gpus = num_nodes * num_gpus_per_node;
  const auto p = static_cast<double>(total_params);
  MemoryNeeds needs;
  if (cpu_offload) {
    needs.gpu = 2 * total_params;
    needs.cpu = static_cast<std::int64_t>(p * std::max(4 * gpus, 16) * additional_buffer_factor);
  } else {
    needs.gpu = 2 * total_params + static_cast<std::int64_t>(18 * p / gpus);
    needs.cpu = static_cast<std::int64_t>(p * 4 * num_gpus_per_node * additional_buffer_factor);
  }
  return needs;
}

MemoryNeeds estimate_zero3_model_states_mem_needs(std::int64_t total_params, std::int64_t largest_layer_params,
                                                  int num_gpus_per_node, int num_nodes, bool cpu_offload,
                                                  bool cpu_offload_params, bool zero_init,
                                                  double additional_buffer_factor) {
  const int gpus = num_nodes * num_gpus_per_node;
  const double share = 1.0 / num_nodes;
  const auto p = static_cast<double>(total_params);
  MemoryNeeds needs;
  needs.largest_layer = 4 * largest_layer_params;
  needs.gpu = needs.largest_layer;
  double cpu = 0;
  if (cpu_offload) {
    const double states = cpu_offload_params ? 18 : 16;
    if (!cpu_offload_params) needs.gpu += static_cast<std::int64_t>(2 * p / gpus);
    cpu = p * (zero_init ? states * share : std::max(4.0 * num_gpus_per_node, states * share));
  } else {
    needs.gpu += static_cast<std::int64_t>(18 * p / gpus);
    cpu = (zero_init ? static_cast<double>(largest_layer_params) : p) * 4 * num_gpus_per_node;
  }
  needs.cpu = static_cast<std::int64_t>(cpu * additional_buffer_factor);
  return needs;
}

std::string estimate_zero2_model_states_mem_needs_all_cold(std::int64_t total_params, int num_gpus_per_node,
                                                           int num_nodes, double additional_buffer_factor) {
  std::string text = head(total_params, "", num_gpus_per_node, num_nodes);
  for (const bool offload : {true, false}) {
    text += line(estimate_zero2_model_states_mem_needs(total_params, num_gpus_per_node, num_nodes, offload,
                                                       additional_buffer_factor),
                 fmt::format("offload_optimizer={}", device(offload)));
  }
  return text;
}

std::string estimate_zero3_model_states_mem_needs_all_cold(std::int64_t total_params, std::int64_t largest_layer_params,
                                                           int num_gpus_per_node, int num_nodes,
                                                           double additional_buffer_factor) {
  std::string text = head(total_params, fmt::format(", {}M largest layer params", largest_layer_params / 1'000'000),
                          num_gpus_per_node, num_nodes);
  for (const auto& [optimizer, params] : {std::pair{true, true}, {true, false}, {false, false}}) {
    for (const bool zero_init : {true, false}) {
      text +=
          line(estimate_zero3_model_states_mem_needs(total_params, largest_layer_params, num_gpus_per_node, num_nodes,
                                                     optimizer, params, zero_init, additional_buffer_factor),
               fmt::format("offload_param={}, offload_optimizer={}, zero_init={}", device(params), device(optimizer),
                           zero_init ? 1 : 0));
    }
  }
  return text;
}

}  // namespace deepspeed::layout
