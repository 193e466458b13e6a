// SPDX-License-Identifier: Apache-2.0
#include "zero/trained_row.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "kernels/host.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::zero {

TrainedRow::TrainedRow(std::shared_ptr<Row> row, std::size_t hyper, const layout::Placement& placement,
                       base::Dtype accumulation, const std::vector<optim::StateSpec>& state_specs, Arena gradients)
    : row_(std::move(row)),
      hyper_(hyper),
      optimizer_sharded_(placement.optimizer == layout::Spread::sharded),
      accumulation_(accumulation),
      arena_(std::move(gradients)) {
  owned_ = optimizer_sharded_ ? row_->share() : Range{0, partition().numel()};
  touched_.assign(parameters().size(), 0);
  const base::ledger::Scope scope(base::ledger::Category::optimizer);
  if (row_->holding().type != base::Dtype::f32) {
    master_ = at::empty({owned_.numel()}, at::kFloat);
    kernels::cast(nn::view(master_), owned_working());
    row_->on_change = [this] { kernels::cast(nn::view(master_), owned_working()); };
  }
  for (const optim::StateSpec& spec : state_specs) {
    states.push_back(at::zeros({owned_.numel()}, nn::scalar_type(spec.type)));
  }
}

TrainedRow::~TrainedRow() {
  row_->on_change = nullptr;
}

base::Buffer TrainedRow::owned_working() const {
  base::Buffer buffer = optimizer_sharded_ ? row_->weights() : row_->whole_weights();
  buffer.numel = owned_.numel();
  return buffer;
}

base::Buffer TrainedRow::master() const {
  return master_.defined() ? nn::view(master_) : owned_working();
}

void TrainedRow::make_local() {
  if (!local_.defined()) local_ = arena_.tensor(partition().padded(), accumulation_);
}

void TrainedRow::accumulate(std::size_t parameter, const at::Tensor& gradient) {
  make_local();
  const at::Tensor dense = (gradient.is_sparse() ? gradient.to_dense() : gradient).contiguous();
  const base::Buffer place = nn::view(local_, partition().offset_of(parameter), dense.numel());
  if (touched_[parameter] != 0) {
    kernels::accumulate(place, nn::view(dense));
  } else {
    kernels::cast(place, nn::view(dense));
    touched_[parameter] = 1;
  }
}

base::Buffer TrainedRow::local_gradient() {
  make_local();
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    if (touched_[i] != 0) continue;
    kernels::zero(nn::view(local_, partition().offset_of(i), partition().numel_of(i)));
    touched_[i] = 1;
  }
  return nn::view(local_, 0, partition().numel());
}

void TrainedRow::drop_local_gradient(bool free) {
  std::fill(touched_.begin(), touched_.end(), 0);
  if (free) local_ = at::Tensor();
}

}  // namespace deepspeed::zero
