// SPDX-License-Identifier: Apache-2.0
#include "zero/tiled_linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "layout/partition.h"
#include "nn/products.h"
#include "zero/gathered_parameters.h"

namespace deepspeed::zero {
namespace {

void require_splits(const char* which, std::int64_t splits, std::int64_t features) {
  if (splits >= 1 && splits <= features) return;
  throw std::invalid_argument(fmt::format(
      "TiledLinear: {0} splits must be in range [1, {0}_features]. Got {1} for {2} features", which, splits, features));
}

}  // namespace

/// One tile: input x [..., in]; output x W^T [..., out], with its bias added or beside it.
class TiledLinear::Tile : public nn::Unit {
 public:
  Tile(std::int64_t in, std::int64_t out, bool has_bias, bool add_bias, double bound)
      : weight(register_parameter("weight", at::empty({out, in}, at::kFloat).uniform_(-bound, bound))),
        add_bias_(add_bias) {
    if (has_bias) bias = register_parameter("bias", at::empty({out}, at::kFloat).uniform_(-bound, bound));
  }

  Tensors compute(const Tensors& inputs) override {
    if (add_bias_ || !bias.defined()) return {nn::linear(inputs[0], weight, bias, /*transposed=*/false)};
    // A copy: what a run gives back outlives the gathered weights.
    return {nn::linear(inputs[0], weight, {}, /*transposed=*/false), bias.clone()};
  }
  /// It keeps nothing but its input, which recomputing needs too.
  bool checkpointable() const override { return false; }

  at::Tensor weight;
  at::Tensor bias;

