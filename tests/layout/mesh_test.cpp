// SPDX-License-Identifier: Apache-2.0
#include "layout/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"

namespace deepspeed::layout {
namespace {

std::string message_of(int world, const Degrees& degrees) {
  try {
    const Mesh mesh(world, degrees);
  } catch (const base::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Mesh, IsDeepSpeedsPipelineGrid) {
  std::ifstream file(DS_TEST_DATA "/layout/deepspeed_layout.json");
  const nlohmann::json grids = nlohmann::json::parse(file).at("grids");
  ASSERT_GE(grids.size(), 4U);
  for (const auto& grid : grids) {
    const int pipe = grid.at("num_pp");
    const int data = grid.at("num_dp");
    const int rank = grid.at("rank");
    const Mesh mesh(pipe * data, Degrees{.pipe = pipe});
    EXPECT_EQ(mesh.coordinate(rank, Axis::pipe), grid.at("stage_id").get<int>());
    EXPECT_EQ(mesh.index(rank, data_axes), grid.at("data_parallel_id").get<int>());
    EXPECT_EQ(mesh.ranks(rank, data_axes), grid.at("dp_group").get<std::vector<int>>());
    EXPECT_EQ(mesh.ranks(rank, Axis::pipe), grid.at("pp_group").get<std::vector<int>>());
    EXPECT_EQ(mesh.ranks(rank, Axis::tensor), grid.at("slice_group").get<std::vector<int>>());
  }
}

TEST(Mesh, TensorRanksAreNeighboursPipelineRanksFarApart) {
  const Mesh mesh(12, Degrees{.pipe = 2, .tensor = 2});
  EXPECT_EQ(mesh.groups(Axis::tensor),
            (std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}));
  EXPECT_EQ(mesh.groups(data_axes), (std::vector<std::vector<int>>{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}}));
  EXPECT_EQ(mesh.groups(Axis::pipe), (std::vector<std::vector<int>>{{0, 6}, {1, 7}, {2, 8}, {3, 9}, {4, 10}, {5, 11}}));
  EXPECT_EQ(mesh.describe(), "pipe 2 x data 3 x tensor 2");
  EXPECT_EQ(mesh.neighbour(1, Axis::pipe, 1), 7);
  EXPECT_EQ(mesh.neighbour(7, Axis::pipe, 1), -1);
  EXPECT_EQ(mesh.neighbour(1, Axis::pipe, -1), -1);
}

TEST(Mesh, ExpertsAndShardsCutTheDataRanks) {
  const Mesh mesh(16, Degrees{.sequence = 2, .expert = 2, .shard = 4});
  EXPECT_EQ(mesh.data_size(), 8);
  EXPECT_EQ(mesh.extent(Axis::replica), 2);
  EXPECT_EQ(mesh.extent(Axis::shard), 2);
  // Sequence ranks are consecutive, expert ranks next.
  EXPECT_EQ(mesh.ranks(5, Axis::sequence), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.ranks(5, Axis::expert), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.ranks(5, expert_data_axes), (std::vector<int>{1, 5, 9, 13}));
  EXPECT_EQ(mesh.ranks(5, shard_axes), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh.ranks(5, Axis::replica), (std::vector<int>{5, 13}));
  EXPECT_EQ(mesh.describe(), "data 8 (replica 2 x shard 2 x expert 2) x sequence 2");
  EXPECT_EQ(Mesh(1, Degrees{}).describe(), "1 rank");
}

TEST(Mesh, ErrorsNameTheNumbers) {
  EXPECT_THAT(message_of(6, {.pipe = 4}),
              testing::AllOf(testing::HasSubstr("6 ranks"), testing::HasSubstr("pipeline 4")));
  EXPECT_THAT(message_of(6, {.expert = 4}), testing::HasSubstr("6 data-parallel ranks"));
  EXPECT_THAT(message_of(6, {.shard = 4}), testing::HasSubstr("shard groups of 4"));
  EXPECT_THAT(message_of(8, {.expert = 4, .shard = 2}), testing::HasSubstr("multiple of the expert"));
  EXPECT_THAT(message_of(8, {.tensor = 0}), testing::HasSubstr("tensor parallel degree is 0"));
  EXPECT_THROW(Mesh({1, 1, 0, 1, 1, 1}), std::invalid_argument);
  EXPECT_THROW(Mesh(2, Degrees{}).coordinate(2), std::out_of_range);
}

TEST(Mesh, GroupsPartitionTheRanksUpToTenThousand) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    Mesh::Coordinate extents{};
    int size = 1;
    for (int& extent : extents) {
      extent = std::uniform_int_distribution(1, 8)(random);
      if (size * extent > 10000) extent = 1;
      size *= extent;
    }
    const Mesh mesh(extents);
    ASSERT_EQ(mesh.size(), size);
    Axes axes{};
    for (std::size_t i = 0; i < axis_count; ++i) {
      if (random() % 2 == 0) axes = axes | static_cast<Axis>(i);
    }
    const auto groups = mesh.groups(axes);
    ASSERT_EQ(static_cast<int>(groups.size()) * mesh.extent(axes), size);
    std::vector<int> seen(static_cast<std::size_t>(size));
    int last_first = -1;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      ASSERT_GT(groups[g].front(), last_first);
      last_first = groups[g].front();
      for (std::size_t i = 0; i < groups[g].size(); ++i) {
        const int rank = groups[g][i];
        ++seen[static_cast<std::size_t>(rank)];
        ASSERT_EQ(mesh.rank(mesh.coordinate(rank)), rank);
        ASSERT_EQ(mesh.index(rank, axes), static_cast<int>(i));
        ASSERT_EQ(mesh.group(rank, axes), static_cast<int>(g));
      }
      ASSERT_EQ(mesh.ranks(groups[g].back(), axes), groups[g]);
    }
    for (const int times : seen) ASSERT_EQ(times, 1);
  }
  EXPECT_EQ(Mesh(10000, Degrees{.pipe = 5, .tensor = 8, .shard = 50}).ranks(9999, Axis::replica).size(), 5U);
}

}  // namespace
}  // namespace deepspeed::layout
