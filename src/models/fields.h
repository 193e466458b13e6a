// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepspeed::models {

/// Typed reading of a JSON object: each getter checks type and range, and what was asked for is what is known, so that
/// `refuse_unknown` can name the rest. Errors are thrown by `fail`, which the two callers set (the user's
/// configuration, or a file).
class Fields {
 public:
  enum class Origin { section, file };
  /// `place` stands before the key in messages: "model." or "FOLDER/config.json: ".
  Fields(const nlohmann::json& object, Origin origin, std::string place);

  Origin origin() const { return origin_; }
  /// True if the key is there and not null.
  bool has(std::string_view key);
  const nlohmann::json& at(std::string_view key) { return object_->at(std::string(key)); }

  /// A whole number in [low, high]; without `fallback` the key is needed.
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> fallback, std::int64_t low, std::int64_t high);
  double number(std::string_view key, std::optional<double> fallback, double low, double high);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  /// One of `choices`' names, as its value.
  template <class T>
  T choice(std::string_view key, const std::string& fallback, const std::vector<std::pair<std::string, T>>& choices) {
    const std::string name = text(key, fallback);
    std::string names;
    for (const auto& [candidate, value] : choices) {
      if (candidate == name) return value;
      names += (names.empty() ? "" : ", ") + candidate;
    }
    fail(key, "'" + name + "' is not supported; supported: " + names);
  }
  /// Keys that are accepted and change nothing here.
  void accept(const std::vector<std::string_view>& keys);
  /// The named object's fields, with KEY. before their names.
  Fields inner(std::string_view key);

  /// Names the first key that nobody asked for and the nearest one that was.
  void refuse_unknown() const;
  /// Ends with the error: PLACE KEY: message.
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  const nlohmann::json* find(std::string_view key);
  const nlohmann::json* object_;
  Origin origin_;
  std::string place_;
  std::vector<std::string> known_;
};

}  // namespace deepspeed::models
