// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace deepspeed::optim {

/// Reads a "params" object of the config. Errors are ConfigErrors that begin with the full key path.
class Params {
 public:
  /// `path` is the object's own ("optimizer.params"). null counts as {}.
  Params(const nlohmann::json& values, std::string path);

  /// The first key that isn't one of `known`.
  std::optional<std::string> unknown(std::span<const std::string_view> known) const;
  /// Null where the key is missing or null.
  const nlohmann::json* find(std::string_view key) const;

  double number(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string fallback) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& what) const;

 private:
  const nlohmann::json* values_;
  std::string path_;
};

/// "a, b, c"
std::string listing(std::span<const std::string_view> names);

}  // namespace deepspeed::optim
