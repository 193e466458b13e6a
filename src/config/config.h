// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::config {

/// What the configuration can't know by itself; used for the batch arithmetic, for "auto" values and for refusals.
struct Facts {
  int world_size = 1;
  bool accelerator = false;      ///< a usable GPU, or DS_ACCELERATOR=cpu which lets the CPU stand for one
  std::int64_t hidden_size = 0;  ///< 0 = not known; resolves the "auto" bucket sizes of stage 3
  std::string model_dtype;       ///< "" = not known
};

/// The parsed, validated, immutable configuration with every default filled in. Every key is declared once, in the key
/// table (keys.h). Paths are dotted, spelled as in the JSON: "zero_optimization.stage".
class Config {
 public:
  /// Reads a path, JSON or HJSON text, base64 of either, or "-" for standard input; `overrides` are path=value pairs
  /// (--set) applied on top. Throws ConfigError: full key path, value, what is wanted.
  static Config load(const std::string& source, const std::vector<std::string>& overrides, const Facts& facts);
  /// From text already read (JSON, else HJSON); `name` is what errors call it.
  static Config parse(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                      const Facts& facts);

  /// The value of a declared key, its default if not given; T is bool, std::int64_t, double, std::string,
  /// std::vector<double>, std::vector<std::int64_t>, std::vector<std::string> (a single value where a list may stand
  /// comes as a list of one) or nlohmann::json. A path that isn't declared, a wrong T, or null is
  /// a std::logic_error (a programming mistake).
  template <class T>
  T get(std::string_view path) const;
  /// Like get, but nullopt where the value is null / not given and has no default.
  template <class T>
  std::optional<T> find(std::string_view path) const;
  /// True if the user wrote this key (or block) with a value other than null.
  bool given(std::string_view path) const;

  /// Everything resolved, defaults filled in: what --print-config shows and the run folder keeps.
  const nlohmann::json& resolved() const;
  /// resolved() as text in the table's order: itself a configuration that resolves to the same.
  std::string text() const;
  /// What the user wrote, --set included; other and deprecated names replaced by the table's.
  const nlohmann::json& user() const;
  /// Warnings found while validating (deprecated keys and the like), to be logged once by rank 0.
  const std::vector<std::string>& warnings() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Throws ConfigError naming each key that turns on what this version doesn't do yet (the table's status), so that
/// nothing is silently ignored. Apart from parse(), so that configurations for other versions can be read and shown.
void check_supported(const Config& config);

/// Throws ConfigError where the configuration needs an accelerator that isn't there (fp16). Apart from parse(), so that
/// a configuration can be checked on a login node.
void check_accelerator(const Config& config, const Facts& facts);

}  // namespace deepspeed::config
