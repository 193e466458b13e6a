// SPDX-License-Identifier: Apache-2.0
// The engine's API round sharding: zero::Init, accumulation without exchange, reading and writing of sharded values,
// groups of parameters, the types and factors of the exchange.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/training_case.h"
#include "zero/gathered_parameters.h"
#include "zero/init.h"

namespace deepspeed::engine::testing {
namespace {

struct Scale : nn::Unit {
  at::Tensor w, v;
  explicit Scale(double value = 1, std::int64_t n = 10) {
    w = register_parameter("w", at::full({n}, value));
    v = register_parameter("v", at::full({3}, value));
  }
  Tensors compute(const Tensors& inputs) override { return {inputs[0] * w.sum() + v.sum()}; }
};

struct Model : torch::nn::Module {
  std::shared_ptr<Scale> first, last;
  at::Tensor root;
  explicit Model(double value = 1) {
    first = register_module("first", std::make_shared<Scale>(value));
    last = register_module("last", std::make_shared<Scale>(value));
    root = register_parameter("root", at::full({5}, value));
  }
  at::Tensor loss(double x) { return (last->run({first->run({at::full({2}, x)})[0]})[0].sum() * root.sum()) / 1000; }
};

nlohmann::json sgd(int stage, const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json config{{"train_micro_batch_size_per_gpu", 1},
                        {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
                        {"gradient_clipping", 0},
                        {"zero_optimization", {{"stage", stage}, {"overlap_comm", true}}}};
  config.merge_patch(more);
  return config;
}

double input(int micro) {
  return 0.3 + 0.1 * micro + 0.2 * world()->rank();
}

TEST(ShardingRanks, InitShardsUnitByUnitAndTheEngineGoesOnFromThere) {
  for (const bool bf16 : {false, true}) {
    const nlohmann::json config = sgd(3, {{"bf16", {{"enabled", bf16}}}});
    std::shared_ptr<Model> model;
    std::weak_ptr<Scale> first;
    {
      zero::Init::Options options;
      options.type = bf16 ? base::Dtype::bf16 : base::Dtype::f32;
      zero::Init sharded(world(), options);
      model = std::make_shared<Model>(world()->rank() == 0 ? 0.5 : 7);
      // The first unit went when the second began; the second is still whole.
      EXPECT_THROW(model->first->w.data_ptr(), std::exception);
      EXPECT_NO_THROW(model->last->w.data_ptr());
    }
    EXPECT_THROW(model->last->w.data_ptr(), std::exception);
    {
      const at::NoGradGuard no_grad;
      const zero::GatheredParameters whole({model->first->w}, 0);
      EXPECT_EQ(model->first->w[0].item<float>(), 0.5F);
      if (world()->rank() == 0) model->first->w.fill_(0.25);
    }
    auto plain = std::make_shared<Model>(0.5);
    plain->first->w.detach().fill_(0.25);
    auto a = engine_for(model, config);
    auto b = engine_for(plain, config);
    for (int step = 0; step < 3; ++step) {
      a->backward(a->forward([&] { return model->loss(input(step)); }));
      a->step();
      b->backward(b->forward([&] { return plain->loss(input(step)); }));
      b->step();
    }
    EXPECT_EQ(weights_of(*a), weights_of(*b));
  }
}

// Small parameters go to the root's row and frozen ones to a row of their own: the rows of Init are made anew.
TEST(ShardingRanks, InitFitsWhateverTheEngineMakesOfIt) {
  std::shared_ptr<Model> model;
  {
    const zero::Init sharded(world(), {});
    model = std::make_shared<Model>(0.5);
  }
  model->last->w.requires_grad_(false);
  auto engine = engine_for(model, sgd(3, {{"zero_optimization", {{"stage3_param_persistence_threshold", 3}}}}));
  EXPECT_NO_THROW(model->first->v.data_ptr());
  EXPECT_THROW(model->last->w.data_ptr(), std::exception);
  EXPECT_THROW(model->first->w.data_ptr(), std::exception);
  engine->backward(engine->forward([&] { return model->loss(input(0)); }));
  engine->step();
  const auto weights = engine->module_state_dict();
  ASSERT_EQ(weights.size(), 5U);
  for (const auto& [name, tensor] : weights) {
    EXPECT_EQ(tensor.flatten()[0].item<double>() == 0.5, name == "last.w") << name;
  }
}

// Stage 3's weights belong to the model, not to the engine.
TEST(ShardingRanks, AnotherEngineTakesTheWeightsOver) {
  auto model = std::make_shared<Model>(0.5);
  std::vector<float> before;
  {
    auto engine = engine_for(model, sgd(3));
    engine->backward(engine->forward([&] { return model->loss(input(0)); }));
    engine->step();
    before = weights_of(*engine);
  }
  for (const int stage : {3, 1}) {
    auto engine = engine_for(model, sgd(stage));
    EXPECT_EQ(weights_of(*engine), before);
  }
}

TEST(ShardingRanks, NoSyncAndCoalescingOnlyMoveTheExchange) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto run = [&](int how) {
      auto model = std::make_shared<Model>(0.5);
      auto engine = engine_for(model, sgd(stage, {{"gradient_accumulation_steps", 3}}));
      for (int step = 0; step < 2; ++step) {
        for (int micro = 0; micro < 3; ++micro) {
          const auto one = [&] { engine->backward(engine->forward([&] { return model->loss(input(micro)); })); };
          if (how == 1 && micro < 2) {
            const NoSync hold = engine->no_sync();
            EXPECT_THROW(engine->step(), std::logic_error);
            EXPECT_THROW((void)engine->no_sync(), std::logic_error);
            one();
          } else if (how == 2) {
            const NoSync hold = engine->coalesce_grad_reduction();
            one();
          } else {
            one();
          }
          engine->step();
        }
      }
      return weights_of(*engine);
    };
    const std::vector<float> want = run(0);
    for (const int how : {1, 2}) {
      const std::vector<float> got = run(how);
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6);
    }
  }
}

