// SPDX-License-Identifier: Apache-2.0
// Reading and writing what belongs to one parameter, whatever rank holds it.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <stdexcept>

#include "engine/engine.h"
#include "kernels/host.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::engine {

/// Where a parameter lies in its row, and what of it this rank owns.
struct Engine::Part {
  zero::TrainedRow* row = nullptr;
  at::Tensor parameter;
  std::string name;
  std::vector<std::int64_t> counts;  ///< elements that each rank owns, in order; empty where each owns all
  std::int64_t before = 0;           ///< elements of the parameter that ranks below this one own
  std::int64_t offset = 0;           ///< of the own elements in a buffer over the row's owned part
  std::int64_t own = 0;

  base::Buffer of(const base::Buffer& owned) const { return owned.part(offset, own); }
};

namespace {

at::Tensor fp32_copy(const base::Buffer& from) {
  at::Tensor copy = at::empty({from.numel}, at::kFloat);
  kernels::cast(nn::view(copy), from);
  return copy;
}

at::Tensor flat_fp32(const at::Tensor& value, std::int64_t numel) {
  if (value.numel() != numel) {
    throw std::invalid_argument(fmt::format("Number of elements do not match: {} != {}", value.numel(), numel));
  }
  return value.detach().to(at::kFloat).contiguous().view({-1});
}

}  // namespace

std::optional<Engine::Part> Engine::part_of(const at::Tensor& parameter) {
  Part part;
  part.row = optimizer_->trained_row_of(parameter);
  if (part.row == nullptr) return std::nullopt;
  part.parameter = parameter;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < part.row->parameters().size(); ++i) {
    if (!part.row->parameters()[i].tensor.is_same(parameter)) continue;
    part.name = part.row->parameters()[i].name;
    begin = part.row->partition().offset_of(i);
  }
  part.own = parameter.numel();
  if (part.row->owned().numel() != part.row->partition().numel()) {
    part.counts = part.row->partition().counts(begin, begin + parameter.numel());
    part.before = std::accumulate(part.counts.begin(), part.counts.begin() + group_->rank(), std::int64_t{0});
    part.own = part.counts[static_cast<std::size_t>(group_->rank())];
  }
  part.offset = part.own == 0 ? 0 : begin + part.before - part.row->owned().begin;
  return part;
}

at::Tensor Engine::whole(const Part& part, const base::Buffer& owned) {
  const at::Tensor own = fp32_copy(part.of(owned));
  if (part.counts.empty()) return own.view(part.parameter.sizes());
  const at::Tensor all = at::empty(part.parameter.sizes(), at::kFloat);
  group_->all_gather(nn::view(own), part.counts, nn::view(all)).wait();
  return all;
}

base::Buffer Engine::state_buffer(const Part& part, const std::string& state) {
  const std::vector<optim::StateSpec> specs = optimizer_->rule().states();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == state) return nn::view(part.row->states[i]);
    names.push_back(specs[i].name);
  }
  throw std::invalid_argument(fmt::format("parameter '{}': the optimizer keeps no state '{}', only: {}", part.name,
                                          state, fmt::join(names, ", ")));
}

std::optional<base::Buffer> Engine::gradient_buffer(const Part& part) {
  if (!partial_) return std::nullopt;
  const base::Buffer mean = optimizer_->mean_gradient(*part.row);
  if (mean.numel != part.row->owned().numel()) return std::nullopt;
  return mean;
}

// The weights that the model computes with follow the masters.
void Engine::set_master(const Part& part, const base::Buffer& values) {
  kernels::cast(part.of(part.row->master()), values);
  if (part.row->has_own_master()) kernels::cast(part.of(part.row->owned_working()), values);
}

void Engine::set_gradient(const Part& part, const at::Tensor& own) {
  const auto gradient = gradient_buffer(part);
  if (!gradient) {
    throw std::logic_error(fmt::format(
        "parameter '{}': there is no mean gradient to set; call this between the boundary's backward and step()",
        part.name));
  }
  const at::Tensor scaled = own * loss_scale();
  kernels::cast(part.of(*gradient), nn::view(scaled));
}

std::optional<at::Tensor> Engine::safe_get_full_fp32_param(const at::Tensor& parameter) {
  const auto part = part_of(parameter);
  if (!part) return std::nullopt;
  return whole(*part, part->row->master());
}

std::optional<at::Tensor> Engine::safe_get_full_optimizer_state(const at::Tensor& parameter, const std::string& state) {
  const auto part = part_of(parameter);
  if (!part) return std::nullopt;
  return whole(*part, state_buffer(*part, state));
}

std::optional<at::Tensor> Engine::safe_get_full_grad(const at::Tensor& parameter) {
  const auto part = part_of(parameter);
  const auto gradient = part ? gradient_buffer(*part) : std::nullopt;
  if (!gradient) return std::nullopt;
  return whole(*part, *gradient).div_(loss_scale());
}

std::optional<at::Tensor> Engine::safe_get_local_fp32_param(const at::Tensor& parameter) {
  const auto part = part_of(parameter);
  if (!part) return std::nullopt;
  return fp32_copy(part->of(part->row->master()));
}

std::optional<at::Tensor> Engine::safe_get_local_optimizer_state(const at::Tensor& parameter,
                                                                 const std::string& state) {
  const auto part = part_of(parameter);
  if (!part) return std::nullopt;
  return fp32_copy(part->of(state_buffer(*part, state)));
}

std::optional<at::Tensor> Engine::safe_get_local_grad(const at::Tensor& parameter) {
  const auto part = part_of(parameter);
  const auto gradient = part ? gradient_buffer(*part) : std::nullopt;
  if (!gradient) return std::nullopt;
  return fp32_copy(part->of(*gradient)).div_(loss_scale());
}

void Engine::safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value) {
  const auto part = part_of(parameter);
  if (!part) return;
  const at::Tensor flat = flat_fp32(value, parameter.numel());
  // What is here for later use differs between ranks, and would be of the old value.
  optimizer_->gatherer().finish();
  set_master(*part, nn::view(flat, part->before, part->own));
  optimizer_->refresh_whole_rows();
}

void Engine::safe_set_full_optimizer_state(const at::Tensor& parameter, const at::Tensor& value,
                                           const std::string& state) {
  const auto part = part_of(parameter);
  if (!part) return;
  const at::Tensor flat = flat_fp32(value, parameter.numel());
  kernels::cast(part->of(state_buffer(*part, state)), nn::view(flat, part->before, part->own));
}

void Engine::safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value) {
  const auto part = part_of(parameter);
  if (part) set_gradient(*part, flat_fp32(value, parameter.numel()).narrow(0, part->before, part->own));
}

void Engine::safe_set_local_fp32_param(const at::Tensor& parameter, const at::Tensor& value) {
  const auto part = part_of(parameter);
  if (!part) return;
  const at::Tensor flat = flat_fp32(value, part->own);
  set_master(*part, nn::view(flat));
}

void Engine::safe_set_local_optimizer_state(const at::Tensor& parameter, const at::Tensor& value,
                                            const std::string& state) {
  const auto part = part_of(parameter);
  if (!part) return;
  const at::Tensor flat = flat_fp32(value, part->own);
  kernels::cast(part->of(state_buffer(*part, state)), nn::view(flat));
}

void Engine::safe_set_local_grad(const at::Tensor& parameter, const at::Tensor& value) {
  const auto part = part_of(parameter);
  if (part) set_gradient(*part, flat_fp32(value, part->own));
}

}  // namespace deepspeed::engine
