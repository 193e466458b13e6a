// SPDX-License-Identifier: Apache-2.0
// Where weights are sharded, a linear layer in tiles is gathered tile by tile.
#include "zero/tiled_linear.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include "base/ledger.h"
#include "engine/training_case.h"
#include "zero/init.h"

namespace deepspeed::engine::testing {
namespace {

namespace ledger = base::ledger;

constexpr std::int64_t width = 192;

struct Values : torch::nn::Module {
  Values() {
    register_parameter("weight", at::sin(at::arange(width * width, at::kFloat)).view({width, width}) / 16);
    register_parameter("bias", at::full({width}, 0.125));
  }
};

struct Layer : torch::nn::Module {
  std::shared_ptr<zero::TiledLinear> tiled;
  explicit Layer(std::int64_t splits) {
    tiled = register_module("tiled",
                            std::make_shared<zero::TiledLinear>(
                                width, width, zero::TiledLinearOptions{.in_splits = splits, .out_splits = splits}));
  }
};

struct Outcome {
  std::vector<double> losses;
  std::int64_t live;
  double gathered;  ///< bytes at most
};

Outcome train(std::int64_t splits, bool init) {
  const nlohmann::json config{{"train_micro_batch_size_per_gpu", 1},
                              {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
                              {"zero_optimization",
                               {{"stage", 3},
                                {"stage3_param_persistence_threshold", 0},
                                {"stage3_prefetch_bucket_size", 0},
                                {"stage3_max_reuse_distance", 0}}}};
  std::shared_ptr<Layer> model;
  {
    zero::Init::Options options;
    options.enabled = init;
    const zero::Init sharded(world(), options);
    model = std::make_shared<Layer>(splits);
  }
  model->tiled->copy_params_from(Values());  // also into tiles that are sharded already
  auto engine = engine_for(model, config);
  const std::int64_t before = ledger::current(ledger::Category::gathered);
  ledger::reset_peaks();
  Outcome outcome{};
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::full({2, width}, 0.5 + 0.25 * world()->rank() + step);
    const at::Tensor loss = engine->forward([&] { return model->tiled->forward(x).square().mean(); });
    engine->backward(loss);
    engine->step();
    outcome.losses.push_back(mean(*world(), loss.item<double>()));
  }
  outcome.live = engine->optimizer().gatherer().peak_live();
  outcome.gathered = static_cast<double>(ledger::peak(ledger::Category::gathered) - before);
  return outcome;
}

TEST(TiledLinearRanks, GathersOneTileAtATime) {
  const Outcome whole = train(1, false);
  EXPECT_EQ(whole.live, width * width + width);
  for (const bool init : {false, true}) {
    for (const std::int64_t splits : {2, 4, 5}) {
      SCOPED_TRACE(splits);
      const Outcome tiles = train(splits, init);
      const std::int64_t part = (width + splits - 1) / splits;
      EXPECT_LE(tiles.live, part * part + part);
      EXPECT_GE(tiles.live, part * part);
      // The memory of the last tile may wait for the next one of its size.
      EXPECT_LE(tiles.gathered, 4.0 * 3 * static_cast<double>(part * part + part) * 1.02);
      for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_NEAR(tiles.losses[i], whole.losses[i], 1e-5 * whole.losses[i]);
      }
    }
  }
}

}  // namespace
}  // namespace deepspeed::engine::testing
