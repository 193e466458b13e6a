// SPDX-License-Identifier: Apache-2.0
#include "zero/sharded_optimizer.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/trace.h"
#include "kernels/host.h"
#include "nn/tensor_buffer.h"

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

ShardedOptimizer::ShardedOptimizer(std::shared_ptr<comm::Group> data, std::vector<ModelRow> rows,
                                   std::vector<optim::Hyper> hypers, std::unique_ptr<optim::UpdateRule> rule,
                                   const Settings& settings)
    : data_(std::move(data)),
      hypers_(std::move(hypers)),
      rule_(std::move(rule)),
      settings_(settings),
      // A slice would come to lie in the memory of the whole gradient that it was reduced from, and keep the rest of
      // it: sharded gradients took as much as whole ones.
      means_(optimizer_sharded() && each_is_reduced() && data_->size() > 1
                 ? Arena(base::ledger::Category::gradients, Arena::Holds::all)
                 : gradients_) {
  std::vector<Row*> released;
  for (ModelRow& row : rows) {
    if (!row.row->holding().keep_whole) released.push_back(row.row.get());
    if (!row.hyper) {
      frozen_.push_back(std::move(row.row));
      continue;
    }
    rows_.push_back(std::make_unique<TrainedRow>(std::move(row.row), *row.hyper, settings_.placement,
                                                 settings_.accumulation, rule_->states(),
                                                 each_is_reduced() ? buckets_ : gradients_, row.table));
    const std::vector<NamedParameter>& parameters = rows_.back()->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      places_[parameters[i].tensor.unsafeGetTensorImpl()] = {rows_.size() - 1, i};
    }
  }
  reductions_.resize(rows_.size());
  gatherer_ = std::make_unique<Gatherer>(*data_, std::move(released), settings_.gatherer);
}

ShardedOptimizer::~ShardedOptimizer() {
  for (Reduction& reduction : reductions_) {
    for (comm::Work& work : reduction.pending) {
      try {
        work.wait();
      } catch (const std::exception&) {  // the collective's own failure has been told
      }
    }
  }
}

bool ShardedOptimizer::each_is_reduced() const {
  return settings_.placement.gradients == layout::Spread::sharded || settings_.reduce_each_backward;
}

TrainedRow* ShardedOptimizer::trained_row_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? nullptr : rows_[found->second.row].get();
}

void ShardedOptimizer::begin_backward(bool boundary, bool sync) {
  // A second backward before the update adds to what the first one began to reduce.
  for (std::size_t row = 0; row < rows_.size(); ++row) finish(row);
  for (Reduction& reduction : reductions_) reduction.ready = reduction.launched = false;
  launched_ = 0;
  gathering_ = true;
  reducing_ = sync && !local_serves() && (boundary || each_is_reduced());
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

void ShardedOptimizer::row_done(const TrainedRow& row) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].get() == &row) reductions_[i].ready = true;
  }
  launch_ready();
}

void ShardedOptimizer::end_backward() {
  for (Reduction& reduction : reductions_) reduction.ready = true;
  launch_ready();
  if (!reducing_) return;
  // What finishes a table's exchange is collective, so that it can't be left to who asks for the mean first.
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (each_is_reduced() || rows_[row]->table()) finish(row);
  }
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
  TrainedRow& row = *rows_[index];
  Reduction& reduction = reductions_[index];
  const base::trace::Subject subject(row.row().name());
  if (in_flight_.size() >= max_in_flight) finish(in_flight_.front());
  if (row.table() && data_->size() > 1) {
    // How many rows each rank has decides how they travel, once that is known.
    reduction.table_rows = row.table_rows();
    reduction.counts.assign(static_cast<std::size_t>(data_->size()), 0);
    reduction.counts[static_cast<std::size_t>(data_->rank())] = static_cast<std::int64_t>(reduction.table_rows.size());
    const base::Buffer counts{reduction.counts.data(), data_->size(), base::Dtype::i64};
    reduction.pending.push_back(data_->all_gather(counts.part(data_->rank(), 1),
                                                  std::vector<std::int64_t>(reduction.counts.size(), 1), counts));
  } else {
    reduce_whole(index);
  }
  reduction.launched = true;
  in_flight_.push_back(index);
  if (!settings_.overlap) finish(index);
}

