// SPDX-License-Identifier: Apache-2.0
// The engine over small own modules, where every number has a closed form.
#include "engine/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "engine/training_case.h"
#include "nn/unit.h"

namespace deepspeed::engine::testing {
namespace {

/// One weight vector; the loss is its dot product with whatever is given, so that is its gradient.
struct Weights : torch::nn::Module {
  at::Tensor w;
  explicit Weights(std::int64_t n, double value = 0) { w = register_parameter("w", at::full({n}, value, at::kFloat)); }
  at::Tensor loss(const at::Tensor& gradient) { return (w * gradient.to(w.scalar_type())).sum(); }
};

nlohmann::json adam(double lr, double eps, double decay = 0) {
  return {{"type", "AdamW"}, {"params", {{"lr", lr}, {"eps", eps}, {"weight_decay", decay}}}};
}

std::vector<double> values(const at::Tensor& tensor) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) out.push_back(tensor.flatten()[i].item<double>());
  return out;
}

// Case C10: the large eps makes clipping visible; the norm is the one before clipping.
TEST(EngineRanks, ClippingAndTheNorm) {
  for (const double clip : {1.0, 0.0}) {
    for (const int stage : {0, 1, 2, 3}) {
      auto model = std::make_shared<Weights>(2);
      auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                       {"optimizer", adam(0.1, 1.0)},
                                       {"gradient_clipping", clip},
                                       {"zero_optimization", {{"stage", stage}}}});
      engine->backward(model->loss(at::tensor({3.0F, 4.0F})));
      engine->step();
      EXPECT_NEAR(*engine->get_global_grad_norm(), 5.0, 1e-6);
      const std::vector<double> w = values(model->w);
      EXPECT_NEAR(w[0], clip > 0 ? -0.0375 : -0.075, 1e-6);
      EXPECT_NEAR(w[1], clip > 0 ? -0.0444444 : -0.08, 1e-6);
    }
  }
}

// Case C04: one schedule step an optimizer step.
TEST(EngineRanks, ScheduleMovesOnceAStep) {
  for (const int gas : {1, 4}) {
    auto model = std::make_shared<Weights>(3);
    auto engine = engine_for(
        model,
        {{"train_micro_batch_size_per_gpu", 1},
         {"gradient_accumulation_steps", gas},
         {"optimizer", adam(1e-3, 1e-8)},
         {"scheduler",
          {{"type", "WarmupLR"},
           {"params",
            {{"warmup_min_lr", 0}, {"warmup_max_lr", 0.1}, {"warmup_num_steps", 10}, {"warmup_type", "linear"}}}}}});
    std::vector<double> used;
    for (int micro = 0; micro < 3 * gas; ++micro) {
      const bool boundary = engine->is_gradient_accumulation_boundary();
      if (boundary) used.push_back(engine->get_lr()[0]);
      engine->backward(model->loss(at::ones({3})));
      engine->step();
    }
    EXPECT_EQ(engine->global_steps(), 3);
    ASSERT_EQ(used.size(), 3U);
    EXPECT_DOUBLE_EQ(used[0], 0);
    EXPECT_DOUBLE_EQ(used[1], 0);
    EXPECT_DOUBLE_EQ(used[2], 0.01);
    EXPECT_DOUBLE_EQ(engine->get_lr()[0], 0.02);
  }
}

// Case C06 through the engine: the scale's sequence, and nothing moves on an overflow.
TEST(EngineRanks, OverflowSequence) {
  setenv("DS_ACCELERATOR", "cpu", 1);
  auto model = std::make_shared<Weights>(4, 1.0);
  auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                   {"optimizer", adam(1e-2, 1e-8)},
                                   {"fp16", {{"enabled", true}, {"initial_scale_power", 16}, {"hysteresis", 2}}}});
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<bool> overflow{true, true, true, false, true, false};
  const std::vector<double> scales{65536, 32768, 16384, 16384, 8192, 8192};
  for (std::size_t i = 0; i < overflow.size(); ++i) {
    const std::string before = fingerprint(*engine);
    engine->backward(model->loss(at::full({4}, overflow[i] ? inf : 1e-3)));
    engine->step();
    EXPECT_EQ(engine->loss_scale(), scales[i]) << i;
    EXPECT_EQ(fingerprint(*engine) == before, overflow[i]) << i;
    EXPECT_EQ(engine->was_step_applied(), !overflow[i]) << i;
  }
  EXPECT_EQ(engine->skipped_steps(), 4);
  EXPECT_EQ(engine->global_steps(), 6);
}

