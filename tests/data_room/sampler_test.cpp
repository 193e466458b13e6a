// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "data_room/support.h"

namespace deepspeed::data {
namespace {

/// Expects every sample once in the given epoch.
void expect_bijection(const Sampler& sampler, std::int64_t samples, std::int64_t epoch) {
  std::vector<bool> seen(static_cast<std::size_t>(samples));
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t sample = sampler.at(epoch * samples + i);
    ASSERT_TRUE(sample >= 0 && sample < samples) << samples << " samples, place " << i;
    ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]) << samples << " samples, place " << i;
    seen[static_cast<std::size_t>(sample)] = true;
  }
}

TEST(Sampler, InOrderWithoutShuffle) {
  const Sampler sampler(7, false, 1234);
  for (std::int64_t position = 0; position < 30; ++position) EXPECT_EQ(sampler.at(position), position % 7);
}

TEST(Sampler, IsABijectionAtEverySize) {
  for (std::int64_t samples = 1; samples <= 2000; ++samples) {
    for (const std::int64_t epoch : {0, 1, 77}) expect_bijection(Sampler(samples, true, 1234), samples, epoch);
  }
  std::mt19937_64 random(5);
  for (int i = 0; i < 4; ++i) {
    const auto samples = static_cast<std::int64_t>(random() % 1'000'000);
    expect_bijection(Sampler(samples, true, random()), samples, static_cast<std::int64_t>(random() % 1000));
  }
}

TEST(Sampler, StaysInRangeAtVeryLargeSizes) {
  for (const std::int64_t samples : {(std::int64_t{1} << 40) + 1, (std::int64_t{1} << 62) - 3}) {
    const Sampler sampler(samples, true, 9);
    std::map<std::int64_t, int> seen;
    for (std::int64_t i = 0; i < 10'000; ++i) ++seen[sampler.at(i)];
    EXPECT_EQ(seen.size(), 10'000U);
    EXPECT_GE(seen.begin()->first, 0);
    EXPECT_LT(seen.rbegin()->first, samples);
    // Spread over the whole range, not a corner of it.
    EXPECT_LT(static_cast<double>(seen.begin()->first), 0.01 * static_cast<double>(samples));
    EXPECT_GT(static_cast<double>(seen.rbegin()->first), 0.99 * static_cast<double>(samples));
  }
}

TEST(Sampler, IsAFunctionOfSeedAndPosition) {
  const std::int64_t samples = 1000;
  const Sampler one(samples, true, 1);
  const Sampler same(samples, true, 1);
  const Sampler other(samples, true, 2);
  int equal_epochs = 0;
  int equal_seeds = 0;
  for (std::int64_t i = samples - 1; i >= 0; --i) {
    EXPECT_EQ(one.at(i), same.at(i));
    equal_epochs += one.at(i) == one.at(samples + i);
    equal_seeds += one.at(i) == other.at(i);
  }
  // Two random permutations agree in 1 place on average, and hardly ever in 8.
  EXPECT_LT(equal_epochs, 8);
  EXPECT_LT(equal_seeds, 8);
}

/// (chi-square - degrees of freedom) / its standard deviation, for equally likely cells.
double deviation(const std::vector<std::int64_t>& counts) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0.0;
  for (const std::int64_t count : counts) sum += std::pow(static_cast<double>(count) - expected, 2) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (sum - freedom) / std::sqrt(2.0 * freedom);
}

TEST(Sampler, EveryOrderOfAFewSamplesIsEquallyLikely) {
  for (const std::int64_t samples : {2, 3, 4, 5}) {
    const Sampler sampler(samples, true, 42);
    std::map<std::vector<std::int64_t>, std::int64_t> orders;
    const std::int64_t epochs = 24'000;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t i = 0; i < samples; ++i) order.push_back(sampler.at(epoch * samples + i));
      ++orders[order];
    }
    std::vector<std::int64_t> counts;
    for (const auto& [order, count] : orders) counts.push_back(count);
    EXPECT_EQ(static_cast<double>(counts.size()), std::tgamma(static_cast<double>(samples) + 1.0));
    EXPECT_LT(std::abs(deviation(counts)), 5.0) << samples;
  }
}

TEST(Sampler, PlacesAndNeighboursAreIndependent) {
  for (const std::int64_t samples : {16, 37, 64}) {
    const auto side = static_cast<std::size_t>(samples);
    const Sampler sampler(samples, true, 9);
    std::vector<std::int64_t> place(side * side);
    std::vector<std::int64_t> step(side - 1);
    for (std::int64_t epoch = 0; epoch < 4000; ++epoch) {
      for (std::int64_t i = 0; i < samples; ++i) {
        const std::int64_t at = sampler.at(epoch * samples + i);
        ++place[static_cast<std::size_t>(i * samples + at)];
        if (i > 0) {
          const std::int64_t before = sampler.at(epoch * samples + i - 1);
          ++step[static_cast<std::size_t>((at - before + samples) % samples - 1)];
        }
      }
    }
    EXPECT_LT(std::abs(deviation(place)), 6.0) << samples;
    EXPECT_LT(std::abs(deviation(step)), 6.0) << samples;
  }
}

TEST(Sampler, RefusesNoSamples) {
  expect_refused([] { Sampler(0, true, 1); }, {"0 samples"});
}

}  // namespace
}  // namespace deepspeed::data
