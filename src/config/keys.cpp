// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "config/key_table.h"

namespace deepspeed::config {

using nlohmann::json;

// ---- rows ----

Key&& Key::range(const char* text) && {
  limits = text;
  return std::move(*this);
}
Key&& Key::one_of(std::vector<std::string> values) && {
  choices.insert(choices.end(), values.begin(), values.end());
  return std::move(*this);
}
Key&& Key::not_yet(std::vector<std::string> values) && {
  choices.insert(choices.end(), values.begin(), values.end());
  later = std::move(values);
  return std::move(*this);
}
Key&& Key::refusing(std::vector<std::string> values) && {
  later = std::move(values);
  return std::move(*this);
}
Key&& Key::ignoring_case() && {
  any_case = true;
  return std::move(*this);
}
Key&& Key::also(std::vector<std::string> other_names) && {
  names = std::move(other_names);
  return std::move(*this);
}
Key&& Key::also_off(std::vector<std::string> values) && {
  off = std::move(values);
  return std::move(*this);
}
Key&& Key::for_types(std::vector<std::string> types) && {
  only = std::move(types);
  return std::move(*this);
}
Key&& Key::needed() && {
  required = true;
  return std::move(*this);
}
Key&& Key::switched_by(const char* key) && {
  gate = key;
  return std::move(*this);
}
Key&& Key::as_typed() && {
  typed = true;
  return std::move(*this);
}
Key&& Key::complaining(const char* text) && {
  complaint = text;
  return std::move(*this);
}
Key&& Key::replaced(const char* path_of_new, const char* value_of_true) && {
  replaced_by = path_of_new;
  replacement = value_of_true == nullptr ? json(json::value_t::discarded) : json::parse(value_of_true);
  return std::move(*this);
}

std::vector<std::string> split(std::string_view path, char separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (;;) {
    const std::size_t end = path.find(separator, start);
    parts.emplace_back(path.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

// ---- the tree ----

const Node* Node::exact(std::string_view wanted) const {
  for (const auto& child : children) {
    if (child->name == wanted) return child.get();
    for (const Key& key : child->rows)
      if (std::find(key.names.begin(), key.names.end(), wanted) != key.names.end()) return child.get();
  }
  return nullptr;
}

const Node* Node::child(std::string_view wanted) const {
  if (const Node* found = exact(wanted)) return found;
  for (const auto& child : children)
    if (child->name == "*") return child.get();
  return nullptr;
}

const Key* Node::row(std::string_view type) const {
  const Key* any = nullptr;
  for (const Key& key : rows) {
    if (key.only.empty()) any = &key;
    if (std::find(key.only.begin(), key.only.end(), type) != key.only.end()) return &key;
  }
  return any;
}

namespace {

std::unique_ptr<Node> build_tree() {
  auto root = std::make_unique<Node>();
  for (Key& key : key_rows()) {
    Node* node = root.get();
    for (const std::string& part : split(key.path, '.')) {
      auto found = std::find_if(node->children.begin(), node->children.end(),
                                [&](const auto& child) { return child->name == part; });
      if (found == node->children.end()) {
        auto fresh = std::make_unique<Node>();
        fresh->name = part;
        fresh->path = node->path.empty() ? part : node->path + "." + part;
        fresh->parent = node;
        node->children.push_back(std::move(fresh));
        found = std::prev(node->children.end());
      }
      node = found->get();
    }
    node->rows.push_back(std::move(key));
  }
  return root;
}

}  // namespace

const Node& table() {
  static const std::unique_ptr<Node> root = build_tree();
  return *root;
}

const Node* find_node(std::string_view path) {
  const Node* node = &table();
  for (const std::string& part : split(path, '.')) {
    const Node* child = node->child(part);
    if (child == nullptr) {
      const Key* key = node->row();
      return key != nullptr && (key->kinds & open) != 0 ? node : nullptr;
    }
    node = child;
  }
  return node;
}

bool is_off(const Key& key, const json& value) {
  return value == key.fallback || std::find(key.off.begin(), key.off.end(), value.dump()) != key.off.end();
}

// ---- words ----

std::string describe_kinds(const Key& key) {
  static const std::pair<Kind, const char*> words[] = {{boolean, "boolean"},
                                                       {integer, "integer"},
                                                       {number, "number"},
                                                       {string, "string"},
                                                       {strings, "list of strings"},
                                                       {integers, "list of integers"},
                                                       {numbers, "list of numbers"},
                                                       {list, "list"},
                                                       {open, "object"},
                                                       {section, "object"},
                                                       {null, "null"},
                                                       {automatic, "\"auto\""}};
  std::vector<std::string> parts;
  for (const auto& [kind, word] : words)
    if ((key.kinds & kind) != 0 && (parts.empty() || parts.back() != word)) parts.emplace_back(word);
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 < parts.size() ? ", " : " or ") + parts[i];
  return text;
}

namespace {

/// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return out;
}

/// All words of `few` stand in `many` ("micro_batch_per_gpu" in "train_micro_batch_size_per_gpu").
bool words_within(const std::string& few, const std::string& many) {
  const std::vector<std::string> wanted = split(few, '_'), given = split(many, '_');
  if (wanted.size() < 2) return false;
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& word) {
    return std::find(given.begin(), given.end(), word) != given.end();
  });
}

}  // namespace

std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::multimap<std::size_t, std::string> found;
  const std::string wanted = lower(name.substr(0, 128));
  for (const std::string& candidate : candidates) {
    const std::string known = lower(candidate);
    const std::size_t mistakes = distance(wanted, known);
    const std::size_t allowed = std::max<std::size_t>(1, std::max(wanted.size(), known.size()) / 4);
    if (mistakes <= allowed)
      found.emplace(mistakes, candidate);
    else if (words_within(wanted, known) || words_within(known, wanted))
      found.emplace(100 + mistakes, candidate);
  }
  std::vector<std::string> names;
  for (const auto& [rank, candidate] : found) names.push_back(candidate);
  return names;
}

std::string hint(const Node& section, std::string_view name, std::string_view type) {
  std::vector<std::string> siblings;
  for (const auto& child : section.children)
    if (child->name != "*" && child->name != "[]" && (child->rows.empty() || child->row(type) != nullptr))
      siblings.push_back(child->name);
  const std::vector<std::string> near = nearest(name, siblings);
  const std::string prefix = section.path.empty() ? "" : section.path + ".";
  if (!near.empty()) return fmt::format("; did you mean {}{}?", prefix, near.front());

  // The same name in other sections: said where it belongs, the shortest path first.
  std::vector<std::string> elsewhere;
  for_each(table(), [&](const Node& node) {
    if (node.name == name && node.parent != &section) elsewhere.push_back(node.path);
  });
  std::stable_sort(elsewhere.begin(), elsewhere.end(), [](const std::string& a, const std::string& b) {
    return std::count(a.begin(), a.end(), '.') < std::count(b.begin(), b.end(), '.');
  });
  if (elsewhere.empty()) return "";
  const Node* home = find_node(elsewhere.front());
  if (home->parent == &table()) return fmt::format("; {} belongs at the top level of the configuration", name);
  std::string text = "; there is " + elsewhere.front();
  if (elsewhere.size() == 2) text += " and " + elsewhere.back();
  return text;
}

}  // namespace deepspeed::config
