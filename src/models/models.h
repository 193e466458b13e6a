// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "models/causal_lm.h"

namespace deepspeed::models {

/// From the configuration's `model` section: {"path": FOLDER} reads a Hugging Face folder, {"type": FAMILY, ...} builds
/// one from scratch with values that depend on `seed` alone. Parameters are fp32 on the CPU, in training mode.
/// Throws ConfigError ("model.KEY: ...") or DataError (a file of the folder).
std::shared_ptr<CausalLM> make_model(const nlohmann::json& section, std::uint64_t seed);

/// Reads a Hugging Face folder: config.json and model.safetensors or its shards. Every parameter must be there with its
/// shape and nothing else may be, but for the head of a tied model and the buffers of old files; the error names each
/// tensor that is missing, left over or of another shape. Names without the backbone's prefix are taken too.
std::shared_ptr<CausalLM> load_model(const std::filesystem::path& folder);

/// Makes a Hugging Face folder: config.json, generation_config.json, model.safetensors (or shards and their index),
/// with the weights in `dtype`. A tied head is not written twice, as transformers does it.
void save_model(const CausalLM& model, const std::filesystem::path& folder, base::Dtype dtype);
/// The same from tensors that are elsewhere (consolidated from shards, fp32 masters): each parameter's name and value.
void save_model(const nlohmann::json& hf_config, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                const std::filesystem::path& folder, base::Dtype dtype);

}  // namespace deepspeed::models
