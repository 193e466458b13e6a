// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/config.h"
#include "config/keys.h"
#include "config/validate.h"

namespace deepspeed::config {

using nlohmann::json;

namespace {

class Checker {
 public:
  void section(const Node& node, const json& value, const std::string& path, const std::string& type) {
    const auto own_type = value.find("type");
    const std::string type_below = own_type != value.end() && own_type->is_string() ? own_type->get<std::string>() : "";
    for (const auto& [name, entry] : value.items()) {
      const Node* child = node.child(name);
      if (child == nullptr || entry.is_null()) continue;
      const Key* key = child->row(node.name == "params" ? type : "");
      if (key == nullptr && !child->rows.empty()) continue;
      const std::string full = path.empty() ? name : path + "." + name;
      if (entry.is_object() && child->is_section())
        subsection(*child, key, entry, full, type_below);
      else if (key != nullptr)
        leaf(*child, *key, entry, full);
    }
  }

  std::vector<std::string> refusals;

 private:
  void subsection(const Node& node, const Key* key, const json& value, const std::string& path,
                  const std::string& type) {
    if (key != nullptr && !key->gate.empty()) {
      const Node* gate = node.exact(key->gate);
      const auto found = value.find(key->gate);
      if (found == value.end() || is_off(*gate->row(), *found)) return;  // the feature is off
      if (key->status == Status::unsupported) return refuse(path + "." + key->gate, *found);
    } else if (key != nullptr && key->status == Status::unsupported && (key->kinds & null) != 0) {
      return refuse(path, value);
    }
    section(node, value, path, type);
  }

  void leaf(const Node& node, const Key& key, const json& value, const std::string& path) {
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    if (std::find(key.later.begin(), key.later.end(), word) != key.later.end()) return refuse(path, value);
    if (key.status == Status::unsupported && !is_off(key, value)) return refuse(path, value);
    const Node* item = node.exact("[]");
    if (item == nullptr || !value.is_array()) return;
    for (std::size_t i = 0; i < value.size(); ++i) section(*item, value[i], fmt::format("{}[{}]", path, i), "");
  }

  void refuse(const std::string& path, const json& value) {
    refusals.push_back(fmt::format("{}: {} is not supported in this version of deepspeed-mpi", path, show(value)));
  }
};

}  // namespace

void check_supported(const Config& config) {
  Checker checker;
  checker.section(table(), config.resolved(), "", "");
  if (checker.refusals.empty()) return;
  std::string text;
  for (const std::string& refusal : checker.refusals) text += (text.empty() ? "" : "\n") + refusal;
  throw base::ConfigError(text);
}

void check_accelerator(const Config& config, const Facts& facts) {
  if (facts.accelerator || !config.get<bool>("fp16.enabled")) return;
  const std::int64_t stage = config.get<std::int64_t>("zero_optimization.stage");
  const char* words = stage == 1 || stage == 2
                          ? "Accelerator is not detected, cannot perform low precision training (e.g., fp16, bf16)."
                          : "Cannot use fp16 without accelerator.";
  throw base::ConfigError(fmt::format(
      "fp16.enabled: {} Use bf16, which also runs on a CPU, or set DS_ACCELERATOR=cpu to compute fp16 on the CPU.",
      words));
}

}  // namespace deepspeed::config