/// The local gradient of a row as it travels.
base::Buffer ShardedOptimizer::on_its_way(std::size_t index) {
  Reduction& reduction = reductions_[index];
  base::Buffer local = rows_[index]->local_gradient();
  if (data_->size() > 1 && settings_.communication && *settings_.communication != local.type) {
    reduction.sent = buckets_.tensor(local.numel, *settings_.communication);
    kernels::cast(nn::view(reduction.sent), local);
    local = nn::view(reduction.sent);
  }
  if (settings_.before != 1) kernels::scale(local, settings_.before);
  return local;
}

at::Tensor ShardedOptimizer::place_for_mean(std::size_t index) {
  // Where it becomes the sum it is one already.
  const bool becomes_sum = !reductions_[index].has_sum && settings_.accumulation == base::Dtype::f32;
  return (becomes_sum ? means_ : buckets_).tensor(rows_[index]->owned().numel(), base::Dtype::f32);
}

// Bucket by bucket of the row. A bucket's elements go to their owners, or, where every rank keeps the mean, are split
// evenly and gathered again: the sum is formed in rank order either way.
void ShardedOptimizer::reduce_whole(std::size_t index) {
  TrainedRow& row = *rows_[index];
  Reduction& reduction = reductions_[index];
  const base::Buffer local = on_its_way(index);
  reduction.incoming = place_for_mean(index);
  for (std::int64_t begin = 0; begin < local.numel; begin += settings_.reduce_bucket) {
    const std::int64_t end = std::min(local.numel, begin + settings_.reduce_bucket);
    const std::vector<std::int64_t> counts =
        optimizer_sharded() ? row.partition().counts(begin, end) : even_counts(end - begin, data_->size());
    const auto own_rank = static_cast<std::size_t>(data_->rank());
    const std::int64_t before = std::accumulate(counts.begin(), counts.begin() + data_->rank(), std::int64_t{0});
    const std::int64_t own = counts[own_rank];
    const base::Buffer out = nn::view(reduction.incoming, own == 0 ? 0 : begin + before - row.owned().begin, own);
    reduction.pending.push_back(
        data_->ordered_reduce_scatter(local.part(begin, end - begin), counts, out, settings_.after, false));
    if (!optimizer_sharded()) {
      reduction.pending.push_back(data_->all_gather(out, counts, nn::view(reduction.incoming, begin, end - begin)));
    }
  }
}

/// Whether the ranks' rows of a table and their numbers are fewer bytes than the whole table. The same on all ranks.
bool ShardedOptimizer::rows_are_less(std::size_t index) const {
  const Reduction& reduction = reductions_[index];
  const auto element =
      static_cast<std::int64_t>(base::size_of(settings_.communication.value_or(settings_.accumulation)));
  const std::int64_t rows = std::accumulate(reduction.counts.begin(), reduction.counts.end(), std::int64_t{0});
  const std::int64_t mean = optimizer_sharded() ? 0 : static_cast<std::int64_t>(sizeof(float));
  return rows * (rows_[index]->table_width() * element + static_cast<std::int64_t>(sizeof(std::int64_t))) <
         rows_[index]->partition().numel() * (element + mean);
}