TEST(EngineRanks, TheFloorOfTheLossScaleEndsTheRun) {
  setenv("DS_ACCELERATOR", "cpu", 1);
  auto model = std::make_shared<Weights>(4, 1.0);
  auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                   {"optimizer", adam(1e-2, 1e-8)},
                                   {"fp16", {{"enabled", true}, {"initial_scale_power", 1}, {"hysteresis", 1}}}});
  const auto overflow = [&] {
    engine->backward(model->loss(at::full({4}, std::numeric_limits<double>::infinity())));
    engine->step();
  };
  overflow();
  EXPECT_EQ(engine->loss_scale(), 1);
  EXPECT_THROW(overflow(), base::DivergedError);
}

// Case C07: a NaN on one rank alone; all decide alike, and the step leaves no trace.
TEST(EngineRanks, NonFiniteUnderBf16IsSkippedByAll) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const int stage : {0, 1, 2, 3}) {
      const nlohmann::json config = {{"train_micro_batch_size_per_gpu", 1},
                                     {"optimizer", adam(1e-2, 1e-8)},
                                     {"bf16", {{"enabled", true}}},
                                     {"zero_optimization", {{"stage", stage}}}};
      const auto run = [&](bool with_bad_step) {
        auto model = std::make_shared<Weights>(5, 1.0);
        auto engine = engine_for(model, config);
        for (int s = 1; s <= 6; ++s) {
          if (s == 3 && !with_bad_step) continue;
          const bool poison = s == 3 && world()->rank() == world()->size() - 1;
          engine->backward(model->loss(at::full({5}, poison ? bad : 0.1 * s)));
          engine->step();
        }
        EXPECT_EQ(engine->skipped_steps(), with_bad_step ? 1 : 0);
        return fingerprint(*engine);
      };
      ::testing::internal::CaptureStderr();
      const std::string poisoned = run(true);
      const std::string told = ::testing::internal::GetCapturedStderr();
      EXPECT_TRUE(poisoned == run(false));
      if (world()->rank() == 0) {
        EXPECT_NE(told.find("step 3: skipped"), std::string::npos) << told;
        EXPECT_EQ(told.find("scale"), std::string::npos) << told;  // bf16 has none
      }
    }
  }
}

TEST(EngineRanks, NonFiniteUnderFp32EndsTheRunAndChangesNothing) {
  auto model = std::make_shared<Weights>(5, 1.0);
  auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1}, {"optimizer", adam(1e-2, 1e-8)}});
  const std::string before = fingerprint(*engine);
  engine->backward(model->loss(at::full({5}, std::numeric_limits<double>::quiet_NaN())));
  EXPECT_THROW(engine->step(), base::DivergedError);
  EXPECT_TRUE(fingerprint(*engine) == before);
}

TEST(EngineRanks, NonFiniteUnderFp32CanBeSkipped) {
  auto model = std::make_shared<Weights>(5, 1.0);
  auto engine = engine_for(
      model,
      {{"train_micro_batch_size_per_gpu", 1}, {"optimizer", adam(1e-2, 1e-8)}, {"training", {{"on_nan", "skip"}}}});
  const std::string before = fingerprint(*engine);
  engine->backward(model->loss(at::full({5}, std::numeric_limits<double>::infinity())));
  engine->step();
  EXPECT_EQ(engine->skipped_steps(), 1);
  EXPECT_TRUE(fingerprint(*engine) == before);
}

// Case C08: 512 micro batches whose gradient is exactly 1.
TEST(EngineRanks, GradientAccumulationType) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [type, want] : std::vector<std::pair<std::string, double>>{{"fp32", 1.0}, {"bf16", 0.5}}) {
      auto model = std::make_shared<Weights>(1);
      auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                       {"gradient_accumulation_steps", 512},
                                       {"optimizer", adam(1e-3, 1e-8)},
                                       {"gradient_clipping", 0},
                                       {"bf16", {{"enabled", true}}},
                                       {"data_types", {{"grad_accum_dtype", type}}},
                                       {"zero_optimization", {{"stage", stage}}}});
      for (int micro = 0; micro < 512; ++micro) {
        engine->backward(model->loss(at::ones({1})));
        engine->step();
      }
      EXPECT_EQ(engine->global_steps(), 1);
      EXPECT_NEAR(*engine->get_global_grad_norm(), want, want == 1.0 ? 0 : 1e-6) << type;
    }
  }
}

// Case C11: C is never used, B only on one rank in turn.
struct Paths : torch::nn::Module {
  at::Tensor a, b, c;
  Paths() {
    a = register_parameter("a", at::ones({3}));
    b = register_parameter("b", at::ones({3}));
    c = register_parameter("c", at::ones({3}));
  }
};

