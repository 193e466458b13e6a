// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace deepspeed::config {

/// The text of --help-config: without a key all top-level keys and sections with one line each, for a section its keys,
/// for a key all that the table says about it. Throws ConfigError, with the nearest names, for a key that isn't
/// declared.
std::string help(const std::optional<std::string>& key);

/// The JSON Schema (2020-12) of a configuration, with docs, for editors: the text of --print-schema.
nlohmann::ordered_json schema();

/// The reference page in Markdown, docs/config.md.
std::string reference_page();

}  // namespace deepspeed::config
