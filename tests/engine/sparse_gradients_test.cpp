// SPDX-License-Identifier: Apache-2.0
// sparse_gradients: embeddings' gradients are exchanged as (index, row) pairs, and nothing else changes.
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "base/trace.h"
#include "engine/training_case.h"

namespace deepspeed::engine::testing {
namespace {

constexpr std::int64_t words = 600;
constexpr std::int64_t width = 24;

at::Tensor values(std::int64_t phase) {
  return at::sin(at::arange(phase, phase + words * width, at::kFloat)).view({words, width});
}

/// A table in a unit, and one of torch's in the root.
struct Model : torch::nn::Module {
  struct Lookup : nn::Unit {
    at::Tensor table;
    Lookup() { table = register_parameter("table", values(1)); }
    Tensors looked_up() const override { return {table}; }
    Tensors compute(const Tensors& inputs) override {
      return {at::embedding(table, inputs[0], -1, false, sparse_gradients())};
    }
  };
  std::shared_ptr<Lookup> lookup;
  std::shared_ptr<torch::nn::EmbeddingImpl> root;
  at::Tensor scale;

  explicit Model(bool sparse) {
    lookup = register_module("lookup", std::make_shared<Lookup>());
    root = register_module(
        "root", std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(words, width).sparse(sparse)));
    const at::NoGradGuard no_grad;
    root->weight.copy_(values(2));
    scale = register_parameter("scale", at::full({width}, 0.5));
  }
  /// An undefined `ids`: nothing is looked up.
  at::Tensor loss(const at::Tensor& ids) {
    if (!ids.defined()) return scale.square().sum();
    return ((lookup->run({ids})[0] + root->forward(ids)) * scale).square().sum();
  }
};

/// Words that ranks share and that they don't, some of them twice; the last of several ranks has none at first.
at::Tensor words_of(int micro) {
  const int rank = world()->rank();
  if (micro == 0 && rank > 0 && rank == world()->size() - 1) return {};
  return at::tensor({std::int64_t{7}, std::int64_t{7}, 20 + std::int64_t{rank}, 300 - 5 * std::int64_t{micro},
                     words - 1 - 3 * std::int64_t{rank}});
}

struct Outcome {
  std::vector<float> weights;
  std::int64_t bytes = 0;  ///< of all collectives of the last step
};

struct How {
  int stage = 0;
  int accumulation = 1;
  bool sparse_module = true;
  bool all_words = false;
  nlohmann::json more = nlohmann::json::object();
};

Outcome train(const How& how, bool sparse_gradients) {
  nlohmann::json config{{"train_micro_batch_size_per_gpu", 1},
                        {"gradient_accumulation_steps", how.accumulation},
                        {"sparse_gradients", sparse_gradients},
                        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-2}}}}},
                        {"zero_optimization", {{"stage", how.stage}, {"overlap_comm", true}}}};
  config.merge_patch(how.more);
  auto model = std::make_shared<Model>(how.sparse_module);
  auto engine = engine_for(model, config);
  EXPECT_EQ(model->lookup->sparse_gradients(), sparse_gradients);
  constexpr int steps = 3;
  for (int step = 0; step < steps; ++step) {
    if (step == steps - 1) base::trace::start({});
    for (int micro = 0; micro < how.accumulation; ++micro) {
      const at::Tensor ids = how.all_words ? at::arange(words) : words_of(micro);
      engine->backward(engine->forward([&] { return model->loss(ids); }));
      engine->step();
    }
  }
  base::trace::stop();
  Outcome outcome{weights_of(*engine), 0};
  const nlohmann::json trace = nlohmann::json::parse(base::trace::json());
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event.contains("args") && event["args"].contains("bytes")) {
      outcome.bytes += event["args"]["bytes"].get<std::int64_t>();
    }
  }
  return outcome;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

