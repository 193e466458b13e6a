// SPDX-License-Identifier: Apache-2.0
#include "models/footprint.h"

#include <algorithm>
#include <utility>

#include "models/family.h"

namespace deepspeed::models {

std::vector<layout::ParameterFacts> parameter_facts(const DecoderConfig& config, base::Dtype type) {
  const Family& family = *find_family(config.family);
  std::vector<layout::ParameterFacts> facts;
  const auto add = [&](Weight weight, std::vector<int> units) {
    const std::vector<std::int64_t> shape = shape_of(config, weight);
    if (shape.empty()) return;
    layout::ParameterFacts fact;
    fact.numel = ParameterSpec{"", shape}.numel();
    fact.units = std::move(units);
    fact.type = type;
    facts.push_back(std::move(fact));
  };
  const int before = config.position == Position::learned ? 2 : 1;
  const int norm = before + static_cast<int>(config.layers);
  const int head = norm + 1;
  for (const auto& [weight, name] : family.before) {
    if (weight == Weight::token_embedding) {
      add(weight, config.tied_head ? std::vector<int>{0, head} : std::vector<int>{0});
    } else {
      add(weight, {1});
    }
  }
  for (int unit = before; unit < norm; ++unit) {
    for (const auto& [weight, name] : family.block) add(weight, {unit});
  }
  for (const auto& [weight, name] : family.after) add(weight, {weight == Weight::head ? head : norm});
  return facts;
}

std::int64_t activation_bytes(const DecoderConfig& config, std::int64_t batch, std::int64_t sequence, base::Dtype type,
                              bool checkpointing) {
  const std::int64_t size = static_cast<std::int64_t>(base::size_of(type));
  const std::int64_t tokens = batch * sequence;
  const std::int64_t queries = config.heads * config.head_dim;
  const std::int64_t keys = config.kv_heads * config.head_dim;
  const bool half = size == 2;

  // Elements a token that one block keeps: its input, both norms' inputs and outputs, ...
  std::int64_t kept = 4 * config.hidden;
  // ... queries, keys (repeated for each query head) and values as the products take them, what attention gives ...
  kept += 4 * queries;
  if (config.position == Position::rotary) kept += 2 * (queries + keys);  // turned ones
  // ... and the MLP's inner width before and after the activation, twice and a product where it is gated.
  kept += (config.gated_mlp ? 4 : 2) * config.inner;
  std::int64_t block = tokens * kept * size;
  // RMS norm computes in fp32 and keeps its steps.
  if (config.norm == Norm::rms) block += tokens * config.hidden * 2 * (half ? 2 * 4 : 4);
  // The probabilities of all pairs of positions, where attention isn't fused (decoder.cpp, attend).
  constexpr std::int64_t longest_unfused = 512;
  const bool unfused = sequence <= longest_unfused && type != base::Dtype::f16;
  if (unfused) block += batch * config.heads * sequence * sequence * size;

  // Backward of a block holds the gradient of what it walks through: the inner width and the probabilities.
  std::int64_t walking = tokens * (2 * config.inner + 2 * config.hidden) * size;
  if (unfused) walking += 2 * batch * config.heads * sequence * sequence * size;
  // Logits, in fp32 for the loss, their logarithms of probabilities and the gradient.
  const std::int64_t head = tokens * config.vocab_size * (half ? 2 + 3 * 4 : 3 * 4) + tokens * config.hidden * size;

  const std::int64_t input = tokens * config.hidden * size;
  if (checkpointing) {
    const std::int64_t inputs = config.layers * input;
    return inputs + std::max(head, block + walking);
  }
  return config.layers * block + std::max(head, walking);
}

}  // namespace deepspeed::models
