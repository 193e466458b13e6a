// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/data.h"

namespace deepspeed::data {

struct BatchOptions {
  std::int64_t sequence_length = 0;
  std::int64_t micro_batch = 1;   ///< rows of one micro batch on one rank (train_micro_batch_size_per_gpu)
  std::int64_t accumulation = 1;  ///< micro batches of a step (gradient_accumulation_steps)
  std::int64_t data_ranks = 1;    ///< ranks that take different samples
  bool shuffle = true;
  bool drop_last = false;  ///< dataloader_drop_last
  std::uint64_t seed = 0;
};

/// The batches of a training run: what each rank takes at each step follows from the options and the number of samples
/// taken before, so that a resumed run and one at another rank count see the same data.
///
/// The last partial batch: the samples run on through the epochs, so an epoch's left-over samples and the first of the
/// next share a step; every step is full, every sample is taken once an epoch. With drop_last an epoch is
/// floor(samples / global batch) whole steps and its left-over samples are not taken (with shuffle, other ones in each
/// epoch); fewer samples than one global batch are then a DataError.
class BatchReader {
 public:
  /// Throws DataError where the source holds no sample, or no full batch with drop_last.
  BatchReader(std::shared_ptr<const TokenSource> source, const BatchOptions& options);

  const BatchOptions& options() const { return options_; }
  /// Samples in the source.
  std::int64_t samples() const { return samples_; }
  /// Samples of one step over all ranks: micro_batch * accumulation * data_ranks.
  std::int64_t global_batch() const;
  /// Samples taken in one epoch.
  std::int64_t samples_per_epoch() const;
  /// Steps that take every sample of `epochs` epochs; a last step that they don't fill goes on into the next epoch.
  std::int64_t steps(double epochs) const;

  /// Epochs done after `position` samples.
  double epochs(std::int64_t position) const {
    return static_cast<double>(position) / static_cast<double>(samples_per_epoch());
  }

  /// The sample of one row. `position` = samples taken by all earlier steps (step * global_batch() while the batch size
  /// never changed); the row is (micro * data_ranks + rank) * micro_batch + row of the step's global batch.
  std::int64_t sample(std::int64_t position, std::int64_t micro, std::int64_t rank, std::int64_t row) const;

  /// Reads micro batch `micro` of `rank`: inputs and targets are [micro_batch, sequence_length], row after row; targets
  /// are the next tokens.
  void read(std::int64_t position, std::int64_t micro, std::int64_t rank, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  BatchOptions options_;
  std::int64_t samples_;
  Sampler sampler_;
};

/// Every sample of a source once, in order, for evaluation. Each rank has the same number of batches: batch i takes
/// samples [i * W * b, (i + 1) * W * b), rank r the r-th b of them; in the last one the n that are left are shared out
/// evenly, rank r taking [r * n / W, (r + 1) * n / W). A mean over the set weighs each batch by its rows.
class EvaluationReader {
 public:
  /// Throws DataError where the source holds no sample.
  EvaluationReader(std::shared_ptr<const TokenSource> source, std::int64_t sequence_length, std::int64_t micro_batch,
                   std::int64_t data_ranks);

  struct Rows {
    std::int64_t first = 0;  ///< sample of the first row; the others follow it
    std::int64_t count = 0;  ///< 0 on ranks that the last batch doesn't reach
  };

  std::int64_t samples() const { return samples_; }
  std::int64_t batches() const;
  Rows rows(std::int64_t batch, std::int64_t rank) const;
  /// Reads rows(batch, rank) into [count, sequence_length] at the start of the spans (each of micro_batch rows) and
  /// returns count. With count 0 the first row is a real sample that another rank counts: a rank that must take part in
  /// the forward pass can run on it with weight 0.
  std::int64_t read(std::int64_t batch, std::int64_t rank, std::span<std::int64_t> inputs,
                    std::span<std::int64_t> targets) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  std::int64_t sequence_length_;
  std::int64_t micro_batch_;
  std::int64_t data_ranks_;
  std::int64_t samples_;
};

}  // namespace deepspeed::data