TEST(ShardingRanks, TheBatchSizesCanChangeBetweenSteps) {
  auto model = std::make_shared<Model>(0.5);
  auto engine = engine_for(model, sgd(2));
  const std::int64_t ranks = world()->size();
  engine->set_train_micro_batch_size(2);
  EXPECT_EQ(engine->train_batch_size(), 2 * ranks);
  EXPECT_THROW(engine->set_train_batch_size(2 * ranks + 1), std::invalid_argument);
  engine->set_train_batch_size(6 * ranks);
  EXPECT_EQ(engine->gradient_accumulation_steps(), 3);
  for (int micro = 0; micro < 3; ++micro) {
    EXPECT_EQ(engine->is_gradient_accumulation_boundary(), micro == 2);
    engine->backward(engine->forward([&] { return model->loss(input(micro)); }));
    EXPECT_THROW(engine->set_train_batch_size(2 * ranks), std::logic_error);
    engine->step();
  }
  EXPECT_EQ(engine->global_steps(), 1);
  EXPECT_EQ(engine->global_samples(), 6 * ranks);
}

TEST(ShardingRanks, ValuesOfShardedParametersCanBeReadAndWritten) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(stage);
      auto model = std::make_shared<Model>(0.5);
      nlohmann::json config = sgd(stage, {{"bf16", {{"enabled", bf16}}}});
      config["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", 0.1}, {"weight_decay", 0}}}};
      auto engine = engine_for(model, config);
      const at::Tensor& w = model->first->w;
      EXPECT_FALSE(engine->safe_get_full_grad(w).has_value());
      engine->backward(engine->forward([&] { return model->loss(input(0)); }));
      const at::Tensor gradient = *engine->safe_get_full_grad(w);
      EXPECT_EQ(gradient.sizes(), at::IntArrayRef({10}));
      EXPECT_NE(gradient[9].item<float>(), 0);
      engine->safe_set_full_grad(w, at::arange(10));
      EXPECT_TRUE(at::equal(*engine->safe_get_full_grad(w), at::arange(10, at::kFloat)));
      engine->step();
      EXPECT_FALSE(engine->safe_get_full_grad(w).has_value());
      EXPECT_THROW(engine->safe_set_full_grad(w, at::ones({10})), std::logic_error);
      // exp_avg = 0.1 gradient
      const at::Tensor average = *engine->safe_get_full_optimizer_state(w, "exp_avg");
      EXPECT_NEAR(average[7].item<float>(), 0.7, 1e-6);
      EXPECT_THROW(engine->safe_get_full_optimizer_state(w, "momentum"), std::invalid_argument);
      engine->safe_set_full_optimizer_state(w, at::full({10}, 3.0), "exp_avg");
      EXPECT_TRUE(at::equal(*engine->safe_get_full_optimizer_state(w, "exp_avg"), at::full({10}, 3.0)));

      for (const at::Tensor& p : {w, model->root}) {
        const at::Tensor value = at::arange(p.numel(), at::kFloat) / 8;
        engine->safe_set_full_fp32_param(p, value);
        EXPECT_TRUE(at::equal(*engine->safe_get_full_fp32_param(p), value));
        const zero::GatheredParameters whole({p});
        EXPECT_TRUE(at::equal(p.detach().to(at::kFloat), value));
      }
      EXPECT_THROW(engine->safe_set_full_fp32_param(w, at::ones({3})), std::invalid_argument);
      EXPECT_FALSE(engine->safe_get_full_fp32_param(at::ones({3})).has_value());

      // The parts of all ranks make the whole.
      at::Tensor own = *engine->safe_get_local_fp32_param(w);
      const auto elements = world()->all_reduce_value(own.numel());
      EXPECT_EQ(elements, stage == 0 ? 10 * world()->size() : 10);
      engine->safe_set_local_fp32_param(w, own.fill_(0.5));
      EXPECT_TRUE(at::equal(*engine->safe_get_full_fp32_param(w), at::full({10}, 0.5)));
      engine->safe_set_local_optimizer_state(w, own, "exp_avg_sq");
      EXPECT_TRUE(at::equal(*engine->safe_get_full_optimizer_state(w, "exp_avg_sq"), at::full({10}, 0.5)));
      EXPECT_TRUE(at::equal(*engine->safe_get_local_optimizer_state(w, "exp_avg_sq"), own));
    }
  }
}

