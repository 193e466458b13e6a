// SPDX-License-Identifier: Apache-2.0
#include "zero/flat_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "zero/tensor_buffer.h"

namespace deepspeed::zero {
namespace {

std::vector<std::int64_t> numels_of(const ParameterGroup& group) {
  std::vector<std::int64_t> numels;
  numels.reserve(group.parameters.size());
  for (const NamedParameter& p : group.parameters) numels.push_back(p.tensor.numel());
  return numels;
}

Range part_of(const layout::Partition& partition, layout::Spread spread, int rank) {
  if (spread == layout::Spread::replicated) return {0, partition.numel()};
  const std::int64_t begin = std::min(partition.slice_size() * rank, partition.numel());
  return {begin, std::min(partition.slice_size() * (rank + 1), partition.numel())};
}

}  // namespace

FlatGroup::FlatGroup(ParameterGroup group, int rank, int ranks, const layout::Placement& placement,
                     base::Dtype working_type, base::Dtype accumulation_type,
                     const std::vector<optim::StateSpec>& state_specs)
    : hyper(group.hyper), parameters_(std::move(group.parameters)), partition_(numels_of({parameters_, {}}), ranks) {
  const c10::AutoGradMode no_grad(false);
  owned_ = part_of(partition_, placement.optimizer, rank);
  touched.assign(parameters_.size(), 0);

  working = at::zeros({partition_.padded()}, scalar_type(working_type));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    at::Tensor place = working.narrow(0, partition_.offset_of(i), parameter.numel()).view(parameter.sizes());
    place.copy_(parameter);
    parameter.set_data(place);
  }
  accumulation = at::zeros({partition_.padded()}, scalar_type(accumulation_type));
  if (ranks > 1) reduced = at::zeros({owned_.numel()}, at::kFloat);
  if (working_type != base::Dtype::f32) {
    master_ = working.narrow(0, owned_.begin, owned_.numel()).to(at::kFloat);
  }
  for (const optim::StateSpec& spec : state_specs) {
    states.push_back(at::zeros({owned_.numel()}, scalar_type(spec.type)));
  }
}

base::Buffer FlatGroup::master() const {
  if (master_.defined()) return view(master_);
  return view(working, owned_.begin, owned_.numel());
}

void FlatGroup::clear_gradients() {
  std::fill(touched.begin(), touched.end(), 0);
}

}  // namespace deepspeed::zero
