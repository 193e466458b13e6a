// SPDX-License-Identifier: Apache-2.0
#include "models/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/keys.h"

namespace deepspeed::models {
namespace {

std::string short_dump(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

Fields::Fields(const nlohmann::json& object, Origin origin, std::string place)
    : object_(&object), origin_(origin), place_(std::move(place)) {
  if (!object.is_object()) fail("", "must be an object, not " + short_dump(object));
}

void Fields::fail(std::string_view key, const std::string& message) const {
  std::string place = place_ + std::string(key);
  while (!place.empty() && (place.back() == '.' || place.back() == ' ' || place.back() == ':')) place.pop_back();
  const std::string text = place + ": " + message;
  if (origin_ == Origin::section) throw base::ConfigError(text);
  throw base::DataError(text);
}

const nlohmann::json* Fields::find(std::string_view key) {
  known_.emplace_back(key);
  const auto found = object_->find(known_.back());
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool Fields::has(std::string_view key) {
  return find(key) != nullptr;
}

std::int64_t Fields::integer(std::string_view key, std::optional<std::int64_t> fallback, std::int64_t low,
                             std::int64_t high) {
  const nlohmann::json* value = find(key);
  if (!value) {
    if (fallback) return *fallback;
    fail(key, "is needed");
  }
  const std::string wanted = fmt::format("must be a whole number from {} to {}, not {}", low, high, short_dump(*value));
  if (!value->is_number()) fail(key, wanted);
  // As a double first: 5e3 is whole too, and what doesn't fit in 64 bits is out of range and not wrapped.
  const double number = value->get<double>();
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) || number != std::floor(number))
    fail(key, wanted);
  return value->is_number_float() ? static_cast<std::int64_t>(number) : value->get<std::int64_t>();
}

double Fields::number(std::string_view key, std::optional<double> fallback, double low, double high) {
  const nlohmann::json* value = find(key);
  if (!value) {
    if (fallback) return *fallback;
    fail(key, "is needed");
  }
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high))
    fail(key, fmt::format("must be a number from {} to {}, not {}", low, high, short_dump(*value)));
  return value->get<double>();
}

bool Fields::flag(std::string_view key, bool fallback) {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) fail(key, "must be true or false, not " + short_dump(*value));
  return value->get<bool>();
}

std::string Fields::text(std::string_view key, const std::string& fallback) {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) fail(key, "must be a text, not " + short_dump(*value));
  return value->get<std::string>();
}

void Fields::accept(const std::vector<std::string_view>& keys) {
  known_.insert(known_.end(), keys.begin(), keys.end());
}

Fields Fields::inner(std::string_view key) {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_object()) fail(key, "must be an object");
  return {*value, origin_, place_ + std::string(key) + "."};
}

void Fields::refuse_unknown() const {
  for (const auto& [key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::vector<std::string> near = config::nearest(key, known_);
    fail(key, near.empty() ? "is not known" : "is not known; did you mean " + near.front() + "?");
  }
}

}  // namespace deepspeed::models