// The same numbers are added in the same order as in reduce_whole, but for rows that are zero.
void ShardedOptimizer::exchange_rows(std::size_t index) {
  TrainedRow& row = *rows_[index];
  Reduction& reduction = reductions_[index];
  const std::int64_t width = row.table_width();
  const std::int64_t total = std::accumulate(reduction.counts.begin(), reduction.counts.end(), std::int64_t{0});
  const std::int64_t first =
      std::accumulate(reduction.counts.begin(), reduction.counts.begin() + data_->rank(), std::int64_t{0});
  const auto own = static_cast<std::int64_t>(reduction.table_rows.size());

  reduction.numbers.resize(static_cast<std::size_t>(total));
  std::copy(reduction.table_rows.begin(), reduction.table_rows.end(), reduction.numbers.begin() + first);
  const base::Buffer numbers{reduction.numbers.data(), total, base::Dtype::i64};
  reduction.sent = buckets_.tensor(total * width, settings_.communication.value_or(settings_.accumulation));
  const base::Buffer values = nn::view(reduction.sent);
  const base::Buffer own_values = values.part(first * width, own * width);
  const base::Buffer local = row.local_gradient();
  for (std::int64_t i = 0; i < own; ++i) {
    kernels::cast(own_values.part(i * width, width),
                  local.part(reduction.table_rows[static_cast<std::size_t>(i)] * width, width));
  }
  if (settings_.before != 1) kernels::scale(own_values, settings_.before);
  std::vector<std::int64_t> elements = reduction.counts;
  for (std::int64_t& count : elements) count *= width;
  reduction.pending.push_back(data_->all_gather(numbers.part(first, own), reduction.counts, numbers));
  reduction.pending.push_back(data_->all_gather(own_values, elements, values));
  reduction.incoming = place_for_mean(index);
  kernels::zero(nn::view(reduction.incoming));
  wait_for(reduction);

  const Range owned = row.owned();
  for (std::int64_t i = 0; i < total; ++i) {
    const std::int64_t at = reduction.numbers[static_cast<std::size_t>(i)] * width;
    const std::int64_t begin = std::max(at, owned.begin);
    const std::int64_t numel = std::min(at + width, owned.end) - begin;
    if (numel <= 0) continue;  // another rank's part
    kernels::accumulate(nn::view(reduction.incoming, begin - owned.begin, numel),
                        values.part(i * width + begin - at, numel));
  }
  if (settings_.after != 1) kernels::scale(nn::view(reduction.incoming), settings_.after);
}

void ShardedOptimizer::wait_for(Reduction& reduction) {
  for (comm::Work& work : reduction.pending) {
    if (gathering_) {
      gatherer_->wait(work);
    } else {
      work.wait();
    }
  }
  reduction.pending.clear();
}

void ShardedOptimizer::finish(std::size_t index) {
  const auto found = std::find(in_flight_.begin(), in_flight_.end(), index);
  if (found == in_flight_.end()) return;
  in_flight_.erase(found);
  const std::string& name = rows_[index]->row().name();
  const base::trace::Range range("wait for gradients", "zero", {{"row", name}});
  Reduction& reduction = reductions_[index];
  wait_for(reduction);
  if (!reduction.counts.empty()) {
    const base::trace::Subject subject(name);
    if (rows_are_less(index)) {
      exchange_rows(index);
    } else {
      reduce_whole(index);
      wait_for(reduction);
    }
    reduction.counts.clear();
  }
  reduction.sent = at::Tensor();
  rows_[index]->drop_local_gradient(true);
  // The mean is kept in the accumulation's type, wherever it lives.
  if (!reduction.has_sum && settings_.accumulation == base::Dtype::f32) {
    reduction.sum = std::move(reduction.incoming);
  } else if (!reduction.has_sum) {
    reduction.sum = means_.tensor(reduction.incoming.numel(), settings_.accumulation);
    kernels::cast(nn::view(reduction.sum), nn::view(reduction.incoming));
  } else {
    kernels::accumulate(nn::view(reduction.sum), nn::view(reduction.incoming));
  }
  reduction.has_sum = true;
  reduction.incoming = at::Tensor();
}

