// SPDX-License-Identifier: Apache-2.0
#include "layout/rows.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace deepspeed::layout {
namespace {

const Placement stage3 = Placement::of_stage(3);

ParameterFacts facts(std::int64_t numel, std::vector<int> units, bool root) {
  ParameterFacts p;
  p.numel = numel;
  p.units = std::move(units);
  p.root = root;
  return p;
}

ParameterFacts of_unit(int unit, std::int64_t numel) {
  return facts(numel, {unit}, false);
}

std::vector<std::vector<std::size_t>> members(const std::vector<RowPlan>& rows) {
  std::vector<std::vector<std::size_t>> all;
  for (const RowPlan& row : rows) all.push_back(row.parameters);
  return all;
}

TEST(Rows, RootThenSharedThenUnits) {
  const std::vector<ParameterFacts> parameters{
      of_unit(1, 8),            // 0
      facts(9, {}, true),       // 1
      facts(7, {0, 2}, false),  // 2: tied
      of_unit(0, 3),            // 3
      facts(5, {0}, true),      // 4: used by a unit and outside
      of_unit(0, 2),            // 5
      facts(4, {}, false),      // 6: used nowhere
  };
  const std::vector<RowPlan> rows = plan_rows(parameters, stage3, {});
  EXPECT_EQ(members(rows), (std::vector<std::vector<std::size_t>>{{1, 4, 6}, {2}, {3, 5}, {0}}));
  EXPECT_TRUE(rows[0].keep_whole);
  EXPECT_FALSE(rows[1].keep_whole);
  EXPECT_EQ(rows[1].units, (std::vector<int>{0, 2}));
  EXPECT_EQ(rows[3].units, (std::vector<int>{1}));
  for (const int stage : {0, 1, 2}) {
    for (const RowPlan& row : plan_rows(parameters, Placement::of_stage(stage), {100})) EXPECT_TRUE(row.keep_whole);
    EXPECT_EQ(members(plan_rows(parameters, Placement::of_stage(stage), {100})), members(rows));
  }
}

TEST(Rows, HypersTypesAndFrozenOnesApart) {
  std::vector<ParameterFacts> parameters(5, of_unit(0, 10));
  parameters[1].hyper = 1;
  parameters[2].trainable = false;
  parameters[3].type = base::Dtype::bf16;
  const std::vector<RowPlan> rows = plan_rows(parameters, stage3, {});
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(
      rows[0].parameters.size() + rows[1].parameters.size() + rows[2].parameters.size() + rows[3].parameters.size(),
      5U);
  for (const RowPlan& row : rows) {
    for (const std::size_t p : row.parameters) {
      EXPECT_EQ(row.hyper, parameters[p].hyper);
      EXPECT_EQ(row.trainable, parameters[p].trainable);
      EXPECT_EQ(row.type, parameters[p].type);
    }
  }
}

TEST(Rows, PersistenceIsGreedyInOrderOfTheModel) {
  const std::vector<ParameterFacts> parameters{of_unit(0, 4), of_unit(0, 100), of_unit(1, 5), of_unit(1, 3)};
  EXPECT_EQ(members(plan_rows(parameters, stage3, {5})), (std::vector<std::vector<std::size_t>>{{0, 2, 3}, {1}}));
  // 4, then 5 would be 9 > 8, then 3 fits.
  EXPECT_EQ(members(plan_rows(parameters, stage3, {5, 8})), (std::vector<std::vector<std::size_t>>{{0, 3}, {1}, {2}}));
  EXPECT_EQ(members(plan_rows(parameters, stage3, {0})), (std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3}}));
}

}  // namespace
}  // namespace deepspeed::layout
