// SPDX-License-Identifier: Apache-2.0
#include "optim/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace deepspeed::optim {

Params::Params(const nlohmann::json& values, std::string path) : values_(&values), path_(std::move(path)) {
  if (!values.is_null() && !values.is_object()) {
    throw base::ConfigError(fmt::format("{}: {} isn't an object", path_, values.dump()));
  }
}

std::optional<std::string> Params::unknown(std::span<const std::string_view> known) const {
  for (const auto& [key, value] : values_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) return key;
  }
  return std::nullopt;
}

const nlohmann::json* Params::find(std::string_view key) const {
  if (values_->is_null()) return nullptr;
  const auto at = values_->find(std::string(key));
  return at == values_->end() || at->is_null() ? nullptr : &*at;
}

double Params::number(std::string_view key, double fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) refuse(key, fmt::format("{} isn't a number", value->dump()));
  return value->get<double>();
}

bool Params::flag(std::string_view key, bool fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, fmt::format("{} isn't true or false", value->dump()));
  return value->get<bool>();
}

std::string Params::text(std::string_view key, std::string fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(key, fmt::format("{} isn't a string", value->dump()));
  return value->get<std::string>();
}

void Params::refuse(std::string_view key, const std::string& what) const {
  throw base::ConfigError(fmt::format("{}.{}: {}", path_, key, what));
}

std::string listing(std::span<const std::string_view> names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace deepspeed::optim