 private:
  bool add_bias_;
};

TiledLinear::TiledLinear(std::int64_t in_features, std::int64_t out_features, const TiledLinearOptions& options)
    : TiledLinear(in_features, out_features, options, true) {}

TiledLinear::TiledLinear(std::int64_t in_features, std::int64_t out_features, const TiledLinearOptions& options,
                         bool add_bias)
    : options_(options) {
  require_splits("in", options.in_splits, in_features);
  require_splits("out", options.out_splits, out_features);
  in_parts_ = layout::partition_uniform(in_features, options.in_splits);
  out_parts_ = layout::partition_uniform(out_features, options.out_splits);
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  tiles_.resize(static_cast<std::size_t>(options.out_splits));
  for (std::size_t o = 0; o < tiles_.size(); ++o) {
    for (std::size_t i = 0; i + 1 < in_parts_.size(); ++i) {
      const bool has_bias = options.bias && i + 2 == in_parts_.size();
      tiles_[o].push_back(
          register_module(fmt::format("tile_{}_{}", o, i),
                          std::make_shared<Tile>(in_parts_[i + 1] - in_parts_[i], out_parts_[o + 1] - out_parts_[o],
                                                 has_bias, add_bias, bound)));
    }
  }
}

TiledLinear::Results TiledLinear::run_tiles(const Tensors& given) {
  Tensors inputs;
  if (options_.in_splits > 1 && options_.input_is_already_split) {
    if (static_cast<std::int64_t>(given.size()) != options_.in_splits) {
      throw std::invalid_argument(
          fmt::format("TiledLinear: Col splits {} does not match input splits {}", options_.in_splits, given.size()));
    }
    inputs = given;
  } else {
    if (given.size() != 1) {
      throw std::invalid_argument(fmt::format(
          "TiledLinear: got {} inputs and takes one; input_is_already_split says that there are more", given.size()));
    }
    for (std::size_t i = 0; i + 1 < in_parts_.size(); ++i) {
      if (i == 0 && given[0].size(-1) != in_parts_.back()) {
        throw std::invalid_argument(fmt::format("TiledLinear: the input's last dimension is {}, the layer takes {}",
                                                given[0].size(-1), in_parts_.back()));
      }
      inputs.push_back(given[0].narrow(-1, in_parts_[i], in_parts_[i + 1] - in_parts_[i]));
    }
  }
  Results results;
  for (const auto& row : tiles_) {
    at::Tensor sum;
    for (std::size_t i = 0; i < row.size(); ++i) {
      Tensors out = row[i]->run({inputs[i]});
      sum = sum.defined() ? sum + out[0] : std::move(out[0]);
      if (out.size() > 1) results.biases.push_back(std::move(out[1]));
    }
    results.outputs.push_back(std::move(sum));
  }
  return results;
}

TiledLinear::Tensors TiledLinear::combined(Tensors pieces, std::int64_t dim) const {
  if (!options_.combine_out_splits || pieces.size() < 2) return pieces;
  return {at::cat(pieces, dim)};
}

void TiledLinear::require_whole() const {
  if ((options_.in_splits == 1 || !options_.input_is_already_split) &&
      (options_.out_splits == 1 || options_.combine_out_splits)) {
    return;
  }
  throw std::logic_error("TiledLinear: its inputs or outputs are in pieces: call forward with a list of tensors");
}

at::Tensor TiledLinear::forward(const at::Tensor& x) {
  require_whole();
  return forward(Tensors{x})[0];
}

TiledLinear::Tensors TiledLinear::forward(const Tensors& inputs) {
  return combined(run_tiles(inputs).outputs, -1);
}

void TiledLinear::copy_params_from(const torch::nn::Module& linear) {
  const auto theirs = linear.named_parameters(/*recurse=*/false);
  const auto take = [&](const char* name, const std::vector<std::int64_t>& shape) {
    const at::Tensor* found = theirs.find(name);
    if (found == nullptr || found->sizes() != at::IntArrayRef(shape)) {
      throw std::invalid_argument(
          fmt::format("TiledLinear: copy_params_from needs a layer of the same size with a {}", name));
    }
    return *found;
  };
  const at::Tensor weight = take("weight", {out_parts_.back(), in_parts_.back()});
  at::Tensor bias;
  if (options_.bias) {
    bias = take("bias", {out_parts_.back()});
  } else if (theirs.contains("bias")) {
    throw std::invalid_argument("TiledLinear: copy_params_from got a layer with a bias, and this one has none");
  }

  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sources{weight};
  if (bias.defined()) sources.push_back(bias);
  const GatheredParameters source(sources);
  for (std::size_t o = 0; o < tiles_.size(); ++o) {
    for (std::size_t i = 0; i < tiles_[o].size(); ++i) {
      Tile& tile = *tiles_[o][i];
      std::vector<at::Tensor> targets{tile.weight};
      if (tile.bias.defined()) targets.push_back(tile.bias);
      GatheredParameters target(targets, 0);
      const auto rows = [&](const at::Tensor& t) {
        return t.narrow(0, out_parts_[o], out_parts_[o + 1] - out_parts_[o]);
      };
      tile.weight.copy_(rows(weight).narrow(1, in_parts_[i], in_parts_[i + 1] - in_parts_[i]));
      if (tile.bias.defined()) tile.bias.copy_(rows(bias));
      target.close();
    }
  }
}

TiledLinearReturnBias::TiledLinearReturnBias(std::int64_t in_features, std::int64_t out_features,
                                             const TiledLinearOptions& options)
    : TiledLinear(in_features, out_features, options, false) {}

std::pair<at::Tensor, at::Tensor> TiledLinearReturnBias::forward(const at::Tensor& x) {
  require_whole();
  const auto [outputs, biases] = forward(Tensors{x});
  return {outputs[0], biases.empty() ? at::Tensor() : biases[0]};
}

std::pair<TiledLinear::Tensors, TiledLinear::Tensors> TiledLinearReturnBias::forward(const Tensors& inputs) {
  Results results = run_tiles(inputs);
  return {combined(std::move(results.outputs), -1), combined(std::move(results.biases), 0)};
}

}  // namespace deepspeed::zero
