// SPDX-License-Identifier: Apache-2.0
#include "zero/memory_estimators.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "layout/memory_estimators.h"
#include "zero/init.h"
#include "zero/process.h"

namespace deepspeed::zero {
namespace {

struct Layer : nn::Unit {
  at::Tensor w;
  Layer(std::int64_t rows, std::int64_t columns) : w(register_parameter("w", at::zeros({rows, columns}))) {
    register_parameter("b", at::zeros({rows}), /*requires_grad=*/false);
  }
  Tensors compute(const Tensors& inputs) override { return inputs; }
};

/// 2 and 3 million parameters and a head that shares the second one's.
struct Model : torch::nn::Module {
  Model() {
    register_module("a", std::make_shared<Layer>(2000, 1000));
    const auto b = register_module("b", std::make_shared<Layer>(3000, 1000));
    const auto head = register_module("head", std::make_shared<torch::nn::Module>());
    head->register_parameter("w", b->w);
  }
};
constexpr std::int64_t total = 2000 * 1000 + 2000 + 3000 * 1000 + 3000;
constexpr std::int64_t largest = 3000 * 1000 + 3000;

TEST(MemoryEstimators, CountALiveModel) {
  const Model model;
  EXPECT_EQ(size_of(model).total_params, total);
  EXPECT_EQ(size_of(model).largest_layer_params, largest);
  EXPECT_EQ(size_of(torch::nn::Module()).total_params, 0);
  const std::string zero2 = estimate_zero2_model_states_mem_needs_all_live(model, 4, 2);
  EXPECT_EQ(zero2, layout::estimate_zero2_model_states_mem_needs_all_cold(total, 4, 2));
  EXPECT_NE(zero2.find("SW: Model with 5M total params.\n"), std::string::npos) << zero2;
  const std::string zero3 = estimate_zero3_model_states_mem_needs_all_live(model, 4, 2, 1.25);
  EXPECT_EQ(zero3, layout::estimate_zero3_model_states_mem_needs_all_cold(total, largest, 4, 2, 1.25));
  EXPECT_NE(zero3.find("SW: Model with 5M total params, 3M largest layer params.\n"), std::string::npos) << zero3;
}

TEST(MemoryEstimatorsRanks, CountWholeWeightsOfAShardedModel) {
  std::shared_ptr<Model> model;
  {
    const Init sharded(world(), {});
    model = std::make_shared<Model>();
  }
  EXPECT_EQ(size_of(*model).total_params, total);
  EXPECT_EQ(size_of(*model).largest_layer_params, largest);
}

}  // namespace
}  // namespace deepspeed::zero
