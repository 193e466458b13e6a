// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/causal_lm.h"
#include "models/decoder_config.h"
#include "models/family.h"
#include "nn/unit.h"

namespace deepspeed::models {

/// Gives a parameter its value as soon as it exists, so that zero::Init can shard a unit once it is made. `name`: the
/// full one.
using Fill = std::function<void(const std::string& name, Weight weight, at::Tensor& parameter)>;

/// Hugging Face's initialization: normal with initializer_range, biases 0, norms 1. Each parameter draws from a
/// generator seeded by `seed` and its name, so that its values depend on nothing else.
Fill initial_values(const DecoderConfig& config, std::uint64_t seed);

/// The parameters of one unit, by what they are for; undefined where the model has none.
class Weights {
 public:
  const at::Tensor& operator[](Weight weight) const { return tensors_[static_cast<std::size_t>(weight)]; }
  /// Registers a fp32 parameter for each name that the choices have a shape for, with a module for each part of the
  /// name, so that the module tree gives Hugging Face's names in its order. `path`: of the module, with a dot behind.
  void declare(torch::nn::Module& module, const std::string& path, const DecoderConfig& config,
               const std::vector<WeightName>& names, const Fill& fill);

 private:
  std::array<at::Tensor, static_cast<std::size_t>(Weight::count)> tensors_;
};

/// One transformer block: x + attention(norm(x)), then + mlp(norm(that)).
class DecoderBlock : public nn::Unit {
 public:
  DecoderBlock(std::shared_ptr<const DecoderConfig> config, const Family& family, std::int64_t layer, const Fill& fill);
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

/// What stands before and after the blocks: one module of a family's names. Never recomputed: it holds next to no
/// activations of its own.
class DecoderPart : public nn::Unit {
 public:
  DecoderPart(std::shared_ptr<const DecoderConfig> config, const std::string& path,
              const std::vector<WeightName>& names, const Fill& fill);
  bool checkpointable() const override { return false; }

 protected:
  std::shared_ptr<const DecoderConfig> config_;
  Weights weights_;
};

/// Token ids [batch, positions] to the residual stream.
struct TokenEmbedding : DecoderPart {
  using DecoderPart::DecoderPart;
  Tensors compute(const Tensors& inputs) override;
  Tensors looked_up() const override { return {table()}; }
  const at::Tensor& table() const { return weights_[Weight::token_embedding]; }
};

/// Adds learned positions to the residual stream.
struct PositionEmbedding : DecoderPart {
  using DecoderPart::DecoderPart;
  Tensors compute(const Tensors& inputs) override;
};

struct FinalNorm : DecoderPart {
  using DecoderPart::DecoderPart;
  Tensors compute(const Tensors& inputs) override;
};

/// The residual stream to logits and, given labels, the loss. A tied head uses the embedding's table.
struct Head : DecoderPart {
  using DecoderPart::DecoderPart;
  void tie(const at::Tensor& table);
  Tensors compute(const Tensors& inputs) override;

 private:
  at::Tensor tied_;
};

/// The one decoder: every family is a DecoderConfig and a table of names. Embeddings, blocks, final norm and head are
/// units each. Parameters are created in fp32.
class Decoder : public CausalLM {
 public:
  /// Without `fill` the parameters are uninitialized.
  explicit Decoder(DecoderConfig config, const Fill& fill = {});

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

 private:
  /// Calls visit with the residual stream after the embedding and after each block; returns the last one, normed.
  template <class Visit>
  at::Tensor backbone(const at::Tensor& input_ids, const at::Tensor& attention_mask, Visit visit);
  void rotary_tables(std::int64_t positions, const at::Tensor& like, at::Tensor& cosine, at::Tensor& sine);

  std::shared_ptr<const DecoderConfig> config_;
  std::shared_ptr<TokenEmbedding> tokens_;
  std::shared_ptr<PositionEmbedding> positions_;  ///< null where positions aren't learned
  std::vector<std::shared_ptr<DecoderBlock>> blocks_;
  std::shared_ptr<FinalNorm> final_norm_;
  std::shared_ptr<Head> head_;
  at::Tensor cosine_, sine_;  ///< of the last call; no buffers: they follow from the config and are never saved
};

}  // namespace deepspeed::models
