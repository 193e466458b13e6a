// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "nn/unit.h"

namespace deepspeed::zero {

/// DeepSpeed's arguments of the same names.
struct TiledLinearOptions {
  bool bias = true;
  std::int64_t in_splits = 1;           ///< tiles across the input features
  std::int64_t out_splits = 1;          ///< tiles across the output features
  bool input_is_already_split = false;  ///< the caller gives in_splits inputs
  bool combine_out_splits = true;       ///< false: the caller gets out_splits outputs
};

/// A linear layer whose weight is cut into out_splits x in_splits tiles, each a unit of its own: where parameters are
/// sharded, one tile is gathered at a time and not the whole layer (Rajbhandari et al. 2021, "ZeRO-Infinity", section
/// 5.1.3). Both dimensions are cut as layout::partition_uniform says, and only the tiles of the last input split have a
/// bias. Weights [out, in] of the tile and biases begin as those of a torch::nn::Linear of the whole size. Not to be
/// put inside a unit.
class TiledLinear : public torch::nn::Module {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Throws std::invalid_argument where there are more splits than features, or none.
  TiledLinear(std::int64_t in_features, std::int64_t out_features, const TiledLinearOptions& options = {});

  /// x [..., in_features] to [..., out_features].
  at::Tensor forward(const at::Tensor& x);
  /// The same for inputs or outputs in pieces: one whole input, or in_splits of them if the input is already split, to
  /// one whole output, or out_splits of them if they aren't to be combined.
  Tensors forward(const Tensors& inputs);

  /// Takes the values of a linear layer: its parameters "weight" [out_features, in_features] and "bias" [out_features],
  /// which it must have exactly if this layer does. Collective where either of them is sharded: rank 0's values count.
  void copy_params_from(const torch::nn::Module& linear);

  /// Where the splits begin, and the end.
  const std::vector<std::int64_t>& in_parts() const { return in_parts_; }
  const std::vector<std::int64_t>& out_parts() const { return out_parts_; }

 protected:
  TiledLinear(std::int64_t in_features, std::int64_t out_features, const TiledLinearOptions& options, bool add_bias);
  struct Results {
    Tensors outputs;  ///< one for each output split
    Tensors biases;   ///< the same, where they weren't added; empty without a bias
  };
  Results run_tiles(const Tensors& inputs);
  /// As the caller wants them.
  Tensors combined(Tensors pieces, std::int64_t dim) const;
  void require_whole() const;

 private:
  class Tile;
  TiledLinearOptions options_;
  std::vector<std::int64_t> in_parts_;
  std::vector<std::int64_t> out_parts_;
  std::vector<std::vector<std::shared_ptr<Tile>>> tiles_;  // [out_splits][in_splits]
};

/// The same, but the bias is given back beside the output and not added, for callers that fuse the addition.
class TiledLinearReturnBias : public TiledLinear {
 public:
  TiledLinearReturnBias(std::int64_t in_features, std::int64_t out_features, const TiledLinearOptions& options = {});

  /// x [..., in_features] to [..., out_features] and the bias [out_features], undefined without one.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x);
  /// The same for inputs or outputs in pieces, the biases cut as the outputs are; no biases without one.
  std::pair<Tensors, Tensors> forward(const Tensors& inputs);
};

}  // namespace deepspeed::zero
