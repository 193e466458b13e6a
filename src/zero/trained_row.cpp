// SPDX-License-Identifier: Apache-2.0
#include "zero/trained_row.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/host.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::zero {

TrainedRow::TrainedRow(std::shared_ptr<Row> row, std::size_t hyper, const layout::Placement& placement,
                       base::Dtype accumulation, const std::vector<optim::StateSpec>& state_specs, Arena gradients,
                       bool table)
    : row_(std::move(row)),
      hyper_(hyper),
      optimizer_sharded_(placement.optimizer == layout::Spread::sharded),
      table_(table),
      accumulation_(accumulation),
      arena_(std::move(gradients)) {
  owned_ = optimizer_sharded_ ? row_->share() : Range{0, partition().numel()};
  touched_.assign(parameters().size(), 0);
  seen_.assign(parameters().size(), 0);
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
  seen_[parameter] = 1;
  if (gradient.is_sparse()) return accumulate_rows(parameter, gradient);
  const at::Tensor dense = gradient.contiguous();
  const base::Buffer place = place_of(parameter);
  if (touched_[parameter] != 0) {
    kernels::accumulate(place, nn::view(dense));
  } else {
    kernels::cast(place, nn::view(dense));
    touched_[parameter] = 1;
  }
}

// Pair by pair: a row that comes several times is summed up in the accumulation's type, without a dense copy.
void TrainedRow::accumulate_rows(std::size_t parameter, const at::Tensor& gradient) {
  if (gradient.sparse_dim() != 1) return accumulate(parameter, gradient.to_dense());
  const base::Buffer place = place_of(parameter);
  if (touched_[parameter] == 0) {
    kernels::zero(place);
    touched_[parameter] = 1;
  }
  const at::Tensor indices = gradient._indices().contiguous();
  const at::Tensor values = gradient._values().contiguous();
  const std::int64_t pairs = values.size(0);
  if (pairs == 0) return;
  const std::int64_t width = values.numel() / pairs;
  const auto* index = indices.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < pairs; ++i) {
    kernels::accumulate(place.part(index[i] * width, width), nn::view(values, i * width, width));
  }
}

base::Buffer TrainedRow::place_of(std::size_t parameter) const {
  return nn::view(local_, partition().offset_of(parameter), partition().numel_of(parameter));
}

std::int64_t TrainedRow::table_width() const {
  const std::int64_t rows = parameters()[0].tensor.size(0);
  return rows == 0 ? 0 : partition().numel() / rows;
}

std::vector<std::int64_t> TrainedRow::table_rows() const {
  std::vector<std::int64_t> found;
  if (touched_[0] == 0 || partition().numel() == 0) return found;
  const std::int64_t width = table_width();
  for (std::int64_t row = 0; row < partition().numel() / width; ++row) {
    const base::Buffer values = nn::view(local_, row * width, width);
    const auto* bytes = static_cast<const char*>(values.data);
    // All bytes are like the first one, which is zero.
    if (bytes[0] != 0 || std::memcmp(bytes, bytes + 1, values.bytes() - 1) != 0) found.push_back(row);
  }
  return found;
}

base::Buffer TrainedRow::local_gradient() {
  make_local();
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    if (touched_[i] != 0) continue;
    kernels::zero(place_of(i));
    touched_[i] = 1;
  }
  return nn::view(local_, 0, partition().numel());
}

void TrainedRow::forget_seen() {
  std::fill(seen_.begin(), seen_.end(), 0);
}

void TrainedRow::drop_local_gradient(bool free) {
  std::fill(touched_.begin(), touched_.end(), 0);
  if (free) local_ = at::Tensor();
}

}  // namespace deepspeed::zero