TEST(SparseGradientsRanks, ChangeNothingButTheBytes) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int accumulation : {1, 3}) {
      for (const bool sparse_module : {true, false}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + " accumulation " + std::to_string(accumulation));
        const How how{.stage = stage, .accumulation = accumulation, .sparse_module = sparse_module};
        const Outcome dense = train(how, false);
        const Outcome sparse = train(how, true);
        expect_near(sparse.weights, dense.weights, 2e-6F);
        if (world()->size() == 1) continue;
        // Of what stays, stage 3's gathers and the updated weights of stages 1 and 2 are most.
        RecordProperty(("bytes of stage " + std::to_string(stage)).c_str(),
                       std::to_string(dense.bytes) + " / " + std::to_string(sparse.bytes));
        const std::int64_t table = words * width * 4;
        EXPECT_LE(sparse.bytes, dense.bytes - 2 * table * (stage >= 2 ? accumulation : 1) * 9 / 10);
        if (stage == 0) {
          EXPECT_LE(sparse.bytes, dense.bytes / 10);
        }
      }
    }
  }
}

TEST(SparseGradientsRanks, WholeTablesTravelWhereThatIsLess) {
  for (const int stage : {0, 1, 2, 3}) {
    const How how{.stage = stage, .sparse_module = false, .all_words = true};
    const Outcome dense = train(how, false);
    const Outcome sparse = train(how, true);
    expect_near(sparse.weights, dense.weights, 2e-6F);
    EXPECT_NEAR(static_cast<double>(sparse.bytes), static_cast<double>(dense.bytes),
                0.01 * static_cast<double>(dense.bytes));
  }
}

TEST(SparseGradientsRanks, FollowTheTypesAndFactorsOfTheExchange) {
  for (const int stage : {0, 1}) {
    for (const nlohmann::json& more :
         std::vector<nlohmann::json>{{{"prescale_gradients", true}, {"zero_optimization", {{"reduce_scatter", false}}}},
                                     {{"gradient_allreduce_op", "sum"}},
                                     {{"bf16", {{"enabled", true}}}},
                                     {{"communication_data_type", "fp16"}}}) {
      SCOPED_TRACE(more.dump());
      const How how{.stage = stage, .more = more};
      expect_near(train(how, true).weights, train(how, false).weights, more.contains("bf16") ? 1e-2F : 1e-5F);
    }
  }
}

// Where a step is looked at between backward and step, by one rank alone too.
TEST(SparseGradientsRanks, TheirMeanCanBeRead) {
  for (const int stage : {0, 1, 2, 3}) {
    auto model = std::make_shared<Model>(true);
    auto engine = engine_for(model, {{"train_micro_batch_size_per_gpu", 1},
                                     {"sparse_gradients", true},
                                     {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 1e-2}}}}},
                                     {"zero_optimization", {{"stage", stage}}}});
    engine->backward(engine->forward([&] { return model->loss(words_of(0)); }));
    if (world()->rank() == 0) {
      EXPECT_TRUE(engine->safe_get_local_grad(model->root->weight).has_value());
    }
    const at::Tensor gradient = *engine->safe_get_full_grad(model->lookup->table);
    EXPECT_NE(gradient[7][0].item<float>(), 0);
    EXPECT_EQ(gradient[8].abs().sum().item<float>(), 0);
    engine->step();
  }
}

// A head that shares the table has a gradient in each of its rows.
TEST(SparseGradientsRanks, TheDecodersTokensAreATableUnlessTheHeadIsTied) {
  for (const auto& [name, tied] : {std::pair{"llama-tiny", false}, {"gpt2-tiny", true}}) {
    const auto run = [&, name = name, tied = tied](bool on) {
      Case c(name,
             {{"train_batch_size", 8},
              {"sparse_gradients", on},
              {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
              {"zero_optimization", {{"stage", 1}}}},
             world());
      int tables = 0;
      for (const auto& unit : nn::units_of(*c.model)) tables += unit->sparse_gradients() ? 1 : 0;
      EXPECT_EQ(tables, on && !tied ? 1 : 0);
      for (int step = 0; step < 2; ++step) c.step();
      return weights_of(*c.engine);
    };
    expect_near(run(true), run(false), 2e-5F);
  }
}

}  // namespace
}  // namespace deepspeed::engine::testing
