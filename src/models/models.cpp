// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include <optional>

#include "models/decoder.h"
#include "models/fields.h"

namespace deepspeed::models {

namespace {

/// The folder that the section names, or nothing if it describes a model to build.
std::optional<std::string> folder_of(const nlohmann::json& section) {
  Fields in(section, Fields::Origin::section, "model.");
  if (!in.has("path")) {
    if (!in.has("type")) in.fail("", "needs 'path' (a Hugging Face folder) or 'type' (" + family_names() + ")");
    return std::nullopt;
  }
  if (in.has("type")) in.fail("type", "is given beside model.path: take one of them");
  in.refuse_unknown();
  return in.text("path", "");
}

}  // namespace

DecoderConfig describe_model(const nlohmann::json& section) {
  const auto folder = folder_of(section);
  return folder ? read_config_file(*folder) : read_section(section);
}

std::shared_ptr<CausalLM> make_model(const nlohmann::json& section, std::uint64_t seed) {
  if (const auto folder = folder_of(section)) return load_model(*folder);
  const DecoderConfig config = read_section(section);
  return std::make_shared<Decoder>(config, initial_values(config, seed));
}

}  // namespace deepspeed::models
