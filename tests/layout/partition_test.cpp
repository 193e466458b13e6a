// SPDX-License-Identifier: Apache-2.0
#include "layout/partition.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/error.h"
#include "layout/placement.h"

namespace deepspeed::layout {
namespace {

nlohmann::json golden() {
  std::ifstream file(DS_TEST_DATA "/layout/deepspeed_layout.json");
  return nlohmann::json::parse(file);
}

TEST(Placement, IsWhatZeroStagesShard) {
  using enum Spread;
  EXPECT_EQ(Placement::of_stage(0), (Placement{replicated, replicated, replicated}));
  EXPECT_EQ(Placement::of_stage(1), (Placement{replicated, replicated, sharded}));
  EXPECT_EQ(Placement::of_stage(2), (Placement{replicated, sharded, sharded}));
  EXPECT_EQ(Placement::of_stage(3), (Placement{sharded, sharded, sharded}));
  EXPECT_THROW(Placement::of_stage(4), base::ConfigError);
  EXPECT_THROW(Placement::of_stage(-1), base::ConfigError);
}

// Real DeepSpeed's flat buffers. Its element i of parameter p of group g holds 10000 (g + 1) + 1000 p + i + 1, so that
// the first and last values of a rank's slice tell which elements it owns.
TEST(Partition, IsDeepSpeedsStage1And2) {
  const nlohmann::json all = golden().at("partitions");
  ASSERT_GE(all.size(), 60U);
  for (const auto& row : all) {
    SCOPED_TRACE(row.at("case").get<std::string>());
    const int ranks = row.at("ranks");
    const auto offsets = row.at("offsets").get<std::vector<std::int64_t>>();
    const Partition partition(row.at("numels").get<std::vector<std::int64_t>>(), ranks, 2, row.at("round_robin"));
    EXPECT_EQ(partition.padded(), row.at("flat").get<std::int64_t>());
    EXPECT_EQ(partition.slice_size(), row.at("slice").get<std::int64_t>());
    for (std::size_t p = 0; p < offsets.size(); ++p) EXPECT_EQ(partition.offset_of(p), offsets[p]) << "parameter " << p;
    const std::string name = row.at("case");
    const double group = 10000.0 * (name.back() - '0' + 1);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& truth = row.at("by_rank").at(static_cast<std::size_t>(rank));
      const std::vector<Segment> segments = partition.segments(rank);
      EXPECT_EQ(partition.padding(rank), truth.at("padding").get<std::int64_t>());
      std::vector<std::int64_t> owned;
      std::vector<double> values;
      for (const Segment& s : segments) {
        owned.push_back(s.parameter);
        for (std::int64_t i = 0; i < s.numel; ++i) {
          values.push_back(group + 1000.0 * double(s.parameter) + double(s.parameter_offset + i + 1));
        }
      }
      values.resize(static_cast<std::size_t>(partition.slice_size()));
      EXPECT_EQ(owned, truth.at("parameters").get<std::vector<std::int64_t>>());
      if (!segments.empty()) {
        EXPECT_EQ(segments.front().parameter_offset, truth.at("first_offset").get<std::int64_t>());
      }
      const auto first = truth.at("first").get<std::vector<double>>();
      const auto last = truth.at("last").get<std::vector<double>>();
      ASSERT_LE(first.size(), values.size());
      EXPECT_TRUE(std::equal(first.begin(), first.end(), values.begin()));
      EXPECT_TRUE(std::equal(last.rbegin(), last.rend(), values.rbegin()));
    }
  }
}

TEST(Partition, ShardsAreDeepSpeedsStage3) {
  const nlohmann::json all = golden().at("shards");
  ASSERT_EQ(all.size(), 18U);
  for (const auto& row : all) {
    for (std::size_t p = 0; p < row.at("numels").size(); ++p) {
      const std::int64_t numel = row.at("numels")[p];
      const int ranks = row.at("ranks");
      EXPECT_EQ(shard_size(numel, ranks), row.at("shards")[p].get<std::int64_t>());
      EXPECT_EQ(Partition({numel}, ranks, 1).slice_size(), shard_size(numel, ranks));
    }
  }
}

TEST(PartitionUniform, IsDeepSpeeds) {
  const nlohmann::json all = golden().at("partition_uniform");
  ASSERT_EQ(all.size(), 162U);
  for (const auto& row : all) {
    EXPECT_EQ(partition_uniform(row[0], row[1]), row[2].get<std::vector<std::int64_t>>()) << row;
  }
}

TEST(Partition, CoversEveryElementOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const int ranks = std::uniform_int_distribution(1, round % 10 == 0 ? 300 : 9)(random);
    const std::int64_t alignment = std::uniform_int_distribution(1, 8)(random);
    std::vector<std::int64_t> numels(std::uniform_int_distribution<std::size_t>(0, 12)(random));
    for (auto& n : numels)
      n = std::uniform_int_distribution(0, 3)(random) == 0 ? 0 : std::uniform_int_distribution(0, 50)(random);
    const Partition partition(numels, ranks, alignment, round % 2 == 0);
    ASSERT_EQ(partition.numel(), std::accumulate(numels.begin(), numels.end(), std::int64_t{0}));
    ASSERT_EQ(partition.padded() % (alignment * ranks), 0);
    ASSERT_LT(partition.padded() - partition.numel(), alignment * ranks);
    std::vector<std::vector<int>> seen(numels.size());
    for (std::size_t p = 0; p < numels.size(); ++p) seen[p].resize(static_cast<std::size_t>(numels[p]));
    std::int64_t padding = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t at = partition.slice_begin(rank);
      for (const Segment& s : partition.segments(rank)) {
        ASSERT_EQ(s.flat_offset, at);
        ASSERT_GT(s.numel, 0);
        ASSERT_EQ(partition.offset_of(static_cast<std::size_t>(s.parameter)) + s.parameter_offset, s.flat_offset);
        for (std::int64_t i = 0; i < s.numel; ++i) {
          ++seen[static_cast<std::size_t>(s.parameter)][static_cast<std::size_t>(s.parameter_offset + i)];
        }
        at += s.numel;
      }
      ASSERT_EQ(at + partition.padding(rank), partition.slice_begin(rank) + partition.slice_size());
      padding += partition.padding(rank);
    }
    ASSERT_EQ(padding, partition.padded() - partition.numel());
    for (const auto& parameter : seen) {
      for (const int times : parameter) ASSERT_EQ(times, 1);
    }
    // Any cut into buckets: counts add up, and the pieces of the buckets are those of the whole.
    std::int64_t begin = 0;
    std::int64_t pieces = 0;
    std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks));
    while (begin < partition.padded()) {
      const std::int64_t end = std::min(partition.padded(), begin + std::uniform_int_distribution(1, 40)(random));
      const std::vector<std::int64_t> counts = partition.counts(begin, end);
      ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), end - begin);
      for (std::size_t r = 0; r < owned.size(); ++r) owned[r] += counts[r];
      for (const Segment& s : partition.segments(begin, end)) pieces += s.numel;
      begin = end;
    }
    ASSERT_EQ(pieces, partition.numel());
    for (const std::int64_t n : owned) ASSERT_EQ(n, partition.slice_size());
  }
}