TEST(EngineRanks, UnusedParametersCountAsZero) {
  const auto run = [&](int stage) {
    auto model = std::make_shared<Paths>();
    auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                     {"optimizer", adam(0.1, 1.0)},
                                     {"gradient_clipping", 0},
                                     {"zero_optimization", {{"stage", stage}}}});
    std::vector<double> norms;
    for (int s = 0; s < 6; ++s) {
      at::Tensor loss = model->a.sum();
      if (s % world()->size() == world()->rank()) loss = loss + 2 * model->b.sum();
      engine->backward(loss);
      engine->step();
      norms.push_back(*engine->get_global_grad_norm());
    }
    // a: gradient 1; b: 2 from one rank, averaged over all.
    const double b = 2.0 / world()->size();
    for (const double norm : norms) EXPECT_NEAR(norm, std::sqrt(3 * (1 + b * b)), 1e-6);
    EXPECT_EQ(values(model->c), (std::vector<double>{1, 1, 1}));
    return weights_of(*engine);
  };
  for (const int stage : {1, 2, 3}) EXPECT_EQ(run(stage), run(0));
}

struct Mixed : torch::nn::Module {
  at::Tensor trained, frozen, again;
  Mixed() {
    trained = register_parameter("trained", at::ones({4}));
    frozen = register_parameter("frozen", at::ones({4}), false);
    again = register_parameter("again", trained);  // tied: the same tensor under a second name
  }
};

TEST(EngineRanks, FrozenStaysAndTiedIsOne) {
  auto model = std::make_shared<Mixed>();
  auto engine = engine_for(
      model, {{"train_micro_batch_size_per_gpu", 1}, {"optimizer", adam(0.1, 1.0)}, {"gradient_clipping", 0}});
  EXPECT_EQ(engine->parameter_count(), 8);
  engine->backward((model->trained * model->frozen).sum() + 2 * model->again.sum());
  engine->step();
  EXPECT_NEAR(*engine->get_global_grad_norm(), 6.0, 1e-6);  // 3 on each of 4
  EXPECT_EQ(values(model->frozen), (std::vector<double>(4, 1.0)));
  EXPECT_NEAR(values(model->trained)[0], 1 - 0.1 * 3.0 / 4.0, 1e-6);
}

TEST(EngineRanks, RanksStartFromTheWeightsOfRankZero) {
  auto model = std::make_shared<Weights>(7, world()->rank());
  auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1}, {"optimizer", adam(0.1, 1.0)}});
  EXPECT_EQ(values(model->w), std::vector<double>(7, 0.0));
}

// Case C13: fewer elements than ranks, odd totals.
TEST(EngineRanks, TinyAndOddSizes) {
  for (const std::int64_t n : {1, 3, 57}) {
    std::vector<std::vector<double>> results;
    for (const int stage : {0, 1, 2, 3}) {
      auto model = std::make_shared<Weights>(n, 1.0);
      auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                       {"optimizer", adam(0.1, 0)},
                                       {"zero_optimization", {{"stage", stage}}}});
      for (int s = 0; s < 3; ++s) {
        engine->backward(model->loss(at::ones({n})));
        engine->step();
        EXPECT_NEAR(*engine->get_global_grad_norm(), std::sqrt(static_cast<double>(n)), 1e-5);
      }
      results.push_back(values(model->w));
      for (const double w : results.back()) EXPECT_TRUE(std::isfinite(w));
    }
    for (const auto& other : results) EXPECT_EQ(other, results[0]);
  }
}

/// Two units of the same size, of which each rank uses what it is told.
struct Scale : nn::Unit {
  at::Tensor w;
  Scale() { w = register_parameter("w", at::ones({4})); }
  Tensors compute(const Tensors& inputs) override { return {inputs[0] * w}; }
};
struct Forks : torch::nn::Module {
  std::shared_ptr<Scale> left = register_module("left", std::make_shared<Scale>());
  std::shared_ptr<Scale> right = register_module("right", std::make_shared<Scale>());
};

// Case C11 with units, stage 3 included: a rank that runs none of a unit still serves the others its slice.
TEST(EngineRanks, UnitsThatDifferBetweenRanks) {
  const bool odd = world()->rank() % 2 == 1;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    auto model = std::make_shared<Forks>();
    auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                     {"optimizer", adam(0.1, 1.0)},
                                     {"gradient_clipping", 0},
                                     {"zero_optimization", {{"stage", stage}}}});
    engine->backward((odd ? model->left : model->right)->run({at::ones({4})})[0].sum());
    engine->step();
    const double ranks = world()->size();
    const double left = std::floor(ranks / 2) / ranks;
    EXPECT_NEAR(*engine->get_global_grad_norm(), std::sqrt(4 * (left * left + (1 - left) * (1 - left))), 1e-6);
  }
}