base::Buffer ShardedOptimizer::mean_gradient(std::size_t index) const {
  const Reduction& reduction = reductions_[index];
  if (local_serves()) return rows_[index]->local_gradient();
  return reduction.has_sum ? nn::view(reduction.sum) : base::Buffer{nullptr, 0, settings_.accumulation};
}

base::Buffer ShardedOptimizer::mean_gradient(const TrainedRow& row) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].get() != &row) continue;
    finish(i);
    return mean_gradient(i);
  }
  throw std::logic_error("mean_gradient: not a row of this optimizer");
}

std::vector<std::string> ShardedOptimizer::without_gradient() {
  // The caller may leave with an error: nobody is to want weights any more, nor this rank to pass for those who do.
  gatherer_->finish();
  std::vector<std::uint8_t> seen;
  for (const auto& row : rows_) seen.insert(seen.end(), row->seen().begin(), row->seen().end());
  data_->all_reduce({seen.data(), static_cast<std::int64_t>(seen.size()), base::Dtype::u8}, comm::ReduceOp::max).wait();
  std::vector<std::string> names;
  std::size_t i = 0;
  for (const auto& row : rows_) {
    for (const NamedParameter& p : row->parameters()) {
      if (seen[i++] == 0 && p.tensor.requires_grad()) names.push_back(p.name);
    }
  }
  return names;
}

double ShardedOptimizer::reduce() {
  const base::trace::Range range("reduce", "zero");
  // Gradients that came without begin_backward, or before a boundary that was forced, are still to be reduced.
  if (!local_serves() && launched_ < rows_.size()) {
    reducing_ = true;
    for (Reduction& reduction : reductions_) reduction.ready = true;
    launch_ready();
  }
  // From here on the weights may change as soon as this rank is ready.
  gatherer_->finish();
  gathering_ = false;
  double sum = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    finish(row);
    sum += kernels::sum_squares(mean_gradient(row));
  }
  if (optimizer_sharded() && data_->size() > 1) sum = data_->all_reduce_value(sum);
  return sum;
}

void ShardedOptimizer::update_row(std::size_t index, float factor) {
  TrainedRow& row = *rows_[index];
  const base::Buffer gradient = mean_gradient(index);
  for (std::int64_t begin = 0; begin < row.owned().numel(); begin += settings_.sub_group) {
    const std::int64_t numel = std::min(settings_.sub_group, row.owned().numel() - begin);
    optim::Piece piece;
    piece.master = row.master().part(begin, numel);
    piece.gradient = gradient.part(begin, numel);
    for (const at::Tensor& state : row.states) piece.states.push_back(nn::view(state, begin, numel));
    if (row.has_own_master()) piece.working = row.owned_working().part(begin, numel);
    rule_->update(piece, hypers_[row.hyper()], steps_, factor);
  }
}

void ShardedOptimizer::update(float factor) {
  const base::trace::Range range("update", "zero");
  ++steps_;
  for (std::size_t row = 0; row < rows_.size(); ++row) update_row(row, factor);
  refresh_whole_rows();
}

void ShardedOptimizer::refresh_whole_rows() {
  if (!optimizer_sharded()) return;
  std::deque<Row*> coming;
  std::int64_t elements = 0;
  for (const auto& trained : rows_) {
    Row& row = trained->row();
    if (row.state() == Row::State::absent) continue;
    coming.push_back(&row);
    elements += row.numel();
    while (elements > settings_.gather_bucket && coming.size() > 1) {
      coming.front()->wait();
      elements -= coming.front()->numel();
      coming.pop_front();
    }
    row.refresh(*data_);
  }
  for (Row* row : coming) row->wait();
}

void ShardedOptimizer::clear_gradients() {
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    finish(row);
    rows_[row]->drop_local_gradient(!local_serves());
    rows_[row]->forget_seen();
    reductions_[row] = Reduction();
  }
  launched_ = 0;
  reducing_ = false;
}

}  // namespace deepspeed::zero
