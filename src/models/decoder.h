// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "models/causal_lm.h"
#include "models/decoder_config.h"
#include "models/family.h"
#include "nn/unit.h"

namespace deepspeed::models {

/// The parameters of a block or of the root, by what they are for; undefined where the model has none.
class Weights {
 public:
  const at::Tensor& operator[](Weight weight) const { return tensors_[static_cast<std::size_t>(weight)]; }
  /// Registers an uninitialized fp32 parameter for each name that the choices have a shape for, with a module for each
  /// part of the name, so that the module tree gives Hugging Face's names in its order.
  void declare(torch::nn::Module& module, const DecoderConfig& config, const std::vector<WeightName>& names);

 private:
  std::array<at::Tensor, static_cast<std::size_t>(Weight::count)> tensors_;
};

/// One transformer block: x + attention(norm(x)), then + mlp(norm(that)).
class DecoderBlock : public nn::Unit {
 public:
  DecoderBlock(std::shared_ptr<const DecoderConfig> config, const Family& family, std::int64_t layer);
  /// Inputs: the residual stream [batch, positions, hidden]; the attention mask, bool [batch, 1, positions, positions],
  /// undefined for a plain causal one; cosines and sines of the rotary positions [positions, head_dim] or undefined.
  /// Output: the residual stream.
  Tensors compute(const Tensors& inputs) override;

 private:
  at::Tensor attention(const at::Tensor& x, const Tensors& inputs) const;
  at::Tensor mlp(const at::Tensor& x) const;
  std::shared_ptr<const DecoderConfig> config_;
  std::int64_t layer_;
  Weights weights_;
};

/// The one decoder: every family is a DecoderConfig and a table of names. Each block is a unit; embeddings, the final
/// norm and the head are root parameters. Parameters are created in fp32, uninitialized.
class Decoder : public CausalLM {
 public:
  explicit Decoder(DecoderConfig config);

  Output forward(const at::Tensor& input_ids, const at::Tensor& labels = {},
                 const at::Tensor& attention_mask = {}) override;
  /// What `forward` gives the head: the residual stream after the embedding and after each block, where the last one
  /// has also gone through the final norm, as transformers' output_hidden_states.
  std::vector<at::Tensor> hidden_states(const at::Tensor& input_ids, const at::Tensor& attention_mask = {});

  std::int64_t vocab_size() const override { return config_->vocab_size; }
  std::int64_t context_length() const override { return config_->context; }
  double flops_per_token(std::int64_t sequence) const override;
  nlohmann::json hf_config() const override { return write_config(*config_, config_->dtype); }
  const DecoderConfig& config() const { return *config_; }

  /// Hugging Face's initialization: normal with initializer_range, biases 0, norms 1. Each parameter draws from a
  /// generator seeded by `seed` and its name, so that its values depend on nothing else.
  void initialize(std::uint64_t seed);

 private:
  /// Calls visit with the residual stream after the embedding and after each block; returns the last one, normed.
  template <class Visit>
  at::Tensor backbone(const at::Tensor& input_ids, const at::Tensor& attention_mask, Visit visit);
  void rotary_tables(std::int64_t positions, const at::Tensor& like, at::Tensor& cosine, at::Tensor& sine);
  at::Tensor normed(const at::Tensor& x) const;

  std::shared_ptr<const DecoderConfig> config_;
  Weights weights_;
  std::vector<std::shared_ptr<DecoderBlock>> blocks_;
  at::Tensor cosine_, sine_;  ///< of the last call; no buffers: they follow from the config and are never saved
};

}  // namespace deepspeed::models
