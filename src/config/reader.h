// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace deepspeed::config {

/// Text read into a value, with the line on which each key stands (1-based), by dotted path.
struct Document {
  nlohmann::json value;
  std::map<std::string, std::size_t> lines;
};

/// Limits of the reader: a config is small, and what isn't is hostile or a mistake.
inline constexpr std::size_t max_text_bytes = std::size_t{16} << 20;
inline constexpr std::size_t max_depth = 64;

/// Reads JSON or, where that fails, HJSON (https://hjson.github.io/syntax.html: comments, unquoted keys and strings,
/// ''' strings, optional commas and root braces). A byte-order mark is accepted, an empty text is an empty object.
/// Throws ConfigError with `name`, line and column: the JSON error where both readings fail; duplicate keys at any
/// depth, all of them with their full paths; integers that don't fit in 64 bits; nesting beyond max_depth.
Document read_document(std::string_view text, const std::string& name);

/// One JSON value, for `path=value` overrides; false if the text isn't JSON.
bool read_json_value(std::string_view text, const std::string& name, nlohmann::json& out);

/// Finds the text that a command-line source stands for: "-" is standard input, then an existing file, then JSON or
/// HJSON text itself, then base64 (standard or URL-safe alphabet) of it. `name` becomes what errors call it.
std::string read_source(const std::string& source, std::string& name);

}  // namespace deepspeed::config
