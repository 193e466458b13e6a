// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <fmt/format.h>

#include <stdexcept>

#include "base/error.h"
#include "config/keys.h"
#include "config/reader.h"
#include "config/validate.h"

namespace deepspeed::config {

using nlohmann::json;

struct Config::Impl {
  json user, resolved;
  std::set<std::string> given;
  std::vector<std::string> warnings;
};

Config Config::load(const std::string& source, const std::vector<std::string>& overrides, const Facts& facts) {
  std::string name;
  const std::string text = read_source(source, name);
  return parse(text, name, overrides, facts);
}

Config Config::parse(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                     const Facts& facts) {
  Findings findings(name);
  Canonical user = canonicalise(read_document(text, name), findings);
  for (const std::string& one : overrides) apply_override(one, user, findings);

  auto impl = std::make_shared<Impl>();
  std::vector<std::string> autos;
  impl->resolved = validate(user.value, findings, autos);
  findings.throw_if_any();
  resolve(impl->resolved, user, autos, facts, findings);
  check_conflicts(impl->resolved, user, facts, findings);
  findings.throw_if_any();

  impl->user = std::move(user.value);
  impl->given = std::move(user.given);
  impl->warnings = findings.warnings();
  Config config;
  config.impl_ = std::move(impl);
  return config;
}

namespace {

const json* declared_value(const json& resolved, std::string_view path) {
  if (find_node(path) == nullptr) throw std::logic_error(fmt::format("{}: no such configuration key", path));
  const json* value = at_path(resolved, path);
  return value == nullptr || value->is_null() ? nullptr : value;
}

[[noreturn]] void wrong_type(std::string_view path, const json& value, const char* wanted) {
  throw std::logic_error(fmt::format("{}: {} asked of {}", path, wanted, value.dump()));
}

template <class T>
struct As;
template <>
struct As<bool> {
  static bool from(std::string_view path, const json& value) {
    if (!value.is_boolean()) wrong_type(path, value, "bool");
    return value.get<bool>();
  }
};
template <>
struct As<std::int64_t> {
  static std::int64_t from(std::string_view path, const json& value) {
    if (!value.is_number_integer()) wrong_type(path, value, "integer");
    return value.get<std::int64_t>();
  }
};
template <>
struct As<double> {
  static double from(std::string_view path, const json& value) {
    if (!value.is_number()) wrong_type(path, value, "number");
    return value.get<double>();
  }
};
template <>
struct As<std::string> {
  static std::string from(std::string_view path, const json& value) {
    if (!value.is_string()) wrong_type(path, value, "string");
    return value.get<std::string>();
  }
};
template <class T>
struct As<std::vector<T>> {
  static std::vector<T> from(std::string_view path, const json& value) {
    if (!value.is_array()) return {As<T>::from(path, value)};
    std::vector<T> out;
    for (const json& entry : value) out.push_back(As<T>::from(path, entry));
    return out;
  }
};
template <>
struct As<json> {
  static json from(std::string_view, const json& value) { return value; }
};

}  // namespace

template <class T>
std::optional<T> Config::find(std::string_view path) const {
  const json* value = declared_value(impl_->resolved, path);
  if (value == nullptr) return std::nullopt;
  return As<T>::from(path, *value);
}

template <class T>
T Config::get(std::string_view path) const {
  const json* value = declared_value(impl_->resolved, path);
  if (value == nullptr) throw std::logic_error(fmt::format("{}: has no value; use find()", path));
  return As<T>::from(path, *value);
}

#define DS_CONFIG_TYPE(T)                            \
  template T Config::get<T>(std::string_view) const; \
  template std::optional<T> Config::find<T>(std::string_view) const;
DS_CONFIG_TYPE(bool)
DS_CONFIG_TYPE(std::int64_t)
DS_CONFIG_TYPE(double)
DS_CONFIG_TYPE(std::string)
DS_CONFIG_TYPE(std::vector<double>)
DS_CONFIG_TYPE(std::vector<std::int64_t>)
DS_CONFIG_TYPE(std::vector<std::string>)
DS_CONFIG_TYPE(json)
#undef DS_CONFIG_TYPE

bool Config::given(std::string_view path) const {
  if (find_node(path) == nullptr) throw std::logic_error(fmt::format("{}: no such configuration key", path));
  if (impl_->given.count(std::string(path)) == 0) return false;
  const json* value = at_path(impl_->user, path);
  return value == nullptr || !value->is_null();
}

const json& Config::resolved() const {
  return impl_->resolved;
}
const json& Config::user() const {
  return impl_->user;
}
const std::vector<std::string>& Config::warnings() const {
  return impl_->warnings;
}

namespace {

/// Keys in the table's order, then those that aren't declared.
nlohmann::ordered_json in_order(const json& value, const Node* node) {
  if (value.is_array()) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const json& entry : value) out.push_back(in_order(entry, node == nullptr ? nullptr : node->exact("[]")));
    return out;
  }
  if (!value.is_object()) return value;
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  if (node != nullptr)
    for (const auto& child : node->children) {
      const auto found = value.find(child->name);
      if (found != value.end()) out[child->name] = in_order(*found, child.get());
    }
  for (const auto& [name, entry] : value.items())
    if (!out.contains(name)) out[name] = in_order(entry, node == nullptr ? nullptr : node->child(name));
  return out;
}

}  // namespace

std::string Config::text() const {
  return in_order(impl_->resolved, &table()).dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace deepspeed::config
