// SPDX-License-Identifier: Apache-2.0
#include "config/reference.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/keys.h"

namespace deepspeed::config {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

std::string joined(const std::vector<std::string>& parts, const char* separator = ", ") {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

/// "zero_optimization.stage", with lists as "layer_specs[]" and names as "NAME".
std::string spelled(const Node& node) {
  std::string text = node.path;
  for (std::size_t at; (at = text.find(".[]")) != std::string::npos;) text.erase(at, 1);
  for (std::size_t at; (at = text.find('*')) != std::string::npos;) text.replace(at, 1, "NAME");
  return text;
}

/// The types among `key.only` that this version supports.
bool for_supported_type(const Node& node, const Key& key) {
  if (key.only.empty() || node.parent == nullptr || node.parent->parent == nullptr) return true;
  const Node* type = node.parent->parent->exact("type");
  if (type == nullptr || type->row() == nullptr) return true;
  const std::vector<std::string>& later = type->row()->later;
  return std::any_of(key.only.begin(), key.only.end(),
                     [&](const std::string& one) { return std::find(later.begin(), later.end(), one) == later.end(); });
}

std::string status_words(const Node& node, const Key& key) {
  if (!key.replaced_by.empty())
    return key.replaced_by == "-" ? "deprecated, without effect" : fmt::format("deprecated: use {}", key.replaced_by);
  if (key.status == Status::unsupported || !for_supported_type(node, key)) return "not yet";
  if (key.status == Status::parsed) return "parsed";
  return "works";
}

std::string default_words(const Key& key) {
  if (key.required) return "required";
  if (key.fallback.is_discarded()) return "none";
  if ((key.kinds & section) != 0 && !key.fallback.is_null()) return "";
  return key.fallback.dump();
}

std::string allowed_words(const Key& key) {
  std::vector<std::string> parts;
  if (!key.limits.empty()) parts.push_back(key.limits);
  std::vector<std::string> now;
  for (const std::string& choice : key.choices)
    if (std::find(key.later.begin(), key.later.end(), choice) == key.later.end()) now.push_back(choice);
  if (!now.empty()) parts.push_back(joined(now));
  if (!key.later.empty()) parts.push_back("not yet: " + joined(key.later));
  return joined(parts, "; ");
}

std::string extra_words(const Key& key) {
  std::string text;
  if (!key.only.empty()) text += fmt::format(" For {}.", joined(key.only));
  if (!key.names.empty()) text += fmt::format(" Also called {}.", joined(key.names));
  return text;
}

const char* const explain_status =
    "works: does what DeepSpeed's does. parsed: checked and shown, and takes effect only together with another key (or "
    "never had one). not yet: refused by name where it would turn something on; its default is accepted.";

}  // namespace

std::string help(const std::optional<std::string>& key) {
  std::string out;
  const auto line = [&](const Node& node) {
    const std::string name = node.path.substr(node.path.rfind('.') + 1);
    if (node.rows.empty()) {
      out += fmt::format("  {:<40} section\n", name);
      return;
    }
    const Key& first = node.rows.front();
    const std::string fallback = default_words(first);
    out += fmt::format("  {:<40} {}{}\n      {}\n", name, describe_kinds(first),
                       fallback.empty() ? std::string() : ", default " + fallback, first.doc);
  };
  if (!key || key->empty()) {
    out += "Keys and sections of the configuration (--help-config KEY says more of one):\n";
    for (const auto& child : table().children) line(*child);
    return out;
  }
  const Node* node = &table();
  std::string_view type;
  for (const std::string& part : split(*key, '.')) {
    std::string name = part;
    if (const std::size_t bracket = name.find('['); bracket != std::string::npos && bracket != 0) name.resize(bracket);
    const Node* child = node->child(name);
    if (child == nullptr) {
      const std::string near = hint(*node, name, type);
      throw base::ConfigError(fmt::format("{}: no such key{}", *key, near));
    }
    node = child;
  }
  out += spelled(*node) + "\n";
  for (const Key& row : node->rows) {
    out += fmt::format("  {}\n", row.doc);
    out += fmt::format("  type:    {}\n", describe_kinds(row));
    if (const std::string text = default_words(row); !text.empty()) out += fmt::format("  default: {}\n", text);
    if (const std::string text = allowed_words(row); !text.empty()) out += fmt::format("  allowed: {}\n", text);
    if (!row.only.empty()) out += fmt::format("  for:     {}\n", joined(row.only));
    if (!row.names.empty()) out += fmt::format("  also:    {}\n", joined(row.names));
    out += fmt::format("  status:  {}\n", status_words(*node, row));
  }
  if (node->is_section()) {
    out += "keys:\n";
    for (const auto& child : node->children) line(*child);
  }
  return out;
}

namespace {

ordered_json schema_of(const Node& node);

ordered_json schema_of(const Node& node, const Key& key) {
  ordered_json out;
  out["description"] = key.doc + extra_words(key);
  ordered_json types = ordered_json::array();
  const auto add = [&](unsigned kinds, const char* name) {
    if ((key.kinds & kinds) != 0 && std::find(types.begin(), types.end(), name) == types.end()) types.push_back(name);
  };
  add(boolean, "boolean");
  add(integer, "integer");
  add(number, "number");
  add(string | automatic, "string");
  add(strings | integers | numbers | list, "array");
  add(open | section, "object");
  add(null, "null");
  out["type"] = types.size() == 1 ? types.front() : types;
  if (!key.fallback.is_discarded() && (key.kinds & section) == 0) out["default"] = key.fallback;
  if (!key.choices.empty() && !key.any_case && (key.kinds & (integer | number | boolean)) == 0) {
    ordered_json values = ordered_json::array();
    for (const std::string& choice : key.choices) values.push_back(choice);
    if ((key.kinds & automatic) != 0) values.push_back("auto");
    if ((key.kinds & null) != 0) values.push_back(nullptr);
    if ((key.kinds & ~(string | null | automatic)) == 0) out["enum"] = values;
  } else if (!key.choices.empty() && (key.kinds & string) == 0) {
    for (const std::string& choice : key.choices) out["enum"].push_back(ordered_json::parse(choice));
  }
  if (!key.limits.empty() && (key.kinds & (integer | number)) != 0) {
    const std::string& text = key.limits;
    const auto value = [](const std::string& digits) { return ordered_json::parse(digits); };
    if (text[0] == '>') {
      if (text[1] == '=')
        out["minimum"] = value(text.substr(2));
      else
        out["exclusiveMinimum"] = value(text.substr(1));
    } else {
      const std::size_t dots = text.find("..");
      std::string low = text.substr(0, dots), high = text.substr(dots + 2);
      const bool low_open = low.back() == '<', high_open = high.front() == '<';
      if (low_open) low.pop_back();
      if (high_open) high.erase(0, 1);
      out[low_open ? "exclusiveMinimum" : "minimum"] = value(low);
      out[high_open ? "exclusiveMaximum" : "maximum"] = value(high);
    }
  }
  if ((key.kinds & (strings | integers | numbers)) != 0 && (key.kinds & list) == 0)
    out["items"]["type"] = (key.kinds & strings) != 0 ? "string" : (key.kinds & numbers) != 0 ? "number" : "integer";
  if (const Node* item = node.exact("[]")) out["items"] = schema_of(*item);
  if (!key.replaced_by.empty()) out["deprecated"] = true;
  return out;
}

ordered_json schema_of(const Node& node) {
  ordered_json out = ordered_json::object();
  if (node.rows.size() == 1) {
    out = schema_of(node, node.rows.front());
  } else if (node.rows.size() > 1) {
    // The rule depends on the section's type: any of them may hold.
    for (const Key& key : node.rows) out["anyOf"].push_back(schema_of(node, key));
    return out;
  } else {
    out["type"] = "object";
  }
  if (node.children.empty() || node.exact("[]") != nullptr) return out;
  const Key* own = node.row();
  bool free = own != nullptr && (own->kinds & open) != 0;
  for (const auto& child : node.children) {
    if (child->name == "*") {
      out["additionalProperties"] = schema_of(*child);
      free = true;
      continue;
    }
    const ordered_json below = schema_of(*child);
    out["properties"][child->name] = below;
    for (const Key& key : child->rows)
      for (const std::string& name : key.names) out["properties"][name] = below;
  }
  // The params of torch's own optimizers and schedules aren't declared.
  if (node.name == "params") free = true;
  if (!free) out["additionalProperties"] = false;
  return out;
}

}  // namespace

ordered_json schema() {
  ordered_json out;
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["title"] = "deepspeed-mpi configuration";
  out["description"] = "DeepSpeed's keys, and the sections model, data and training.";
  out.update(schema_of(table()));
  return out;
}

namespace {

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string code(const std::string& text) {
  return text.empty() ? text : fmt::format("`{}`", cell(text));
}

void write_row(const Node& node, const Key& key, const std::string& name, std::string& out) {
  out +=
      fmt::format("| {} | {} | {} | {} | {} | {} |\n", code(name), cell(describe_kinds(key)), code(default_words(key)),
                  cell(allowed_words(key)), cell(status_words(node, key)), cell(key.doc + extra_words(key)));
}

void write_rows(const Node& section_node, const std::string& prefix, std::string& out) {
  for (const auto& child : section_node.children) {
    const std::string name = prefix + (child->name == "*" ? "NAME" : child->name);
    for (const Key& key : child->rows) {
      if ((key.kinds & section) != 0 && (key.kinds & null) == 0 && key.gate.empty() && key.names.empty()) continue;
      write_row(*child, key, name, out);
    }
    if (!child->children.empty()) {
      const bool listed = child->exact("[]") != nullptr;
      write_rows(listed ? *child->exact("[]") : *child, name + (listed ? "[]." : "."), out);
    }
  }
}

const char* const table_head = "\n| key | type | default | allowed | status | meaning |\n|---|---|---|---|---|---|\n";

}  // namespace

std::string reference_page() {
  std::string out =
      "# Configuration reference\n"
      "\n"
      "<!-- Generated from the key table (src/config/key_table.cpp); rewrite with `DS_UPDATE_DOCS=1 config_test`. -->\n"
      "\n"
      "`ds_train` takes a configuration as a path, as JSON or HJSON text, as base64 of it, or as `-` for standard "
      "input. "
      "It is read as JSON; where that fails as HJSON (comments, unquoted keys and strings, optional commas). An empty "
      "file "
      "is an empty object. Existing DeepSpeed configurations work unchanged; `model`, `data` and `training` are this "
      "program's own sections.\n"
      "\n"
      "- Unknown keys and duplicate keys are errors everywhere, with the full path and the nearest known name.\n"
      "- Integers may be written as `5e8` or `8.0`; numbers don't stand in quotes. In the sections that DeepSpeed "
      "validates "
      "with a schema, `\"2\"`, `1` or `\"true\"` are converted as there, with a warning.\n"
      "- `\"auto\"` is resolved where another key, the model or the run gives the value (it says so below); in "
      "sections that "
      "DeepSpeed validates with a schema it otherwise means the default; anywhere else it is refused.\n"
      "- `--set path=value` overrides a key before anything is checked; the value is JSON, or else a string.\n"
      "- `train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks`. What "
      "is "
      "left out is worked out; a lone batch size means one accumulation step.\n"
      "\n"
      "Status: ";
  out += explain_status;
  out += "\n\n## Top level\n";
  out += table_head;
  for (const auto& child : table().children) {
    if (child->is_section()) continue;

    for (const Key& key : child->rows) write_row(*child, key, child->name, out);
  }
  for (const auto& child : table().children) {
    if (!child->is_section()) continue;
    const Key* own = child->row();
    out += fmt::format("\n## {}\n", child->name);
    if (own != nullptr) {
      out += "\n" + own->doc + extra_words(*own);
      if (!own->gate.empty()) out += fmt::format(" `{}` turns it on.", own->gate);
      if ((own->kinds & open) != 0) out += " Takes further keys that aren't listed here.";
      if ((own->kinds & null) != 0) out += " Absent (null) by default.";
      out += "\n";
    }
    out += table_head;
    write_rows(*child, "", out);
  }
  return out;
}

}  // namespace deepspeed::config
