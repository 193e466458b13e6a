// SPDX-License-Identifier: Apache-2.0
#include "nn/random.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

namespace deepspeed::nn {
namespace {

at::Tensor state_of(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

RandomState RandomState::capture(const std::vector<at::Tensor>& tensors) {
  RandomState state;
  state.states_.emplace_back(at::kCPU, state_of(at::kCPU));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const at::Device device = tensor.device();
    const bool held = std::any_of(state.states_.begin(), state.states_.end(),
                                  [&](const auto& entry) { return entry.first == device; });
    if (!held) state.states_.emplace_back(device, state_of(device));
  }
  return state;
}

RandomState RandomState::recapture() const {
  RandomState state;
  for (const auto& [device, ignored] : states_) state.states_.emplace_back(device, state_of(device));
  return state;
}

void RandomState::restore() const {
  for (const auto& [device, value] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(value);
  }
}

}  // namespace deepspeed::nn
