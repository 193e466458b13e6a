// SPDX-License-Identifier: Apache-2.0
#include "zero/sharded_optimizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "optim/rules.h"
#include "zero/process.h"

namespace deepspeed::zero {
namespace {

/// Plain SGD at rate 1: the update is the gradient itself.
struct Fixture {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<ShardedOptimizer> optimizer;

  Fixture(const std::vector<std::int64_t>& sizes, int stage, std::int64_t bucket = 1 << 20,
          base::Dtype working = base::Dtype::f32) {
    std::vector<NamedParameter> named;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      parameters.push_back(at::zeros({sizes[i]}));
      named.push_back({"p" + std::to_string(i), parameters.back()});
    }
    Settings settings;
    settings.placement = layout::Placement::of_stage(stage);
    settings.after = 1.0F / static_cast<float>(world()->size());
    settings.reduce_bucket = bucket;
    const Holding holding{working, stage == 3, true, false};
    std::vector<ModelRow> rows{
        {std::make_shared<Row>(std::move(named), world(), holding, Arena(base::ledger::Category::gathered)), 0}};
    optimizer = std::make_unique<ShardedOptimizer>(world(), std::move(rows),
                                                   std::vector{optim::hyper_from("SGD", {{"lr", 1.0}})},
                                                   optim::make_rule("SGD", {{"lr", 1.0}}), settings);
  }
};

TEST(ShardedOptimizerRanks, AppliesTheMeanOfAllRanks) {
  const int ranks = world()->size();
  const int rank = world()->rank();
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::int64_t bucket : {1, 7, 1 << 20}) {
      Fixture f({5, 0, 1, 12}, stage, bucket);
      for (const at::Tensor& p : f.parameters) {
        // Two micro batches; the second half of the sum.
        f.optimizer->accumulate(p, at::full({p.numel()}, rank + 1.0));
        f.optimizer->accumulate(p, at::full({p.numel()}, rank + 1.0));
      }
      const double mean = (ranks + 1.0);  // 2 * (1 + ... + W) / W
      EXPECT_NEAR(f.optimizer->reduce(), 18 * mean * mean, 1e-6 * 18 * mean * mean);
      f.optimizer->update(1.0F);
      EXPECT_EQ(f.optimizer->steps(), 1);
      for (const at::Tensor& p : f.parameters) EXPECT_TRUE(at::equal(p, at::full({p.numel()}, -mean)));
    }
  }
}

TEST(ShardedOptimizerRanks, WhatGotNoGradientCountsAsZero) {
  Fixture f({4, 4}, 1);
  f.optimizer->accumulate(f.parameters[0], at::full({4}, 1.0));
  f.optimizer->reduce();
  f.optimizer->update(1.0F);
  f.optimizer->clear_gradients();
  // The second step must not see the first one's gradient.
  f.optimizer->accumulate(f.parameters[1], at::full({4}, 1.0));
  EXPECT_NEAR(f.optimizer->reduce(), 4, 1e-6);
  f.optimizer->update(1.0F);
  for (const at::Tensor& p : f.parameters) EXPECT_TRUE(at::equal(p, at::full({4}, -1.0)));
}

TEST(ShardedOptimizerRanks, OneBadElementOnOneRankReachesAll) {
  for (const int stage : {0, 1, 2, 3}) {
    Fixture f({9}, stage);
    at::Tensor gradient = at::zeros({9});
    if (world()->rank() == world()->size() - 1) {
      gradient.select(0, 8).fill_(std::numeric_limits<float>::quiet_NaN());
    }
    f.optimizer->accumulate(f.parameters[0], gradient);
    EXPECT_FALSE(std::isfinite(f.optimizer->reduce()));
  }
}

TEST(ShardedOptimizerRanks, WorkingWeightsFollowTheMasters) {
  for (const int stage : {0, 1, 2, 3}) {
    Fixture f({33}, stage, 1 << 20, base::Dtype::bf16);
    f.optimizer->accumulate(f.parameters[0], at::arange(33).to(at::kBFloat16));
    f.optimizer->reduce();
    f.optimizer->update(1.0F);
    ASSERT_EQ(f.parameters[0].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(f.parameters[0].to(at::kFloat), -at::arange(33).to(at::kFloat)));
  }
}

TEST(ShardedOptimizerRanks, ForeignParametersAndUndefinedGradientsAreLeftOut) {
  Fixture f({3}, 0);
  f.optimizer->accumulate(at::zeros({3}), at::full({3}, 1.0));
  f.optimizer->accumulate(f.parameters[0], at::Tensor());
  EXPECT_EQ(f.optimizer->reduce(), 0);
}

/// A table [40, 3] and what the ranks' sparse gradients make of it in three updates, with numbers whose sums round. In
/// the last one there are none.
at::Tensor after_three_updates(const Settings& settings, base::Dtype working, bool table) {
  const at::Tensor parameter = at::zeros({40, 3});
  const Holding holding{working, settings.placement.parameters == layout::Spread::sharded, true, false};
  std::vector<ModelRow> rows{{std::make_shared<Row>(std::vector<NamedParameter>{{"table", parameter}}, world(), holding,
                                                    Arena(base::ledger::Category::gathered)),
                              0, table}};
  ShardedOptimizer optimizer(world(), std::move(rows), std::vector{optim::hyper_from("SGD", {{"lr", 1.0}})},
                             optim::make_rule("SGD", {{"lr", 1.0}}), settings);
  const std::int64_t rank = world()->rank();
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      optimizer.begin_backward(micro == 1);
      if (step < (rank == 1 ? 1 : 2)) {  // one rank has none in the second update
        const std::vector<std::int64_t> numbers{5, 10 + rank, 5, 38 - 2 * step};
        const double first = 0.3 * static_cast<double>(rank) + micro;
        const at::Tensor values = at::arange(12).to(at::kFloat).view({4, 3}).add(first).div(3.0);
        optimizer.accumulate(parameter, at::sparse_coo_tensor(at::tensor(numbers).unsqueeze(0), values, {40, 3}));
      }
      optimizer.end_backward();
    }
    optimizer.reduce();
    optimizer.update(1.0F);
    optimizer.clear_gradients();
  }
  return parameter.to(at::kFloat);
}

TEST(ShardedOptimizerRanks, RowsOfATableAddUpToTheSameBits) {
  using base::Dtype;
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      for (const Dtype accumulation : {Dtype::f32, Dtype::bf16}) {
        for (const std::optional<Dtype> communication : {std::optional<Dtype>(), std::optional(Dtype::bf16)}) {
          Settings settings;
          settings.placement = layout::Placement::of_stage(stage);
          settings.before = 0.3F;
          settings.after = 0.7F;
          settings.overlap = overlap;
          settings.accumulation = accumulation;
          settings.communication = communication;
          for (const Dtype working : {Dtype::f32, Dtype::bf16}) {
            const at::Tensor whole = after_three_updates(settings, working, false);
            EXPECT_TRUE(at::equal(after_three_updates(settings, working, true), whole)) << stage;
            EXPECT_NE(whole[5][0].item<float>(), 0);
            EXPECT_NE(whole[36][2].item<float>(), 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepspeed::zero