// Between uses a sharded weight isn't here; touching it is an error that names it, never a crash.
TEST(EngineRanks, ReleasedWeightsNameThemselves) {
  const std::string name = "transformer.h.0.mlp.c_fc.weight";
  Case run("gpt2-tiny",
           {{"train_batch_size", 8}, {"optimizer", adam(1e-3, 1e-8)}, {"zero_optimization", {{"stage", 3}}}}, world());
  const at::Tensor weight = run.model->named_parameters()[name];
  const auto expect_named = [&](const std::function<void()>& use) {
    try {
      use();
      ADD_FAILURE() << "a released weight could be read";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  for (int step = 0; step < 2; ++step) {
    run.step();
    const at::NoGradGuard no_grad;
    expect_named([&] { weight.sum(); });
    expect_named([&] { weight.view({-1}).narrow(0, 0, 3).sum(); });
    expect_named([&] { at::linear(at::ones({1, weight.size(1)}), weight); });
    expect_named([&] { weight.data_ptr(); });
  }
  // All of it can still be had, collectively.
  std::int64_t elements = 0;
  for (const auto& [parameter, tensor] : run.engine->module_state_dict()) elements += tensor.numel();
  EXPECT_EQ(elements, run.engine->parameter_count());
}

/// x w + b, with a buffer whose memory isn't contiguous.
struct Affine : nn::Unit {
  at::Tensor w, b, table;
  Affine() {
    w = register_parameter("w", at::ones({3}));
    b = register_parameter("b", at::zeros({3}));
    table = register_buffer("table", at::arange(6, at::kFloat).view({2, 3}).t());
  }
  Tensors compute(const Tensors& inputs) override { return {inputs[0] * w + b}; }
};

struct TwoAffine : torch::nn::Module {
  std::shared_ptr<Affine> first = register_module("first", std::make_shared<Affine>());
  std::shared_ptr<Affine> last = register_module("last", std::make_shared<Affine>());
  at::Tensor forward(const at::Tensor& x) { return last->run({first->run({x})[0]})[0].sum(); }
};

nlohmann::json at_stage(int stage) {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"optimizer", adam(0.1, 1.0)},
          {"gradient_clipping", 0},
          {"zero_optimization", {{"stage", stage}, {"overlap_comm", true}}}};
}

TEST(EngineRanks, WhatIsFrozenLaterStays) {
  auto model = std::make_shared<TwoAffine>();
  auto engine = engine_for(model, at_stage(1));
  model->first->w.requires_grad_(false);
  engine->backward(model->forward(at::full({3}, 2.0)));
  engine->step();
  EXPECT_EQ(values(model->first->w), (std::vector<double>(3, 1.0)));
  EXPECT_NEAR(values(model->first->b)[0], -0.1 * 1 / (1 + 1), 1e-6);
  EXPECT_NEAR(values(model->last->w)[0], 1 - 0.1 * 2 / (2 + 1), 1e-6);
}

// A gradient that comes after its row went out would be lost.
TEST(EngineRanks, AUnitsWeightUsedOutsideOfItIsToldOf) {
  auto model = std::make_shared<TwoAffine>();
  auto engine = engine_for(model, at_stage(2));
  const at::Tensor loss = model->forward(at::ones({3})) + model->last->w.sum();
  try {
    engine->backward(loss);
    FAIL() << "no error";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("'last.w'"), std::string::npos) << error.what();
  }
  engine->zero_grad();
}

TEST(EngineRanks, BuffersOfAnyLayoutAreSavedAndLoaded) {
  auto model = std::make_shared<TwoAffine>();
  auto engine = engine_for(model, at_stage(1));
  const Folder folder("buffers_");
  const std::vector<double> want = values(model->first->table);
  engine->save_checkpoint(folder.path);
  model->first->table.zero_();
  engine->load_checkpoint(folder.path);
  EXPECT_EQ(values(model->first->table), want);
}

TEST(EngineRanks, TheBoundaryCanBeForced) {
  auto model = std::make_shared<Weights>(2);
  auto engine = engine_for(
      model,
      {{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", 4}, {"optimizer", adam(0.1, 1.0)}});
  engine->set_gradient_accumulation_boundary(true);
  engine->backward(model->loss(at::ones({2})));
  const Folder folder("forced_");
  EXPECT_THROW(engine->save_checkpoint(folder.path), base::CheckpointError);
  engine->step();
  EXPECT_EQ(engine->global_steps(), 1);
  engine->save_checkpoint(folder.path);
}

}  // namespace
}  // namespace deepspeed::engine::testing
