// SPDX-License-Identifier: Apache-2.0
#include "data/batches.h"

#include <map>

#include "data_room/support.h"

namespace deepspeed::data {
namespace {

using testing::ElementsAre;

constexpr std::int64_t length = 3;

std::shared_ptr<Counting> samples_of(std::int64_t samples) {
  return std::make_shared<Counting>(samples * length + 1);
}

BatchOptions options(std::int64_t micro_batch, std::int64_t accumulation, std::int64_t ranks, bool drop_last = false,
                     bool shuffle = false) {
  return {.sequence_length = length,
          .micro_batch = micro_batch,
          .accumulation = accumulation,
          .data_ranks = ranks,
          .shuffle = shuffle,
          .drop_last = drop_last,
          .seed = 1234};
}

/// The samples of all rows of one step, in the order of the global batch.
std::vector<std::int64_t> samples_of_step(const BatchReader& reader, std::int64_t step) {
  const BatchOptions& o = reader.options();
  std::vector<std::int64_t> samples;
  for (std::int64_t micro = 0; micro < o.accumulation; ++micro) {
    for (std::int64_t rank = 0; rank < o.data_ranks; ++rank) {
      for (std::int64_t row = 0; row < o.micro_batch; ++row) {
        samples.push_back(reader.sample(step * reader.global_batch(), micro, rank, row));
      }
    }
  }
  return samples;
}

TEST(BatchReader, RowsFollowTheArithmetic) {
  const BatchReader reader(samples_of(100), options(2, 3, 4));
  EXPECT_EQ(reader.samples(), 100);
  EXPECT_EQ(reader.global_batch(), 24);
  // Step 2, micro batch 1, rank 3: rows (1 * 4 + 3) * 2 and the next of samples 48 ...
  EXPECT_EQ(reader.sample(2 * 24, 1, 3, 0), 48 + 14);
  EXPECT_EQ(reader.sample(2 * 24, 1, 3, 1), 48 + 15);
  std::vector<std::int64_t> inputs(2 * length);
  std::vector<std::int64_t> targets(2 * length);
  reader.read(2 * 24, 1, 3, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(186, 187, 188, 189, 190, 191));
  EXPECT_THAT(targets, ElementsAre(187, 188, 189, 190, 191, 192));
  inputs.pop_back();
  expect_refused([&] { reader.read(0, 0, 0, inputs, targets); }, {"2 x 3"});
}

TEST(BatchReader, GlobalBatchIsTheSameAtEveryLayout) {
  for (const bool shuffle : {false, true}) {
    const BatchReader one(samples_of(50), options(8, 1, 1, false, shuffle));
    for (const BatchOptions& layout : {options(4, 1, 2, false, shuffle), options(2, 2, 2, false, shuffle),
                                       options(1, 8, 1, false, shuffle), options(2, 1, 4, false, shuffle)}) {
      const BatchReader other(samples_of(50), layout);
      for (std::int64_t step = 0; step < 20; ++step) {
        EXPECT_EQ(samples_of_step(one, step), samples_of_step(other, step));
      }
    }
  }
}

TEST(BatchReader, ShuffledEpochsHoldEverySampleOnce) {
  for (const std::int64_t samples : {7, 24, 50}) {
    const BatchReader reader(samples_of(samples), options(2, 1, 2, false, true));
    std::vector<std::int64_t> taken;
    for (std::int64_t step = 0; step < samples; ++step) {  // samples steps of 4 are 4 epochs
      const auto rows = samples_of_step(reader, step);
      taken.insert(taken.end(), rows.begin(), rows.end());
    }
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<std::int64_t> one(taken.begin() + epoch * samples, taken.begin() + (epoch + 1) * samples);
      std::sort(one.begin(), one.end());
      for (std::int64_t i = 0; i < samples; ++i) EXPECT_EQ(one[static_cast<std::size_t>(i)], i);
    }
  }
}

// Ten micro batches an epoch, four a step: two are left over at the end of the first epoch.
TEST(BatchReader, C12MicroBatchesLeftOverAreCarriedIntoTheNextEpoch) {
  for (const std::int64_t ranks : {1, 2}) {
    const std::int64_t samples = 10 * ranks;  // micro batches of one row
    const BatchReader reader(samples_of(samples), options(1, 4, ranks));
    EXPECT_EQ(reader.steps(1), 3);
    EXPECT_EQ(reader.steps(2), 5);
    EXPECT_DOUBLE_EQ(reader.epochs(5 * reader.global_batch()), 2.0);
    std::map<std::int64_t, int> taken;
    for (std::int64_t step = 0; step < reader.steps(2); ++step) {
      for (const std::int64_t sample : samples_of_step(reader, step)) ++taken[sample];
    }
    EXPECT_EQ(static_cast<std::int64_t>(taken.size()), samples);
    for (const auto& [sample, times] : taken) EXPECT_EQ(times, 2) << "sample " << sample;

    // A save at any step boundary and a resume, here on another number of ranks, goes on with the next sample.
    const BatchReader resumed(samples_of(samples), options(2, 2, ranks));
    EXPECT_EQ(resumed.global_batch(), reader.global_batch());
    EXPECT_EQ(samples_of_step(resumed, 3), samples_of_step(reader, 3));
  }
}

TEST(BatchReader, C12DroppedMicroBatches) {
  const BatchReader reader(samples_of(10), options(1, 4, 1, true));
  EXPECT_EQ(reader.samples_per_epoch(), 8);
  EXPECT_EQ(reader.steps(2), 4);
  EXPECT_THAT(samples_of_step(reader, 1), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(samples_of_step(reader, 2), ElementsAre(0, 1, 2, 3));
}

TEST(BatchReader, C25LastPartialBatchOfTraining) {
  // Kept: carried over.
  const BatchReader kept(samples_of(10), options(4, 1, 1));
  EXPECT_THAT(samples_of_step(kept, 2), ElementsAre(8, 9, 0, 1));
  // Dropped: 4, 4 and the next epoch; on two ranks one batch of 4 each.
  const BatchReader dropped(samples_of(10), options(4, 1, 1, true));
  EXPECT_EQ(dropped.steps(1), 2);
  EXPECT_THAT(samples_of_step(dropped, 2), ElementsAre(0, 1, 2, 3));
  for (const std::int64_t samples : {10, 11}) {
    const BatchReader two(samples_of(samples), options(4, 1, 2, true));
    EXPECT_EQ(two.steps(1), 1);
    EXPECT_THAT(samples_of_step(two, 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // Fewer than one batch: trains over and over when kept, an error when dropped.
  const BatchReader few(samples_of(3), options(4, 1, 1));
  EXPECT_THAT(samples_of_step(few, 0), ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(few.steps(1), 1);
  expect_refused([] { BatchReader(samples_of(3), options(4, 1, 1, true)); },
                 {"counting", "3 samples", "batch of 4", "dataloader_drop_last"});
}

TEST(BatchReader, DropLastDropsOtherSamplesInEachShuffledEpoch) {
  const BatchReader reader(samples_of(10), options(4, 1, 1, true, true));
  std::map<std::int64_t, int> taken;
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
    std::map<std::int64_t, int> once;
    for (const std::int64_t step : {2 * epoch, 2 * epoch + 1}) {
      for (const std::int64_t sample : samples_of_step(reader, step)) {
        ++once[sample];
        ++taken[sample];
      }
    }
    EXPECT_EQ(once.size(), 8U) << "no sample twice in epoch " << epoch;
  }
  EXPECT_EQ(taken.size(), 10U);
}

TEST(BatchReader, RefusesLessThanOneSample) {
  expect_refused([] { BatchReader(std::make_shared<Counting>(3), options(1, 1, 1)); },
                 {"counting", "3 tokens", "sequence_length + 1 = 4"});
  EXPECT_EQ(BatchReader(std::make_shared<Counting>(4), options(1, 1, 1)).samples(), 1);
}

TEST(EvaluationReader, C25LastPartialBatchOfEvaluation) {
  const auto rows = [](std::int64_t samples, std::int64_t ranks) {
    const EvaluationReader reader(samples_of(samples), length, 4, ranks);
    std::vector<std::vector<std::int64_t>> counts(static_cast<std::size_t>(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (std::int64_t batch = 0; batch < reader.batches(); ++batch) {
        counts[static_cast<std::size_t>(rank)].push_back(reader.rows(batch, rank).count);
      }
    }
    return counts;
  };
  EXPECT_THAT(rows(10, 1), ElementsAre(ElementsAre(4, 4, 2)));
  EXPECT_THAT(rows(10, 2), ElementsAre(ElementsAre(4, 1), ElementsAre(4, 1)));
  EXPECT_THAT(rows(11, 2), ElementsAre(ElementsAre(4, 1), ElementsAre(4, 2)));
  EXPECT_THAT(rows(3, 1), ElementsAre(ElementsAre(3)));
  EXPECT_THAT(rows(9, 2), ElementsAre(ElementsAre(4, 0), ElementsAre(4, 1)));
  EXPECT_THAT(rows(8, 2), ElementsAre(ElementsAre(4), ElementsAre(4)));
}

TEST(EvaluationReader, EverySampleOnceAndMeanOverRealSamples) {
  for (std::int64_t samples = 1; samples < 40; ++samples) {
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      const EvaluationReader reader(samples_of(samples), length, 4, ranks);
      std::map<std::int64_t, int> taken;
      double sum = 0.0;
      std::int64_t counted = 0;
      std::vector<std::int64_t> inputs(4 * length);
      std::vector<std::int64_t> targets(4 * length);
      for (std::int64_t batch = 0; batch < reader.batches(); ++batch) {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          inputs.assign(inputs.size(), -1);
          const std::int64_t count = reader.read(batch, rank, inputs, targets);
          EXPECT_GE(inputs[0], 0) << "a rank without rows still gets a sample to run on";
          double mean = 0.0;  // the batch's "loss": the mean number of its samples
          for (std::int64_t row = 0; row < count; ++row) {
            const std::int64_t first = inputs[static_cast<std::size_t>(row * length)];
            EXPECT_EQ(targets[static_cast<std::size_t>(row * length)], first + 1);
            ++taken[first / length];
            mean += static_cast<double>(first / length) / static_cast<double>(count);
          }
          sum += mean * static_cast<double>(count);
          counted += count;
        }
      }
      EXPECT_EQ(counted, samples);
      EXPECT_EQ(static_cast<std::int64_t>(taken.size()), samples);
      EXPECT_NEAR(sum / static_cast<double>(counted), static_cast<double>(samples - 1) / 2.0, 1e-9);
    }
  }
}

}  // namespace
}  // namespace deepspeed::data
