// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace deepspeed::layout {

/// DeepSpeed's rules of thumb for what mixed precision training with Adam takes, by its names; all in bytes. They count
/// states with a factor for buffers and know nothing of activations; memory_model.h says what this library takes.
struct MemoryNeeds {
  std::int64_t cpu = 0;
  std::int64_t gpu = 0;
  std::int64_t largest_layer = 0;  ///< ZeRO-3 only
};

MemoryNeeds estimate_zero2_model_states_mem_needs(std::int64_t total_params, int num_gpus_per_node = 1,
                                                  int num_nodes = 1, bool cpu_offload = true,
                                                  double additional_buffer_factor = 1.5);
MemoryNeeds estimate_zero3_model_states_mem_needs(std::int64_t total_params, std::int64_t largest_layer_params,
                                                  int num_gpus_per_node = 1, int num_nodes = 1, bool cpu_offload = true,
                                                  bool cpu_offload_params = true, bool zero_init = true,
                                                  double additional_buffer_factor = 1.5);
/// The tables that DeepSpeed prints, with a line end at the end of each line.
std::string estimate_zero2_model_states_mem_needs_all_cold(std::int64_t total_params, int num_gpus_per_node = 1,
                                                           int num_nodes = 1, double additional_buffer_factor = 1.5);
std::string estimate_zero3_model_states_mem_needs_all_cold(std::int64_t total_params, std::int64_t largest_layer_params,
                                                           int num_gpus_per_node = 1, int num_nodes = 1,
                                                           double additional_buffer_factor = 1.5);

}  // namespace deepspeed::layout
