// SPDX-License-Identifier: Apache-2.0
// What a rank holds, counted at the allocators, beside ZeRO's figures (Rajbhandari et al. 2020, section 3.1 and 5):
// 16 bytes a parameter with bf16 weights and gradients, an fp32 master and two fp32 states.
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include "base/ledger.h"
#include "engine/training_case.h"

namespace deepspeed::engine::testing {
namespace {

namespace ledger = base::ledger;
using ledger::Category;

constexpr std::int64_t width = 128;
constexpr int layers = 24;
constexpr std::int64_t row = width * width;
constexpr std::int64_t parameters = layers * row;

struct Layer : nn::Unit {
  at::Tensor w = register_parameter("w", at::full({width, width}, 1e-3));
  Tensors compute(const Tensors& inputs) override { return {at::tanh(at::matmul(inputs[0], w))}; }
};

struct Stack : torch::nn::Module {
  std::vector<std::shared_ptr<Layer>> all;
  Stack() {
    for (int i = 0; i < layers; ++i) all.push_back(register_module(std::to_string(i), std::make_shared<Layer>()));
  }
  at::Tensor loss() {
    at::Tensor x = at::ones({1, width}, at::kBFloat16);
    for (const auto& layer : all) x = layer->run({x})[0];
    return x.sum();
  }
};

struct Held {
  double parameters, gradients, optimizer, gathered, buckets;
};

/// What training two steps takes at most, in bytes a parameter.
Held held(int stage, std::int64_t accumulation) {
  const auto now = [] {
    Held bytes{};
    bytes.parameters = static_cast<double>(ledger::current(Category::parameters));
    bytes.gradients = static_cast<double>(ledger::current(Category::gradients));
    bytes.optimizer = static_cast<double>(ledger::current(Category::optimizer));
    bytes.gathered = static_cast<double>(ledger::current(Category::gathered));
    bytes.buckets = static_cast<double>(ledger::current(Category::buckets));
    return bytes;
  };
  const Held before = now();
  auto model = std::make_shared<Stack>();
  auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                   {"gradient_accumulation_steps", accumulation},
                                   {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
                                   {"bf16", {{"enabled", true}}},
                                   {"data_types", {{"grad_accum_dtype", "bf16"}}},
                                   {"zero_optimization",
                                    {{"stage", stage},
                                     {"overlap_comm", true},
                                     {"stage3_max_live_parameters", 3 * row},
                                     {"stage3_prefetch_bucket_size", row},
                                     {"stage3_max_reuse_distance", 0}}}});
  ledger::reset_peaks();
  for (std::int64_t micro = 0; micro < 2 * accumulation; ++micro) {
    engine->backward(engine->forward([&] { return model->loss(); }));
    engine->step();
  }
  const auto most = [](Category category, double since) {
    return (static_cast<double>(ledger::peak(category)) - since) / static_cast<double>(parameters);
  };
  EXPECT_LE(engine->optimizer().gatherer().peak_live(), 3 * row);
  return {most(Category::parameters, before.parameters), most(Category::gradients, before.gradients),
          most(Category::optimizer, before.optimizer), most(Category::gathered, before.gathered),
          most(Category::buckets, before.buckets)};
}

TEST(MemoryRanks, StatesAreWhatTheStageSays) {
  const double n = world()->size();
  // Rows on their way: three local ones and three sums at most, in bf16 and fp32, with what the arena holds back.
  const double in_flight = 5.0 * (2 + 4) / layers;
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::int64_t accumulation : {1, 2}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " accumulation " + std::to_string(accumulation));
      const Held bytes = held(stage, accumulation);
      const double share = stage == 0 ? 1 : 1 / n;
      EXPECT_NEAR(bytes.parameters, stage == 3 ? 2 / n : 2, 0.02 * 2);
      EXPECT_NEAR(bytes.optimizer, 12 * share, 0.02 * 12 * share);
      if (stage == 0 && (n == 1 || accumulation == 1)) {
        EXPECT_GE(bytes.gradients, 2 * 0.98);
      }
      // Where nothing is to be added up the mean alone is kept, so stage 1 holds no more than stage 2.
      const double kept = stage >= 2 ? 2 / n : accumulation == 1 && n > 1 ? 2 * share : 2 + (n > 1 ? 2 * share : 0);
      EXPECT_LE(bytes.gradients, kept * 1.02 + in_flight);
      EXPECT_GE(bytes.gradients, std::min(kept, 2 * share) * 0.98);
      EXPECT_LE(bytes.buckets, in_flight);
      // Three live rows, and the two that the arena may hold back.
      EXPECT_LE(bytes.gathered, stage == 3 ? 2.0 * 5 / layers : 0);
    }
  }
}

}  // namespace
}  // namespace deepspeed::engine::testing
