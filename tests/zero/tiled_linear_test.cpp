// SPDX-License-Identifier: Apache-2.0
#include "zero/tiled_linear.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace deepspeed::zero {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t in = 7;
constexpr std::int64_t out = 5;

struct Plain : torch::nn::Module {
  Tensor weight, bias;
  explicit Plain(bool with_bias = true, std::int64_t rows = out) {
    weight = register_parameter("weight", at::randn({rows, in}));
    if (with_bias) bias = register_parameter("bias", at::randn({rows}));
  }
};

/// The parts of a whole parameter's gradient that lie in the tiles, put together again.
Tensor gradient_of(const TiledLinear& tiled, const std::string& name, std::int64_t ins, std::int64_t outs) {
  const auto parameters = tiled.named_parameters();
  std::vector<Tensor> rows;
  for (std::int64_t o = 0; o < outs; ++o) {
    std::vector<Tensor> row;
    for (std::int64_t i = name == "bias" ? ins - 1 : 0; i < ins; ++i) {
      row.push_back(parameters["tile_" + std::to_string(o) + "_" + std::to_string(i) + "." + name].grad());
    }
    rows.push_back(at::cat(row, -1));
  }
  return at::cat(rows, 0);
}

bool close(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a, b, 1e-5, 1e-5);
}

TEST(TiledLinear, IsTheWholeLayerForAnySplits) {
  for (const bool bias : {true, false}) {
    for (const std::int64_t ins : {1, 2, 3, 7}) {
      for (const std::int64_t outs : {1, 2, 3, 5}) {
        SCOPED_TRACE(std::to_string(ins) + " x " + std::to_string(outs));
        const Plain plain(bias);
        const auto tiled = std::make_shared<TiledLinear>(
            in, out, TiledLinearOptions{.bias = bias, .in_splits = ins, .out_splits = outs});
        tiled->copy_params_from(plain);
        EXPECT_EQ(nn::units_of(*tiled).size(), static_cast<std::size_t>(ins * outs));
        EXPECT_EQ(tiled->parameters().size(), static_cast<std::size_t>(ins * outs + (bias ? outs : 0)));
        const Tensor x = at::randn({2, 3, in}).requires_grad_(true);
        const Tensor same = x.detach().requires_grad_(true);
        const Tensor got = tiled->forward(x);
        const Tensor want = at::linear(same, plain.weight, plain.bias);
        EXPECT_TRUE(close(got, want));
        const Tensor gradient = at::randn_like(want);
        got.backward(gradient);
        want.backward(gradient);
        EXPECT_TRUE(close(x.grad(), same.grad()));
        EXPECT_TRUE(close(gradient_of(*tiled, "weight", ins, outs), plain.weight.grad()));
        if (bias) {
          EXPECT_TRUE(close(gradient_of(*tiled, "bias", ins, outs), plain.bias.grad()));
        }
      }
    }
  }
}

TEST(TiledLinear, TakesAndGivesPieces) {
  const Plain plain;
  TiledLinear tiled(in, out,
                    {.in_splits = 3, .out_splits = 2, .input_is_already_split = true, .combine_out_splits = false});
  tiled.copy_params_from(plain);
  EXPECT_THAT(tiled.in_parts(), ElementsAre(0, 3, 5, 7));
  EXPECT_THAT(tiled.out_parts(), ElementsAre(0, 3, 5));
  const Tensor x = at::randn({4, in});
  const Tensor want = at::linear(x, plain.weight, plain.bias);
  const auto got = tiled.forward(TiledLinear::Tensors{x.narrow(1, 0, 3), x.narrow(1, 3, 2), x.narrow(1, 5, 2)});
  ASSERT_EQ(got.size(), 2U);
  EXPECT_TRUE(close(got[0], want.narrow(1, 0, 3)));
  EXPECT_TRUE(close(got[1], want.narrow(1, 3, 2)));
  EXPECT_THROW(tiled.forward(x), std::logic_error);
}

TEST(TiledLinear, GivesTheBiasBack) {
  for (const bool combine : {true, false}) {
    const Plain plain;
    TiledLinearReturnBias tiled(in, out, {.in_splits = 2, .out_splits = 3, .combine_out_splits = combine});
    tiled.copy_params_from(plain);
    const Tensor x = at::randn({4, in});
    const auto [outputs, biases] = tiled.forward(TiledLinear::Tensors{x});
    ASSERT_EQ(outputs.size(), combine ? 1U : 3U);
    const Tensor output = at::cat(outputs, -1);
    const Tensor bias = at::cat(biases, 0);
    EXPECT_TRUE(close(output, at::linear(x, plain.weight)));
    EXPECT_TRUE(at::equal(bias, plain.bias));
    (output + 2 * bias).sum().backward();
    EXPECT_TRUE(close(gradient_of(tiled, "bias", 2, 3), at::full({out}, 8.0)));
  }
  const Tensor x = at::randn({4, in});
  EXPECT_FALSE(TiledLinearReturnBias(in, out, {.bias = false, .in_splits = 2}).forward(x).second.defined());
  EXPECT_EQ(TiledLinearReturnBias(in, out).forward(x).second.sizes(), at::IntArrayRef({out}));
}

TEST(TiledLinear, BeginsAsALayerOfTheWholeSize) {
  const TiledLinear tiled(400, 30, {.in_splits = 100, .out_splits = 1});
  for (const Tensor& parameter : tiled.parameters()) {
    EXPECT_LE(parameter.abs().max().item<double>(), 1.0 / 20);
    EXPECT_GT(parameter.abs().max().item<double>(), 0.5 / 20);
  }
}

template <class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(TiledLinear, SaysWhatDoesNotFit) {
  for (const std::int64_t splits : {0, -1, 8}) {
    EXPECT_THAT(message_of([&] { TiledLinear(in, out, {.in_splits = splits}); }),
                HasSubstr("in splits must be in range [1, in_features]. Got " + std::to_string(splits)));
    EXPECT_THAT(message_of([&] { TiledLinear(in, out, {.out_splits = splits}); }),
                HasSubstr("out splits must be in range [1, out_features]."));
  }
  TiledLinear split(in, out, {.in_splits = 3, .input_is_already_split = true});
  EXPECT_THAT(message_of([&] {
                split.forward(TiledLinear::Tensors{at::randn({1, in})});
              }),
              HasSubstr("Col splits 3 does not match input splits 1"));
  TiledLinear whole(in, out, {.in_splits = 3});
  EXPECT_THAT(message_of([&] { whole.forward(at::randn({2, in + 1})); }), HasSubstr("last dimension is 8"));
  EXPECT_THAT(message_of([&] { whole.copy_params_from(Plain(false)); }), HasSubstr("with a bias"));
  EXPECT_THAT(message_of([&] { whole.copy_params_from(Plain(true, out + 1)); }), HasSubstr("same size with a weight"));
  EXPECT_THAT(message_of([&] { TiledLinear(in, out, {.bias = false}).copy_params_from(Plain()); }),
              HasSubstr("this one has none"));
}

}  // namespace
}  // namespace deepspeed::zero
