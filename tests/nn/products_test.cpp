// SPDX-License-Identifier: Apache-2.0
#include "nn/products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

namespace deepspeed::nn {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// The largest difference, as a part of the largest value.
double distance(const Tensor& got, const Tensor& want) {
  return ((got.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

Tensor fp64(const Tensor& t) {
  return t.defined() ? t.detach().to(at::kDouble).requires_grad_(t.requires_grad()) : t;
}

/// Value and gradients of `run` in the inputs' type against `plain` in fp64.
template <class Run, class Plain>
void expect_same(const Tensors& inputs, Run run, Plain plain, double tolerance) {
  Tensors exact, of, of_exact;
  for (const Tensor& input : inputs) exact.push_back(fp64(input));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    of.push_back(inputs[i]);
    of_exact.push_back(exact[i]);
  }
  const Tensor got = run(inputs);
  const Tensor want = plain(exact);
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_EQ(got.scalar_type(), inputs[0].scalar_type());
  EXPECT_LT(distance(got, want), tolerance);
  if (of.empty()) return;
  const Tensor seed = at::randn(want.sizes(), got.options());
  const Tensors gradients = torch::autograd::grad({got}, of, {seed});
  const Tensors wanted = torch::autograd::grad({want}, of_exact, {seed.to(at::kDouble)});
  for (std::size_t i = 0; i < of.size(); ++i) {
    ASSERT_EQ(gradients[i].sizes(), of[i].sizes());
    EXPECT_LT(distance(gradients[i], wanted[i]), tolerance) << "gradient " << i;
  }
}

Tensor values(at::IntArrayRef shape, at::ScalarType type, bool trainable) {
  return at::randn(shape).to(type).requires_grad_(trainable);
}

double tolerance_of(at::ScalarType type) {
  return type == at::kFloat ? 1e-6 : 1e-2;
}

TEST(Products, LinearIsTheAffineMapInBothLayouts) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool transposed : {false, true}) {
      for (int which = 0; which < 16; ++which) {  // with a bias, and what is trainable
        SCOPED_TRACE(std::string(c10::toString(type)) + (transposed ? " transposed " : " ") + std::to_string(which));
        const bool biased = (which & 8) != 0;
        const Tensors inputs{values({3, 5, 24}, type, which & 1),
                             transposed ? values({24, 40}, type, which & 2) : values({40, 24}, type, which & 2),
                             biased ? values({40}, type, which & 4) : Tensor()};
        expect_same(
            inputs, [&](const Tensors& t) { return linear(t[0], t[1], t[2], transposed); },
            [&](const Tensors& t) {
              const Tensor y = at::matmul(t[0], transposed ? t[1] : t[1].t());
              return biased ? y + t[2] : y;
            },
            tolerance_of(type));
      }
    }
  }
}

TEST(Products, BatchProductTakesAnyLayout) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto plain = [](const Tensors& t) { return at::bmm(t[0], t[1]); };
    const auto own = [](const Tensors& t) { return batch_product(t[0], t[1]); };
    const Tensor a = values({4, 7, 16}, type, true);
    const Tensor b = values({4, 16, 9}, type, true);
    expect_same({a, b}, own, plain, tolerance_of(type));
    const auto turned = [](const auto& product) {
      return [&product](const Tensors& t) { return product({t[0], t[1].transpose(1, 2)}); };
    };
    expect_same({a, values({4, 9, 16}, type, true)}, turned(own), turned(plain), tolerance_of(type));
    // Neither rows nor columns lie together, or one matrix serves the whole batch.
    const auto odd = [](const auto& product) {
      return [&product](const Tensors& t) { return product({t[0].slice(2, 0, 32, 2), t[1].expand({4, 16, 9})}); };
    };
    expect_same({values({4, 7, 32}, type, true), values({1, 16, 9}, type, true)}, odd(own), odd(plain),
                tolerance_of(type));
  }
}

TEST(Products, AGradientOfOneValueEverywhereIsNoMatrixInMemory) {
  const Tensor x = values({6, 8}, at::kFloat, true);
  const Tensor weight = values({8, 5}, at::kFloat, true);
  linear(x, weight, {}, true).sum().backward();
  EXPECT_LT(distance(x.grad(), weight.detach().to(at::kDouble).sum(1).expand({6, 8})), 1e-6);
  EXPECT_LT(distance(weight.grad(), x.detach().to(at::kDouble).sum(0).unsqueeze(1).expand({8, 5})), 1e-6);
}

TEST(Products, EmptyOnesAreEmptyOrZero) {
  EXPECT_EQ(linear(at::empty({0, 4}), at::ones({4, 3}), {}, true).sizes(), (std::vector<std::int64_t>{0, 3}));
  EXPECT_TRUE(at::equal(batch_product(at::ones({2, 3, 0}), at::ones({2, 0, 5})), at::zeros({2, 3, 5})));
}

}  // namespace
}  // namespace deepspeed::nn
