// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder_config.h"
#include "models/fields.h"

namespace deepspeed::models {

/// The parameters that the decoder's arithmetic asks for.
enum class Weight : std::uint8_t {
  token_embedding,
  position_embedding,
  attention_norm,
  attention_norm_bias,
  qkv,
  qkv_bias,
  query,
  query_bias,
  key,
  key_bias,
  value,
  value_bias,
  attention_out,
  attention_out_bias,
  mlp_norm,
  mlp_norm_bias,
  gate,
  gate_bias,
  up,
  up_bias,
  down,
  down_bias,
  final_norm,
  final_norm_bias,
  head,
  count,
};

/// The shape of a weight under these choices; empty where the model has none (no biases, a tied head, ...).
std::vector<std::int64_t> shape_of(const DecoderConfig& config, Weight weight);

struct WeightName {
  Weight weight;
  std::string_view name;
};

/// What differs between families: names, their order, and how their config.json spells the record's choices.
struct Family {
  std::string_view type;           ///< model_type
  std::string_view architecture;   ///< the class in transformers
  std::string_view backbone;       ///< first part of the names, which files of the bare backbone leave out
  std::string_view blocks;         ///< blocks are named BLOCKS.0, BLOCKS.1, ...
  std::vector<WeightName> before;  ///< root parameters registered before the blocks
  std::vector<WeightName> block;   ///< names within a block, in the order of registration
  std::vector<WeightName> after;
  std::vector<std::string_view> buffers;  ///< ends of names that old files hold and that are no parameters
  void (*read)(Fields& fields, DecoderConfig& config);
  void (*write)(const DecoderConfig& config, nlohmann::json& out);
};

/// Null if there is none of this type.
const Family* find_family(std::string_view type);
/// "gpt2, llama": for messages.
std::string family_names();

}  // namespace deepspeed::models
