// SPDX-License-Identifier: Apache-2.0
#include "data/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace deepspeed::data {
namespace {

std::int64_t require_samples(const TokenSource& source, std::int64_t sequence_length) {
  const std::int64_t samples = sample_count(source.size(), sequence_length);
  if (samples == 0) {
    throw base::DataError(fmt::format(
        "{}: {} tokens are fewer than one sample (data.sequence_length + 1 = {}); give more data or a shorter sequence",
        source.size() > 0 ? source.place(0).file : "the data", source.size(), sequence_length + 1));
  }
  return samples;
}

/// One row: L inputs, and the same one token further on.
void read_row(const TokenSource& source, std::int64_t sample, std::int64_t length, std::int64_t row,
              std::span<std::int64_t> inputs, std::span<std::int64_t> targets) {
  std::vector<std::int64_t> window(static_cast<std::size_t>(length) + 1);
  source.read(sample * length, window);
  std::copy(window.begin(), window.end() - 1, inputs.begin() + row * length);
  std::copy(window.begin() + 1, window.end(), targets.begin() + row * length);
}

void require_room(std::int64_t rows, std::int64_t length, std::size_t inputs, std::size_t targets) {
  const auto needed = static_cast<std::size_t>(rows * length);
  if (inputs >= needed && targets >= needed) return;
  throw base::DataError(fmt::format("a batch of {} x {} tokens doesn't fit into {} inputs and {} targets", rows, length,
                                    inputs, targets));
}

}  // namespace

BatchReader::BatchReader(std::shared_ptr<const TokenSource> source, const BatchOptions& options)
    : source_(std::move(source)),
      options_(options),
      samples_(require_samples(*source_, options.sequence_length)),
      sampler_(samples_, options.shuffle, options.seed) {
  if (options_.drop_last && samples_ < global_batch()) {
    throw base::DataError(
        fmt::format("{}: {} samples hold no full batch of {}, and dataloader_drop_last drops what is less; give more "
                    "data, a smaller "
                    "train_batch_size, or set dataloader_drop_last to false",
                    source_->place(0).file, samples_, global_batch()));
  }
}

std::int64_t BatchReader::global_batch() const {
  return options_.micro_batch * options_.accumulation * options_.data_ranks;
}

std::int64_t BatchReader::samples_per_epoch() const {
  return options_.drop_last ? samples_ / global_batch() * global_batch() : samples_;
}

std::int64_t BatchReader::steps(double epochs) const {
  return static_cast<std::int64_t>(
      std::ceil(epochs * static_cast<double>(samples_per_epoch()) / static_cast<double>(global_batch())));
}

std::int64_t BatchReader::sample(std::int64_t position, std::int64_t micro, std::int64_t rank, std::int64_t row) const {
  const std::int64_t place = position + (micro * options_.data_ranks + rank) * options_.micro_batch + row;
  const std::int64_t epoch = place / samples_per_epoch();
  return sampler_.at(epoch * samples_ + place % samples_per_epoch());
}

void BatchReader::read(std::int64_t position, std::int64_t micro, std::int64_t rank, std::span<std::int64_t> inputs,
                       std::span<std::int64_t> targets) const {
  require_room(options_.micro_batch, options_.sequence_length, inputs.size(), targets.size());
  for (std::int64_t row = 0; row < options_.micro_batch; ++row) {
    read_row(*source_, sample(position, micro, rank, row), options_.sequence_length, row, inputs, targets);
  }
}

EvaluationReader::EvaluationReader(std::shared_ptr<const TokenSource> source, std::int64_t sequence_length,
                                   std::int64_t micro_batch, std::int64_t data_ranks)
    : source_(std::move(source)),
      sequence_length_(sequence_length),
      micro_batch_(micro_batch),
      data_ranks_(data_ranks),
      samples_(require_samples(*source_, sequence_length)) {}

std::int64_t EvaluationReader::batches() const {
  const std::int64_t together = micro_batch_ * data_ranks_;
  return (samples_ + together - 1) / together;
}

EvaluationReader::Rows EvaluationReader::rows(std::int64_t batch, std::int64_t rank) const {
  const std::int64_t together = micro_batch_ * data_ranks_;
  const std::int64_t first = batch * together;
  const std::int64_t count = std::clamp<std::int64_t>(samples_ - first, 0, together);
  const std::int64_t begin = rank * count / data_ranks_;
  const std::int64_t end = (rank + 1) * count / data_ranks_;
  return {first + begin, end - begin};
}

std::int64_t EvaluationReader::read(std::int64_t batch, std::int64_t rank, std::span<std::int64_t> inputs,
                                    std::span<std::int64_t> targets) const {
  require_room(micro_batch_, sequence_length_, inputs.size(), targets.size());
  const Rows mine = rows(batch, rank);
  for (std::int64_t row = 0; row < std::max<std::int64_t>(mine.count, 1); ++row) {
    read_row(*source_, std::min(mine.first + row, samples_ - 1), sequence_length_, row, inputs, targets);
  }
  return mine.count;
}

}  // namespace deepspeed::data
