// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/keys.h"
#include "config/reader.h"

namespace deepspeed::config {

/// What the checks share: where keys stand, and the findings so far.
class Findings {
 public:
  explicit Findings(std::string name) : name_(std::move(name)) {}

  void error(const std::string& path, const std::string& problem) { errors_.push_back(at(path) + problem); }
  void warning(const std::string& path, const std::string& problem) { warnings_.push_back(at(path) + problem); }
  /// Throws ConfigError with all errors, one a line, if there are any.
  void throw_if_any() const;

  const std::vector<std::string>& warnings() const { return warnings_; }

  std::map<std::string, std::size_t> lines;  ///< of keys, by canonical path
  std::set<std::string> overridden;          ///< canonical paths set by --set

 private:
  /// "file.json:7: zero_optimization.stage: "
  std::string at(const std::string& path) const;

  std::string name_;
  std::vector<std::string> errors_, warnings_;
};

/// What the user wrote, with other and deprecated names replaced by those of the table.
struct Canonical {
  nlohmann::json value;
  std::set<std::string> given;  ///< canonical paths of all keys and sections written
};
Canonical canonicalise(const Document& document, Findings& findings);

/// Puts a path=value override in.
void apply_override(const std::string& text, Canonical& user, Findings& findings);

/// Checks every key against the table and fills in the defaults. `autos` gets the paths whose value is "auto" and has
/// yet to be resolved; their default stands in their place.
nlohmann::json validate(const nlohmann::json& user, Findings& findings, std::vector<std::string>& autos);

/// Resolves the "auto" values, the defaults that hang on other keys, and the batch keys.
void resolve(nlohmann::json& resolved, const Canonical& user, const std::vector<std::string>& autos, const Facts& facts,
             Findings& findings);

/// The rules between keys.
void check_conflicts(const nlohmann::json& resolved, const Canonical& user, const Facts& facts, Findings& findings);

/// The value at a dotted path, or nullptr. A null section is no value.
const nlohmann::json* at_path(const nlohmann::json& root, std::string_view path);

/// Whether `text` is HH:MM:SS, and its seconds.
bool parse_duration(const std::string& text, double& seconds);

/// The value as it would stand in the file, shortened to what fits in a message.
std::string show(const nlohmann::json& value);

}  // namespace deepspeed::config
