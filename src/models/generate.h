// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/causal_lm.h"

namespace deepspeed::models {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  double temperature = 0.0;  ///< 0: always the likeliest token; else sampled from softmax(logits / temperature)
  std::uint64_t seed = 0;    ///< of the sampling
  std::optional<std::int64_t> stop_token;  ///< ends the text; is part of what is returned
};

/// The tokens that the model adds to a prompt of at least one token. What no longer fits in the context falls out at
/// the front. The model is in evaluation mode meanwhile. Every token costs a forward over the whole text.
std::vector<std::int64_t> generate(CausalLM& model, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace deepspeed::models
