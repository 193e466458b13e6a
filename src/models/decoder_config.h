// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace deepspeed::models {

enum class Norm { layer, rms };
enum class Position { learned, rotary };
enum class Activation { gelu, gelu_tanh, silu, relu };

/// Rotary position embedding (Su et al. 2021, "RoFormer") in Hugging Face's layout: the two halves of a head are the
/// real and the imaginary parts.
struct Rotary {
  enum class Scaling { none, linear, llama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;
  double low_frequency_factor = 1.0;   ///< llama3
  double high_frequency_factor = 4.0;  ///< llama3
  std::int64_t original_context = 0;   ///< llama3: positions the model was first trained with
};

/// The choices that make one decoder-only transformer out of the many: what a family's config.json says, in one
/// vocabulary. Sizes are positive and fit together once `read_config` or `read_section` has given the record.
struct DecoderConfig {
  std::string family;  ///< Hugging Face's model_type

  std::int64_t vocab_size = 0;
  std::int64_t context = 0;  ///< most positions
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< grouped-query attention (Ainslie et al. 2023): heads / kv_heads queries share a key
  std::int64_t head_dim = 0;
  std::int64_t inner = 0;  ///< width of the MLP

  Norm norm = Norm::layer;
  double norm_eps = 1e-5;
  Position position = Position::learned;
  Rotary rotary;
  Activation activation = Activation::gelu_tanh;
  bool gated_mlp = false;   ///< down(activation(gate(x)) * up(x)) (Shazeer 2020, "GLU variants")
  bool fused_qkv = false;   ///< queries, keys and values are one matrix
  bool transposed = false;  ///< linear weights are [in, out]
  bool attention_bias = true;
  bool mlp_bias = true;
  bool tied_head = true;         ///< the head is the token embedding
  bool scale_attention = true;   ///< by 1 / sqrt(head_dim)
  bool scale_by_layer = false;   ///< ... and by 1 / (layer + 1)
  std::int64_t padding_id = -1;  ///< this row of the token embedding gets no gradient; -1: none

  double embedding_dropout = 0.0;
  double attention_dropout = 0.0;
  double residual_dropout = 0.0;

  double initializer_range = 0.02;
  bool scaled_residual_init = false;  ///< outputs of attention and MLP: range / sqrt(2 layers) (Radford et al. 2019)

  std::string dtype = "float32";  ///< as stored in the folder it was read from
  nlohmann::json source;          ///< the object it was read from: keys without a meaning here are written back
};

/// From the `model` section of a configuration: {"type": "gpt2", and that family's Hugging Face config names}. Unknown,
/// missing and wrong keys are a ConfigError naming `PATH.KEY`. Dropout is off where it isn't given.
DecoderConfig read_section(const nlohmann::json& section, const std::string& path = "model");
/// From a Hugging Face config.json already parsed; `file` is what errors (DataError) call it. Keys that are not known
/// are kept and written back, a key or value that would need other arithmetic is refused.
DecoderConfig read_config(const nlohmann::json& config, const std::string& file);
/// The same from FOLDER/config.json.
DecoderConfig read_config_file(const std::filesystem::path& folder);
/// What make_model would build from this section ({"path": FOLDER} or {"type": FAMILY, ...}), without reading weights.
DecoderConfig describe_model(const nlohmann::json& section);
/// The config.json of transformers for this model, with weights of this dtype ("float32", "bfloat16", ...).
nlohmann::json write_config(const DecoderConfig& config, const std::string& dtype);

/// One parameter of the model: its Hugging Face name and its shape.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel() const;
};
/// All parameters in Hugging Face's registration order, without allocating any; a tied head is not one.
std::vector<ParameterSpec> parameter_specs(const DecoderConfig& config);
std::int64_t parameter_count(const DecoderConfig& config);

}  // namespace deepspeed::models
