// SPDX-License-Identifier: Apache-2.0
#include "zero/sharded_optimizer.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "kernels/host.h"
#include "zero/tensor_buffer.h"

namespace deepspeed::zero {
namespace {

/// Rows whose reduction may be under way at once: their local gradients are held until it is done.
constexpr std::size_t max_in_flight = 2;

std::vector<std::int64_t> even_counts(std::int64_t numel, int ranks) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(numel * (r + 1) / ranks - numel * r / ranks);
  return counts;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::shared_ptr<comm::Group> data, std::vector<ParameterGroup> rows,
                                   std::vector<optim::Hyper> hypers, std::unique_ptr<optim::UpdateRule> rule,
                                   Settings settings)
    : data_(std::move(data)), hypers_(std::move(hypers)), rule_(std::move(rule)), settings_(settings) {
  for (ParameterGroup& row : rows) {
    // Weights built or loaded on each rank may differ; training starts from those of rank 0.
    for (NamedParameter& parameter : row.parameters) {
      const at::Tensor whole = parameter.tensor.detach().contiguous();
      data_->broadcast(view(whole), 0).wait();
      if (whole.data_ptr() != parameter.tensor.data_ptr()) parameter.tensor.set_data(whole);
    }
    rows_.push_back(std::make_unique<FlatGroup>(std::move(row), data_->rank(), data_->size(), settings_.placement,
                                                settings_.working, settings_.accumulation, rule_->states()));
    const FlatGroup& flat = *rows_.back();
    for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
      places_[flat.parameters()[i].tensor.unsafeGetTensorImpl()] = {rows_.size() - 1, i};
    }
  }
  reductions_.resize(rows_.size());
}

ShardedOptimizer::~ShardedOptimizer() = default;

FlatGroup* ShardedOptimizer::row_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? nullptr : rows_[found->second.row].get();
}

void ShardedOptimizer::begin_backward(bool boundary) {
  // A second backward before the update adds to what the first one began to reduce.
  for (std::size_t row = 0; row < rows_.size(); ++row) finish(row);
  for (Reduction& reduction : reductions_) reduction.ready = reduction.launched = false;
  launched_ = 0;
  reducing_ = !local_serves() && (boundary || gradients_sharded());
}

void ShardedOptimizer::accumulate(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  if (found == places_.end()) return;
  const Place place = found->second;
  if (reductions_[place.row].launched) {
    throw std::logic_error(fmt::format(
        "parameter '{}' got a gradient after its row was reduced: it is used outside the unit that holds it. Register "
        "it in the model outside of that unit too, as a tied weight is, or use it inside only",
        rows_[place.row]->parameters()[place.parameter].name));
  }
  rows_[place.row]->accumulate(place.parameter, gradient);
}

void ShardedOptimizer::row_done(const FlatGroup& row) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].get() == &row) reductions_[i].ready = true;
  }
  launch_ready();
}

void ShardedOptimizer::end_backward() {
  for (Reduction& reduction : reductions_) reduction.ready = true;
  launch_ready();
  if (!reducing_ || !gradients_sharded()) return;
  for (std::size_t row = 0; row < rows_.size(); ++row) finish(row);
}

// Ranks may use different units in a step, so rows go out in one fixed order, last row first, whatever is ready.
void ShardedOptimizer::launch_ready() {
  if (!reducing_) return;
  while (launched_ < rows_.size()) {
    const std::size_t row = rows_.size() - 1 - launched_;
    if (!reductions_[row].ready) return;
    launch(row);
    ++launched_;
  }
}

void ShardedOptimizer::launch(std::size_t index) {
  FlatGroup& row = *rows_[index];
  Reduction& reduction = reductions_[index];
  if (in_flight_.size() >= max_in_flight) finish(in_flight_.front());
  const int ranks = data_->size();
  const float scale = 1.0F / static_cast<float>(ranks);
  const base::Buffer local = row.local_gradient();
  reduction.incoming = at::empty({row.owned().numel()}, at::kFloat);

  // Bucket by bucket of the row. A bucket's elements go to their owners, or, where every rank keeps the mean, are split
  // evenly and gathered again: the sum is formed in rank order either way.
  for (std::int64_t begin = 0; begin < local.numel; begin += settings_.reduce_bucket) {
    const std::int64_t end = std::min(local.numel, begin + settings_.reduce_bucket);
    const std::vector<std::int64_t> counts =
        optimizer_sharded() ? row.partition().counts(begin, end) : even_counts(end - begin, ranks);
    const auto own_rank = static_cast<std::size_t>(data_->rank());
    const std::int64_t before = std::accumulate(counts.begin(), counts.begin() + data_->rank(), std::int64_t{0});
    const std::int64_t own = counts[own_rank];
    const base::Buffer out = view(reduction.incoming, own == 0 ? 0 : begin + before - row.owned().begin, own);
    const base::Buffer bucket{
        static_cast<char*>(local.data) + begin * static_cast<std::int64_t>(base::size_of(local.type)), end - begin,
        local.type};
    reduction.pending.push_back(data_->ordered_reduce_scatter(bucket, counts, out, scale, false));
    if (!optimizer_sharded()) {
      reduction.pending.push_back(data_->all_gather(out, counts, view(reduction.incoming, begin, end - begin)));
    }
  }
  reduction.launched = true;
  in_flight_.push_back(index);
  if (!settings_.overlap) finish(index);
}