// Rank 0 alone holds gathered weights that it may use again.
TEST(ShardingRanks, WhatOneRankHasGatheredFollowsToo) {
  auto model = std::make_shared<Model>(0.5);
  auto engine = engine_for(model, sgd(3));
  for (int step = 0; step < 2; ++step) {
    engine->backward(engine->forward([&] { return model->loss(input(step)); }));
    engine->step();
  }
  const auto ahead = [&] {
    if (world()->rank() == 0) engine->forward([&] { return model->loss(1); });
  };
  const Folder folder("ahead_");
  engine->save_checkpoint(folder.path);
  const std::vector<float> saved = weights_of(*engine);
  ahead();
  engine->safe_set_full_fp32_param(model->first->w, at::full({10}, 3.0));
  {
    const zero::GatheredParameters whole({model->first->w});
    EXPECT_TRUE(at::equal(model->first->w.detach(), at::full({10}, 3.0)));
  }
  ahead();
  engine->load_checkpoint(folder.path);
  EXPECT_EQ(weights_of(*engine), saved);
  const double loss = engine->forward([&] { return model->loss(1); }).item<double>();
  EXPECT_NEAR(world()->all_reduce_value(loss), loss * world()->size(), 1e-9);
}

TEST(ShardingRanks, GroupsOfParametersHaveTheirOwnOptions) {
  for (const int stage : {0, 1, 2, 3}) {
    auto model = std::make_shared<Model>(0.5);
    config::Facts facts;
    facts.world_size = world()->size();
    nlohmann::json json = sgd(stage);
    json["zero_optimization"]["stage3_param_persistence_threshold"] = 0;
    const auto config = config::Config::parse(json.dump(), "test", {}, facts);
    const std::vector<ParameterGroup> groups{{{model->first->w}, {{"lr", 0.0}}}, {{model->root}, {{"lr", 0.2}}}};
    auto engine = initialize(model, config, world(), groups);
    EXPECT_EQ(engine->get_lr(), (std::vector<double>{0, 0.2, 0.1}));
    engine->backward(engine->forward([&] { return model->loss(1); }));
    const double root_gradient = (*engine->safe_get_full_grad(model->root))[0].item<double>();
    engine->step();
    EXPECT_TRUE(at::equal(*engine->safe_get_full_fp32_param(model->first->w), at::full({10}, 0.5)));
    EXPECT_NEAR((*engine->safe_get_full_fp32_param(model->root))[0].item<double>(), 0.5 - 0.2 * root_gradient, 1e-6);
    EXPECT_NE((*engine->safe_get_full_fp32_param(model->first->v))[0].item<double>(), 0.5);
    EXPECT_THROW(initialize(std::make_shared<Model>(), config, world(), {{{model->root}, {}}, {{model->root}, {}}}),
                 std::invalid_argument);
  }
}