TEST(Partition, EmptyAndTiny) {
  const Partition empty({}, 4);
  EXPECT_EQ(empty.padded(), 0);
  EXPECT_TRUE(empty.segments(3).empty());
  EXPECT_EQ(empty.padding(0), 0);
  const Partition zeros({0, 0}, 3);
  EXPECT_EQ(zeros.slice_size(), 0);
  EXPECT_TRUE(zeros.segments(0).empty());
  // 3 elements on 4 ranks: two elements a rank; ranks 2 and 3 hold padding only.
  const Partition bias({3}, 4);
  EXPECT_EQ(bias.slice_size(), 2);
  EXPECT_EQ(bias.segments(1), (std::vector<Segment>{{0, 2, 2, 1}}));
  EXPECT_TRUE(bias.segments(2).empty());
  EXPECT_EQ(bias.padding(1), 1);
  EXPECT_EQ(bias.padding(2), 2);
  EXPECT_EQ(bias.padding(3), 2);
  // Beyond 2^31 elements.
  const Partition large({std::int64_t{5} << 30, 7}, 1000);
  EXPECT_EQ(large.segments(999).back().parameter, 1);
  EXPECT_THROW(Partition({1}, 0), std::invalid_argument);
  EXPECT_THROW(Partition({-1}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace deepspeed::layout