void ShardedOptimizer::finish(std::size_t index) {
  const auto found = std::find(in_flight_.begin(), in_flight_.end(), index);
  if (found == in_flight_.end()) return;
  in_flight_.erase(found);
  Reduction& reduction = reductions_[index];
  for (comm::Work& work : reduction.pending) work.wait();
  reduction.pending.clear();
  if (!gradients_sharded()) return;
  rows_[index]->drop_local_gradient(true);
  if (!reduction.has_sum && settings_.accumulation == base::Dtype::f32) {
    reduction.sum = std::move(reduction.incoming);
  } else if (!reduction.has_sum) {
    reduction.sum = at::empty({reduction.incoming.numel()}, scalar_type(settings_.accumulation));
    kernels::cast(view(reduction.sum), view(reduction.incoming));
  } else {
    kernels::accumulate(view(reduction.sum), view(reduction.incoming));
  }
  reduction.has_sum = true;
  reduction.incoming = at::Tensor();
}

base::Buffer ShardedOptimizer::mean_gradient(std::size_t index) {
  const Reduction& reduction = reductions_[index];
  if (gradients_sharded()) return view(reduction.sum);
  if (!local_serves()) return view(reduction.incoming);
  return rows_[index]->local_gradient();
}

void ShardedOptimizer::gather(FlatGroup& row) {
  if (row.whole()) return;
  const auto index = static_cast<std::uint64_t>(
      std::find_if(rows_.begin(), rows_.end(), [&](const auto& r) { return r.get() == &row; }) - rows_.begin());
  gathers_ = gathers_ * 0x100000001b3ULL + index + 1;
  row.gather(*data_).wait();
}

// Units of equal size could be exchanged between ranks without any collective failing.
void ShardedOptimizer::check_same_gathers() {
  if (settings_.placement.parameters == layout::Spread::replicated || data_->size() == 1) return;
  const auto hash = static_cast<double>(gathers_ & ((std::uint64_t{1} << 52) - 1));
  gathers_ = 0;
  double largest[2] = {hash, -hash};
  data_->all_reduce({largest, 2, base::Dtype::f64}, comm::ReduceOp::max).wait();
  if (largest[0] == -largest[1]) return;
  throw base::CommError(
      "the ranks used the model's units in different orders in one step: with sharded parameters (ZeRO stage 3) every "
      "rank must run the same units in the same order. Nothing was updated in this step; use stage 0, 1 or 2 for a "
      "model whose path depends on the rank's data");
}

double ShardedOptimizer::reduce() {
  check_same_gathers();
  // Gradients that came without begin_backward, or before a boundary that was forced, are still to be reduced.
  if (!local_serves() && launched_ < rows_.size()) {
    reducing_ = true;
    for (Reduction& reduction : reductions_) reduction.ready = true;
    launch_ready();
  }
  double sum = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    finish(row);
    sum += kernels::sum_squares(mean_gradient(row));
  }
  if (optimizer_sharded() && data_->size() > 1) sum = data_->all_reduce_value(sum);
  return sum;
}

void ShardedOptimizer::update(float factor) {
  ++steps_;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    FlatGroup& row = *rows_[i];
    if (row.owned().numel() == 0) continue;
    optim::Piece piece;
    piece.master = row.master();
    piece.gradient = mean_gradient(i);
    for (const at::Tensor& state : row.states) piece.states.push_back(view(state));
    if (row.has_own_master()) piece.working = row.owned_working();
    rule_->update(piece, hypers_[row.hyper()], steps_, factor);
  }
  refresh_whole_rows();
}

void ShardedOptimizer::refresh_whole_rows() {
  if (!optimizer_sharded()) return;
  std::vector<comm::Work> gathers;
  for (const auto& row : rows_) {
    if (row->keep_whole()) gathers.push_back(row->gather(*data_));
  }
  for (comm::Work& gather : gathers) gather.wait();
}

void ShardedOptimizer::clear_gradients() {
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    finish(row);
    rows_[row]->drop_local_gradient(gradients_sharded());
    reductions_[row] = Reduction();
  }
  launched_ = 0;
  reducing_ = false;
}

}  // namespace deepspeed::zero
