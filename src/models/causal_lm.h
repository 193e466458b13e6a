// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

namespace deepspeed::models {

struct Output {
  at::Tensor logits;  ///< [batch, positions, vocabulary], in the model's dtype
  at::Tensor loss;    ///< a scalar in fp32; undefined without labels
};

/// A model that gives each position a distribution over the next token.
class CausalLM : public torch::nn::Module {
 public:
  /// `input_ids`: [batch, positions], int64 or int32. `labels`: none; or [batch, positions], Hugging Face's convention:
  /// usually input_ids themselves, shifted by one inside, so that the last position has no target; or
  /// [batch, positions + 1]: the tokens with the one that follows them, so that every position has its target. A label
  /// of -100 is left out. The loss is the mean cross-entropy over the targets, computed in fp32. `attention_mask`:
  /// none, or [batch, positions], 0 where no position may attend to (padding); positions count from 0 whatever it says.
  virtual Output forward(const at::Tensor& input_ids, const at::Tensor& labels = {},
                         const at::Tensor& attention_mask = {}) = 0;
  virtual std::int64_t vocab_size() const = 0;
  /// Most positions that forward takes.
  virtual std::int64_t context_length() const = 0;
  /// Model FLOPs of forward and backward for one token of a sequence this long: 6 N + 6 layers hidden sequence, that is
  /// causal attention counted half and recomputation not at all (Chowdhery et al. 2022, "PaLM", appendix B).
  virtual double flops_per_token(std::int64_t sequence) const = 0;
  /// The config.json that transformers reads, but for the dtype.
  virtual nlohmann::json hf_config() const = 0;
};

}  // namespace deepspeed::models