TEST(ShardingRanks, AParameterThatNoRankUsesIsAnErrorOnRequest) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool ignore : {true, false}) {
      SCOPED_TRACE(stage);
      auto model = std::make_shared<Model>(0.5);
      auto engine = engine_for(model, sgd(stage, {{"gradient_accumulation_steps", 2},
                                                  {"zero_optimization", {{"ignore_unused_parameters", ignore}}}}));
      const auto step = [&](bool whole, bool part) {
        for (const bool all : {whole, part}) {
          const auto loss = [&] { return all ? model->loss(1) : model->first->run({at::ones({2})})[0].sum(); };
          engine->backward(engine->forward(loss));
          engine->step();
        }
      };
      // One rank's one micro batch is enough.
      const bool here = world()->rank() == 0;
      step(false, here);
      step(here, false);
      const std::vector<float> before = weights_of(*engine);
      if (ignore) {
        step(false, false);
        EXPECT_NE(weights_of(*engine), before);
        continue;
      }
      try {
        step(false, false);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const base::ConfigError& error) {
        EXPECT_THAT(
            error.what(),
            ::testing::HasSubstr("zero_optimization.ignore_unused_parameters: false, and in step 3 your module has "
                                 "parameters that were not used in producing loss: 'root', 'last.w', 'last.v'."));
      }
      EXPECT_EQ(weights_of(*engine), before);
      engine->zero_grad();
      for (const at::Tensor& parameter : {model->root, model->last->w, model->last->v}) parameter.requires_grad_(false);
      step(false, false);
      EXPECT_EQ(engine->global_steps(), 3);
    }
  }
}

// Powers of two, so that no factor costs a bit.
TEST(ShardingRanks, FactorsOfTheExchange) {
  const double ranks = world()->size();
  const auto gradient = [&](int stage, const nlohmann::json& more) {
    auto model = std::make_shared<Model>(0.5);
    auto engine = engine_for(model, sgd(stage, more));
    engine->backward(engine->forward([&] { return model->loss(1 + world()->rank()); }));
    engine->step();
    return *engine->get_global_grad_norm();
  };
  const double want = gradient(0, nlohmann::json::object());
  const nlohmann::json whole{{"zero_optimization", {{"reduce_scatter", false}}}};
  for (const int stage : {0, 1, 2, 3}) {
    nlohmann::json more = whole;
    more["gradient_predivide_factor"] = 4.0;
    EXPECT_NEAR(gradient(stage, more), want, 1e-6 * want) << stage;
    more = whole;
    more["prescale_gradients"] = true;
    EXPECT_NEAR(gradient(stage, more), want, 1e-6 * want) << stage;
    for (const char* type : {"fp32", "bf16", "fp16"}) {
      EXPECT_NEAR(gradient(stage, {{"communication_data_type", type}}), want, 5e-3 * want) << stage << type;
    }
    if (stage < 3) {
      EXPECT_NEAR(gradient(stage, {{"gradient_allreduce_op", "sum"}}), ranks * want, 1e-6 * ranks * want) << stage;
    }
  }
  // What is sent in bf16 is rounded to it.
  if (world()->size() > 1) {
    EXPECT_NE(gradient(2, {{"communication_data_type", "bf16"}}), want);
  }
}

}  // namespace
}  // namespace deepspeed::engine::testing
