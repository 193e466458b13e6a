// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::config {

/// What a key's value may be; several are joined with |.
enum Kind : unsigned {
  boolean = 1U << 0,
  integer = 1U << 1,  ///< 64 bits; 5e8 and 8.0 are integers too
  number = 1U << 2,   ///< finite; kept as a double
  string = 1U << 3,
  strings = 1U << 4,     ///< list of strings
  integers = 1U << 5,    ///< list of integers
  numbers = 1U << 6,     ///< list of numbers
  list = 1U << 7,        ///< list of anything
  open = 1U << 8,        ///< object whose entries aren't declared here (beside those that are)
  section = 1U << 9,     ///< object of declared keys
  null = 1U << 10,       ///< null is a value: not set
  automatic = 1U << 11,  ///< "auto" is resolved or dropped while reading, never kept
};

/// What this version does with a key. It is the first word of its row in the table.
enum class Status {
  works,
  parsed,       ///< checked and shown; takes effect only together with another key that has its own status, or never
  unsupported,  ///< refused by check_supported() unless it leaves its feature off
};

/// One row of the table: all that is known about one key.
struct Key {
  std::string path;  ///< dotted; "*" stands for any name, "[]" for the entries of a list
  unsigned kinds = 0;
  Status status = Status::works;
  nlohmann::json fallback;           ///< the default; discarded = there is none
  std::string doc;                   ///< one line
  std::string limits;                ///< ">0", ">=0", "0..1", "0<..<1" for numbers and the entries of number lists
  std::vector<std::string> choices;  ///< allowed strings or integers, where not any
  std::vector<std::string> later;    ///< valid values that this version doesn't support
  std::vector<std::string> off;      ///< values that leave an unsupported key's feature off, beside the default
  std::vector<std::string> names;    ///< other names that mean the same
  std::vector<std::string> only;     ///< the sibling `type`s of its section that know it; empty = all
  std::string replaced_by;           ///< deprecated: what to write instead (path)
  nlohmann::json replacement;        ///< deprecated: what true stands for there; discarded = the value itself
  std::string gate;  ///< section: the key in it that turns it on; "" = its presence does if it may be null
  std::string
      complaint;  ///< what to say when the value isn't allowed, {} = the value, {^} in capitals; "" = the usual words
  bool required = false;
  bool any_case = false;  ///< strings are compared without case and kept as declared
  bool typed = false;     ///< section: DeepSpeed converts "true", 1, "2", true to the type wanted; so do we

  Key&& range(const char* text) &&;
  Key&& one_of(std::vector<std::string> values) &&;
  /// More allowed values, which this version refuses by name in check_supported().
  Key&& not_yet(std::vector<std::string> values) &&;
  /// Values of another kind than string that this version refuses in check_supported().
  Key&& refusing(std::vector<std::string> values) &&;
  Key&& ignoring_case() &&;
  Key&& also(std::vector<std::string> other_names) &&;
  Key&& also_off(std::vector<std::string> values) &&;
  Key&& for_types(std::vector<std::string> types) &&;
  Key&& needed() &&;
  Key&& switched_by(const char* key) &&;
  Key&& as_typed() &&;
  Key&& complaining(const char* text) &&;
  Key&& replaced(const char* path, const char* value_of_true = nullptr) &&;
};

/// A place in the tree that the table's paths span. Children stand in the table's order.
struct Node {
  std::string name;
  std::string path;
  std::vector<Key> rows;  ///< more than one where the default depends on the section's `type`; empty = a plain section
  std::vector<std::unique_ptr<Node>> children;
  Node* parent = nullptr;

  const Node* child(std::string_view name) const;  ///< by name or other name; then "*"; nullptr if there is none
  const Node* exact(std::string_view name) const;
  bool is_section() const { return !children.empty(); }
  /// The row for a section whose `type` is this; nullptr if it isn't declared for that type.
  const Key* row(std::string_view type) const;
  const Key* row() const { return rows.empty() ? nullptr : &rows.front(); }
};

/// The table, as a tree; the root is the whole configuration.
const Node& table();

/// The declared place for a dotted path (other names allowed), or nullptr. Below an open section it is that section.
const Node* find_node(std::string_view path);

/// Whether an unsupported key's value leaves its feature off.
bool is_off(const Key& key, const nlohmann::json& value);

/// Calls visit(node) for each declared place in the table's order, sections before their keys.
template <class Visit>
void for_each(const Node& node, const Visit& visit) {
  for (const auto& child : node.children) {
    visit(*child);
    for_each(*child, visit);
  }
}

/// "integer or null": the kinds in words.
std::string describe_kinds(const Key& key);

/// Names at most a few typing mistakes away from `name`, nearest first; also those made of its words.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

/// "; did you mean X?" or "; it belongs in Y" for a key that `section` doesn't know; "" if nothing is near.
std::string hint(const Node& section, std::string_view name, std::string_view type);

std::vector<std::string> split(std::string_view path, char separator);

}  // namespace deepspeed::config
