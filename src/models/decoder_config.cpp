// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_config.h"

#include "models/family.h"
#include "models/fields.h"

namespace deepspeed::models {
namespace {

/// Hugging Face keys of any family that change nothing in the arithmetic.
const std::vector<std::string_view> common_keys = {
    "architectures", "bos_token_id",      "eos_token_id",         "sep_token_id", "cls_token_id",
    "dtype",         "torch_dtype",       "transformers_version", "use_cache",    "name_or_path",
    "_name_or_path", "output_attentions", "output_hidden_states", "return_dict",  "task_specific_params"};

DecoderConfig read(Fields& in, std::string_view type_key, const nlohmann::json& object) {
  const std::string type = in.text(type_key, "");
  if (type.empty()) in.fail(type_key, "is needed; supported: " + family_names());
  const Family* family = find_family(type);
  if (!family) in.fail(type_key, "'" + type + "' is not a supported model type; supported: " + family_names());
  DecoderConfig config;
  config.family = type;
  family->read(in, config);
  in.accept(common_keys);
  config.source = object;
  return config;
}

}  // namespace

DecoderConfig read_section(const nlohmann::json& section, const std::string& path) {
  Fields in(section, Fields::Origin::section, path + ".");
  DecoderConfig config = read(in, "type", section);
  in.accept({"path"});  // null in a section whose defaults are filled in
  in.refuse_unknown();
  for (const char* key : {"type", "path"}) config.source.erase(key);
  return config;
}

DecoderConfig read_config(const nlohmann::json& object, const std::string& file) {
  Fields in(object, Fields::Origin::file, file + ": ");
  DecoderConfig config = read(in, "model_type", object);
  if (in.has("quantization_config"))
    in.fail("quantization_config", "quantized weights are not supported: use a folder with 16 or 32 bit weights");
  config.dtype = in.choice<std::string>(in.has("dtype") ? "dtype" : "torch_dtype", "float32",
                                        {{"float32", "float32"},
                                         {"bfloat16", "bfloat16"},
                                         {"float16", "float16"},
                                         {"float64", "float64"},
                                         {"auto", "float32"}});
  return config;
}

nlohmann::json write_config(const DecoderConfig& config, const std::string& dtype) {
  const Family& family = *find_family(config.family);
  nlohmann::json out = config.source.is_object() ? config.source : nlohmann::json::object();
  family.write(config, out);
  out["model_type"] = family.type;
  out["architectures"] = {family.architecture};
  out["initializer_range"] = config.initializer_range;
  out["tie_word_embeddings"] = config.tied_head;
  out["dtype"] = dtype;
  out["torch_dtype"] = dtype;
  // transformers would fill in ids of its own vocabulary, which this one may not have.
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (!out.contains(key)) out[key] = nullptr;
  }
  return out;
}

std::int64_t ParameterSpec::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::vector<ParameterSpec> parameter_specs(const DecoderConfig& config) {
  const Family& family = *find_family(config.family);
  std::vector<ParameterSpec> specs;
  const auto add = [&](const std::vector<WeightName>& weights, const std::string& prefix) {
    for (const auto& [weight, name] : weights) {
      std::vector<std::int64_t> shape = shape_of(config, weight);
      if (!shape.empty()) specs.push_back({prefix + std::string(name), std::move(shape)});
    }
  };
  add(family.before, "");
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    add(family.block, std::string(family.blocks) + "." + std::to_string(layer) + ".");
  add(family.after, "");
  return specs;
}

std::int64_t parameter_count(const DecoderConfig& config) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : parameter_specs(config)) count += spec.numel();
  return count;
}

}  // namespace deepspeed::models
