// SPDX-License-Identifier: Apache-2.0
#include "nn/activation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace deepspeed::nn {
namespace {

using at::Tensor;

TEST(Activation, GeluIsAtensInValueAndGradient) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const double tolerance = type == at::kBFloat16 ? 2e-2 : type == at::kHalf ? 3e-3 : 2e-6;
    // Every second element: a view, which the kernel can't take as it is.
    const Tensor wide = (at::randn({33, 34}) * 3).to(type);
    const Tensor x = wide.slice(1, 0, 34, 2).detach().requires_grad_(true);
    const Tensor exact = x.detach().to(at::kDouble).requires_grad_(true);
    const Tensor y = gelu_tanh(x);
    const Tensor wanted = at::gelu(exact, "tanh");
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_LT((y - wanted).abs().max().item<double>(), tolerance) << type;
    const Tensor seed = at::randn({17, 33}).to(type).t();
    const Tensor gradient = torch::autograd::grad({y}, {x}, {seed})[0];
    const Tensor wanted_gradient = torch::autograd::grad({wanted}, {exact}, {seed.to(at::kDouble)})[0];
    EXPECT_LT((gradient - wanted_gradient).abs().max().item<double>(), 3 * tolerance) << type;
  }
}

}  // namespace
}  // namespace deepspeed::nn
