// SPDX-License-Identifier: Apache-2.0
#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace deepspeed::config {

using nlohmann::json;

// ---- findings ----

std::string Findings::at(const std::string& path) const {
  if (path.empty()) return name_ + ": ";
  if (overridden.count(path) != 0) return fmt::format("--set: {}: ", path);
  // A key that isn't written stands where its section does.
  for (std::string look = path;;) {
    const auto line = lines.find(look);
    if (line != lines.end()) return fmt::format("{}:{}: {}: ", name_, line->second, path);
    const std::size_t dot = look.rfind('.');
    if (dot == std::string::npos) return fmt::format("{}: {}: ", name_, path);
    look.resize(dot);
  }
}

void Findings::throw_if_any() const {
  if (errors_.empty()) return;
  if (errors_.size() == 1) throw base::ConfigError(errors_.front());
  std::string text = fmt::format("{}: {} errors", name_, errors_.size());
  for (const std::string& error : errors_) text += "\n  " + error;
  throw base::ConfigError(text);
}

// ---- values ----

const json* at_path(const json& root, std::string_view path) {
  const json* value = &root;
  for (const std::string& part : split(path, '.')) {
    if (!value->is_object()) return nullptr;
    const auto found = value->find(part);
    if (found == value->end()) return nullptr;
    value = &*found;
  }
  return value;
}

std::string show(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

bool parse_duration(const std::string& text, double& seconds) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 3) return false;
  seconds = 0;
  for (const std::string& part : parts) {
    if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != std::string::npos) return false;
    seconds = seconds * 60 + std::stod(part);
  }
  return seconds > 0;
}

namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// ---- names ----

class Canonicaliser {
 public:
  Canonicaliser(const Document& document, Findings& findings) : document_(document), findings_(findings) {}

  Canonical run() {
    Canonical out;
    if (!document_.value.is_object()) {
      findings_.error("", fmt::format("the configuration must be an object of keys, not {}", show(document_.value)));
      findings_.throw_if_any();
    }
    out.value = section(table(), document_.value, "", "", out.given);
    return out;
  }

 private:
  void remember(const std::string& path, const std::string& written, std::set<std::string>& given) {
    given.insert(path);
    const auto line = document_.lines.find(written);
    if (line != document_.lines.end()) findings_.lines.emplace(path, line->second);
  }

  json section(const Node& node, const json& value, const std::string& path, const std::string& written,
               std::set<std::string>& given) {
    json out = json::object();
    std::vector<std::pair<const Key*, const json*>> deprecated;
    std::map<std::string, std::string> written_as;
    for (const auto& [name, entry] : value.items()) {
      const Node* child = node.child(name);
      const std::string canonical = child == nullptr || child->name == "*" ? name : child->name;
      const std::string full = join(path, canonical);
      const std::string written_full = join(written, name);
      remember(full, written_full, given);
      if (child != nullptr && child->row() != nullptr && !child->row()->replaced_by.empty()) {
        deprecated.emplace_back(child->row(), &entry);
        continue;
      }
      const auto [before, fresh] = written_as.emplace(canonical, name);
      if (!fresh) {
        findings_.error(full, fmt::format("given twice, as {} and as {}; keep one", before->second, name));
        continue;
      }
      json rewritten = entry;
      if (full == "zero_optimization" && entry.is_boolean()) {
        // The format of the first DeepSpeed versions.
        rewritten = entry.get<bool>() ? json{{"stage", 1}} : json::object();
        findings_.warning(full,
                          "DeepSpeedConfig: this format of ZeRO optimization setup is deprecated. Please use the "
                          "following format: {\"stage\": 0, 1, 2 or 3}");
      } else if (child != nullptr && entry.is_object() && child->is_section()) {
        rewritten = section(*child, entry, full, written_full, given);
      }
      out[canonical] = std::move(rewritten);
    }
    for (const auto& [key, entry] : deprecated) replace(*key, *entry, path, out, given);
    return out;
  }

  void replace(const Key& key, const json& value, const std::string& path, json& out, std::set<std::string>& given) {
    const std::string old = key.path.substr(key.path.rfind('.') + 1);
    const std::string full = join(path, old);
    const bool to_nothing = key.replaced_by == "-";
    findings_.warning(full, fmt::format("Config parameter {} is deprecated{}", old,
                                        to_nothing ? std::string() : fmt::format(" use {} instead", key.replaced_by)));
    if (to_nothing || value.is_null()) return;
    json* target = &out;
    std::string target_path = path;
    const std::vector<std::string> parts = split(key.replaced_by, '.');
    for (std::size_t i = 0; i < parts.size(); ++i) {
      target_path = join(target_path, parts[i]);
      if (i + 1 == parts.size()) break;
      target = &(*target)[parts[i]];
      if (!target->is_object() && !target->is_null()) return;  // its own error comes with validation
    }
    if (target->is_object() && target->contains(parts.back())) {
      findings_.error(full,
                      fmt::format("Cannot provide deprecated parameter '{}' and replacing parameter '{}' together", old,
                                  key.replaced_by));
      return;
    }
    if (key.replacement.is_discarded()) {
      (*target)[parts.back()] = value;
    } else if (value.is_boolean()) {
      if (!value.get<bool>()) return;
      (*target)[parts.back()] = key.replacement;
    } else {
      findings_.error(full, fmt::format("wants true or false, got {}", show(value)));
      return;
    }
    given.insert(target_path);
    const auto line = findings_.lines.find(full);
    if (line != findings_.lines.end()) findings_.lines.emplace(target_path, line->second);
  }

  const Document& document_;
  Findings& findings_;
};

}  // namespace

Canonical canonicalise(const Document& document, Findings& findings) {
  return Canonicaliser(document, findings).run();
}

void apply_override(const std::string& text, Canonical& user, Findings& findings) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw base::ConfigError(fmt::format("--set {}: wants path=value, for example zero_optimization.stage=2", text));
  const std::string path = text.substr(0, equals);
  json value;
  const std::string raw = text.substr(equals + 1);
  if (!read_json_value(raw, "--set " + path, value)) value = raw;

  const Node* node = &table();
  json* target = &user.value;
  std::string canonical;
  const std::vector<std::string> parts = split(path, '.');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::string name = parts[i];
    if (node != nullptr) {
      const Node* child = node->child(name);
      if (child != nullptr && child->row() != nullptr && !child->row()->replaced_by.empty())
        throw base::ConfigError(fmt::format("--set {}: Config parameter {} is deprecated use {} instead", path, name,
                                            child->row()->replaced_by));
      if (child != nullptr && child->name != "*") name = child->name;
      const bool is_open = node->row() != nullptr && (node->row()->kinds & open) != 0;
      if (child == nullptr && !is_open)
        throw base::ConfigError(fmt::format("--set {}: unknown key{}", path, hint(*node, name, "")));
      node = child;
    }
    canonical = join(canonical, name);
    user.given.insert(canonical);
    if (target->is_null()) *target = json::object();
    if (!target->is_object())
      throw base::ConfigError(fmt::format("--set {}: {} is {}, not a section", path,
                                          canonical.substr(0, canonical.rfind('.')), show(*target)));
    target = &(*target)[name];
  }
  *target = std::move(value);
  findings.overridden.insert(canonical);
}

// ---- the table's rules ----

namespace {

struct Range {
  double low = -HUGE_VAL, high = HUGE_VAL;
  bool low_open = false, high_open = false;
};

Range parse_range(const std::string& text) {
  Range range;
  if (text.empty()) return range;
  if (text[0] == '>') {
    range.low_open = text[1] != '=';
    range.low = std::stod(text.substr(range.low_open ? 1 : 2));
    return range;
  }
  // a..b with < where the end is excluded: 0..1, 0..<1, 0<..<1
  const std::size_t dots = text.find("..");
  std::string low = text.substr(0, dots), high = text.substr(dots + 2);
  if (low.back() == '<') {
    range.low_open = true;
    low.pop_back();
  }
  if (high.front() == '<') {
    range.high_open = true;
    high.erase(0, 1);
  }
  range.low = std::stod(low);
  range.high = std::stod(high);
  return range;
}

class Validator {
 public:
  Validator(Findings& findings, std::vector<std::string>& autos) : findings_(findings), autos_(autos) {}

  json section(const Node& node, const json& user, const std::string& path, bool typed) {
    const std::string type = discriminator(node, user);
    const Key* own = node.row();
    const bool is_open = own != nullptr && (own->kinds & open) != 0;
    json out = json::object();
    for (const auto& [name, entry] : user.items()) {
      const Node* child = node.child(name);
      if (child != nullptr && (child->rows.empty() || child->row(type) != nullptr)) continue;
      if (is_open || open_for(node, type)) {
        out[name] = entry;
      } else if (child != nullptr) {
        unknown_for_type(*child, path, name, type);
      } else if (name == "max_grad_norm" && path == "optimizer.params") {
        findings_.error(
            path + "." + name,
            "'max_grad_norm' is not supported as an optimizer parameter, please switch to using the deepspeed "
            "parameter 'gradient_clipping' see: "
            "https://www.deepspeed.ai/docs/config-json/#gradient-clipping for more details");
      } else {
        findings_.error(join(path, name), "unknown key (Extra inputs are not permitted)" + hint(node, name, type));
      }
    }
    for (const auto& child : node.children) {
      if (child->name == "*") {
        for (const auto& [name, entry] : user.items())
          if (node.exact(name) == nullptr) out[name] = entry_of(*child, type, entry, join(path, name), typed);
        continue;
      }
      const std::string full = join(path, child->name);
      const auto given = user.find(child->name);
      if (given != user.end()) {
        if (child->rows.empty() || child->row(type) != nullptr)
          out[child->name] = entry_of(*child, type, *given, full, typed);
      } else {
        absent(*child, type, full, typed, out);
      }
    }
    return out;
  }

 private:
  /// The `type` beside the section's keys (optimizer.type for optimizer.params), as the table spells it.
  std::string discriminator(const Node& node, const json& user) {
    if (node.name == "params") return type_;
    std::string type;
    const Node* declared = node.exact("type");
    const auto given = user.find("type");
    if (declared != nullptr && declared->row() != nullptr && given != user.end() && given->is_string())
      type = match(*declared->row(), given->get<std::string>()).value_or("");
    type_ = type;
    return "";
  }

  /// The sections of torch's own optimizers and schedules aren't declared: their keys are theirs.
  static bool open_for(const Node& node, const std::string& type) {
    if (type.empty() || node.name != "params") return false;
    for (const auto& child : node.children)
      for (const Key& key : child->rows)
        if (std::find(key.only.begin(), key.only.end(), type) != key.only.end()) return false;
    return true;
  }

  void unknown_for_type(const Node& child, const std::string& path, const std::string& name, const std::string& type) {
    std::string known;
    for (const Key& key : child.rows)
      for (const std::string& one : key.only) known += (known.empty() ? "" : ", ") + one;
    if (type.empty())
      findings_.warning(join(path, name), "has no effect without a type");
    else
      findings_.error(
          join(path, name),
          fmt::format("{} doesn't know this key (Extra inputs are not permitted); it is for {}", type, known));
  }

  void absent(const Node& child, const std::string& type, const std::string& full, bool typed, json& out) {
    const Key* key = child.row(type);
    if (key == nullptr && !child.rows.empty()) return;  // another type's key
    if (key != nullptr && !key->replaced_by.empty()) return;
    if (key != nullptr && key->required) {
      findings_.error(full, fmt::format("Field required: {}", key->doc));
      return;
    }
    if (child.name == "[]") return;
    if (child.rows.empty() || ((key->kinds & section_kind) != 0 && !key->fallback.is_null()))
      out[child.name] = section(child, json::object(), full, typed || (key != nullptr && key->typed));
    else if (!key->fallback.is_discarded())
      out[child.name] = normal(*key, key->fallback);
  }

  json entry_of(const Node& child, const std::string& type, const json& value, const std::string& full, bool typed) {
    const Key* key = child.row(type);
    if (child.is_section() && (key == nullptr || (key->kinds & section_kind) != 0)) {
      if (value.is_object()) return section(child, value, full, typed || (key != nullptr && key->typed));
      if (value.is_null() && key != nullptr && (key->kinds & null) != 0) return nullptr;
      if (key == nullptr || (key->kinds & ~(section_kind | open | null)) == 0) {
        const std::string usual = fmt::format("must be a mapping (an object of keys), not {}", show(value));
        if (key == nullptr)
          findings_.error(full, usual);
        else
          refuse(*key, value, full, usual);
        return nullptr;
      }
    }
    json out = leaf(*key, value, full, typed);
    // The entries of a list of sections.
    const Node* item = child.exact("[]");
    if (item != nullptr && out.is_array())
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::string place = fmt::format("{}[{}]", full, i);
        if (out[i].is_object())
          out[i] = section(*item, out[i], place, typed);
        else
          findings_.error(place, fmt::format("must be a mapping (an object of keys), not {}", show(out[i])));
      }
    return out;
  }

  /// Defaults are numbers of whatever JSON type the table writes; kept as validated values are.
  static json normal(const Key& key, const json& value) {
    if (value.is_number()) {
      if ((key.kinds & number) != 0) return value.get<double>();
      if (value.is_number_float()) return static_cast<std::int64_t>(value.get<double>());
      return value.get<std::int64_t>();
    }
    if (value.is_array() && (key.kinds & numbers) != 0) {
      json out = json::array();
      for (const json& entry : value) out.push_back(entry.get<double>());
      return out;
    }
    return value;
  }

  static std::optional<std::string> match(const Key& key, const std::string& value) {
    for (const std::string& choice : key.choices) {
      if (choice == value) return choice;
      if (key.any_case && choice.size() == value.size() &&
          std::equal(choice.begin(), choice.end(), value.begin(),
                     [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); }))
        return choice;
    }
    return std::nullopt;
  }

  void refuse(const Key& key, const json& value, const std::string& full, const std::string& usual) {
    if (key.complaint.empty()) {
      findings_.error(full, usual);
      return;
    }
    std::string text = key.complaint;
    std::string word = value.is_string() ? value.get<std::string>() : show(value);
    std::size_t hole = text.find("{}");
    if (hole != std::string::npos) {
      text.replace(hole, 2, word);
    } else if (hole = text.find("{^}"); hole != std::string::npos) {
      std::transform(word.begin(), word.end(), word.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      text.replace(hole, 3, word);
    }
    if (!key.choices.empty()) text += did_you_mean(key, value);
    findings_.error(full, text);
  }

  static std::string did_you_mean(const Key& key, const json& value) {
    if (!value.is_string()) return "";
    const std::vector<std::string> near = nearest(value.get<std::string>(), key.choices);
    return near.empty() ? "" : fmt::format("; did you mean {}?", near.front());
  }

  static std::string choice_list(const Key& key) {
    std::string text;
    const bool quoted = (key.kinds & string) != 0;
    for (std::size_t i = 0; i < key.choices.size(); ++i) {
      if (i != 0) text += i + 1 == key.choices.size() ? " or " : ", ";
      text += quoted ? "'" + key.choices[i] + "'" : key.choices[i];
    }
    return text;
  }

  bool in_range(const Key& key, double value, std::string& problem) const {
    const Range range = parse_range(key.limits);
    if (range.low_open ? value <= range.low : value < range.low) {
      problem = fmt::format("Input should be greater than {}{:g}", range.low_open ? "" : "or equal to ", range.low);
      return false;
    }
    if (range.high_open ? value >= range.high : value > range.high) {
      problem = fmt::format("Input should be less than {}{:g}", range.high_open ? "" : "or equal to ", range.high);
      return false;
    }
    return true;
  }

  /// DeepSpeed's typed sections turn "true", 1, "2" and true into what is wanted; the config should say it plainly.
  json converted(const Key& key, const json& value, const std::string& full) {
    json out;
    if ((key.kinds & boolean) != 0) {
      if (value.is_number()) {
        const double number_value = value.get<double>();
        if (number_value == 0 || number_value == 1) out = number_value == 1;
      } else if (value.is_string()) {
        std::string word = value.get<std::string>();
        std::transform(word.begin(), word.end(), word.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        static const std::set<std::string> yes = {"true", "yes", "on", "y", "t", "1"};
        static const std::set<std::string> no = {"false", "no", "off", "n", "f", "0"};
        if (yes.count(word) != 0) out = true;
        if (no.count(word) != 0) out = false;
      }
    }
    const bool fp16_number = full.rfind("fp16.", 0) == 0;  // there DeepSpeed refuses true and false
    if (out.is_null() && (key.kinds & integer) != 0) {
      if (value.is_boolean() && !fp16_number) {
        out = value.get<bool>() ? 1 : 0;
      } else if (value.is_string()) {
        const std::string& digits = value.get_ref<const std::string&>();
        std::int64_t parsed = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed);
        if (error == std::errc() && end == digits.data() + digits.size()) out = parsed;
      }
    }
    if (out.is_null()) return value;
    findings_.warning(full, fmt::format("{} is taken as {}; write it so", show(value), show(out)));
    return out;
  }

  json leaf(const Key& key, const json& written, const std::string& full, bool typed) {
    const bool had_auto = written.is_string() && written.get_ref<const std::string&>() == "auto";
    if (had_auto && !match(key, "auto")) {
      if ((key.kinds & automatic) != 0 || (typed && !key.fallback.is_discarded())) {
        autos_.push_back(full);
        return key.fallback.is_discarded() ? json() : normal(key, key.fallback);
      }
      if ((key.kinds & string) == 0 || !key.choices.empty()) {
        findings_.error(full,
                        fmt::format("\"auto\" can't be resolved here: nothing in the configuration gives this value; "
                                    "write {}{}",
                                    describe_kinds(key),
                                    key.fallback.is_discarded() || key.fallback.is_null()
                                        ? std::string()
                                        : fmt::format(", or leave it out for {}", show(key.fallback))));
        return key.fallback.is_discarded() ? json() : key.fallback;
      }
    }
    const json value = typed && !accepts_as_is(key, written) ? converted(key, written, full) : written;
    const json give_up = key.fallback.is_discarded() ? json() : normal(key, key.fallback);

    if (value.is_null()) {
      if ((key.kinds & null) != 0) return nullptr;
      refuse(key, value, full,
             fmt::format("wants {}, got null; leave the key out for its default", describe_kinds(key)));
      return give_up;
    }
    if (value.is_boolean() && (key.kinds & boolean) != 0) return value;
    if (value.is_number() && (key.kinds & (integer | number)) != 0) return scalar_number(key, value, full, give_up);
    if (value.is_string() && (key.kinds & string) != 0) {
      if (key.choices.empty()) return value;
      if (const auto choice = match(key, value.get<std::string>())) return *choice;
      refuse(key, value, full,
             fmt::format("Input should be {}, got {}{}", choice_list(key), show(value), did_you_mean(key, value)));
      return give_up;
    }
    if (value.is_array()) return array(key, value, full, give_up);
    if (value.is_object() && (key.kinds & open) != 0) return value;
    if (value.is_boolean() && key.choices.empty())
      findings_.error(full, wrong_type(key, value));  // it's the type that is wrong, whatever the limits
    else
      refuse(key, value, full, wrong_type(key, value));
    return give_up;
  }

  static bool accepts_as_is(const Key& key, const json& value) {
    return (value.is_boolean() && (key.kinds & boolean) != 0) ||
           (value.is_number() && (key.kinds & (integer | number)) != 0) ||
           (value.is_string() && (key.kinds & string) != 0);
  }

  static std::string wrong_type(const Key& key, const json& value) {
    const unsigned main = key.kinds & ~(null | automatic | open);
    if (main == integer && !key.choices.empty())
      return fmt::format("Input should be {}, got {}", choice_list(key), show(value));
    std::string upstream;
    if (main == integer && value.is_string())
      upstream = "Input should be a valid integer, unable to parse string as an integer; ";
    if (main == boolean) upstream = "Input should be a valid boolean, unable to interpret input; ";
    if (main == integer && value.is_boolean())
      upstream = key.path.substr(0, 5) == "fp16." ? key.path + " must be an integer, not bool; " : "";
    if (main == number && value.is_boolean())
      upstream = key.path.substr(0, 5) == "fp16." ? key.path + " must be a number, not bool; " : "";
    std::string advice;
    if (value.is_string() && (main & (integer | number)) != 0 && !value.get_ref<const std::string&>().empty()) {
      json number_value;
      if (read_json_value(value.get_ref<const std::string&>(), key.path, number_value) && number_value.is_number())
        advice = "; numbers stand without quotes";
    }
    return fmt::format("{}wants {}, got {}{}", upstream, describe_kinds(key), show(value), advice);
  }

  json scalar_number(const Key& key, const json& value, const std::string& full, const json& give_up) {
    json out = value;
    if ((key.kinds & number) != 0) {
      out = value.get<double>();
      if (!std::isfinite(out.get<double>())) {
        refuse(key, value, full, "must be a finite number (not inf/-inf/nan)");
        return give_up;
      }
    } else if (value.is_number_float()) {
      const double real = value.get<double>();
      if (std::floor(real) != real) {
        refuse(key, value, full,
               fmt::format("Input should be a valid integer, got a number with a fractional part: {}", show(value)));
        return give_up;
      }
      if (std::abs(real) >= 9223372036854775808.0) {
        refuse(key, value, full, fmt::format("{} doesn't fit in 64 bits", show(value)));
        return give_up;
      }
      out = static_cast<std::int64_t>(real);
    }
    if (!key.choices.empty() && (key.kinds & string) == 0) {
      if (match(key, out.dump())) return out;
      refuse(key, value, full, fmt::format("Input should be {}, got {}", choice_list(key), show(value)));
      return give_up;
    }
    std::string problem;
    if (!in_range(key, out.get<double>(), problem)) {
      refuse(key, value, full, fmt::format("{}, got {}", problem, show(value)));
      return give_up;
    }
    return out;
  }

  json array(const Key& key, const json& value, const std::string& full, const json& give_up) {
    if ((key.kinds & list) != 0) return value;
    const auto all = [&](auto test) { return std::all_of(value.begin(), value.end(), test); };
    if ((key.kinds & strings) != 0 && all([](const json& entry) { return entry.is_string(); })) return value;
    if ((key.kinds & (integers | numbers)) != 0 && all([](const json& entry) { return entry.is_number(); })) {
      Key entry_key = key;
      entry_key.kinds = (key.kinds & numbers) != 0 ? number : integer;
      json out = json::array();
      for (std::size_t i = 0; i < value.size(); ++i)
        out.push_back(scalar_number(entry_key, value[i], fmt::format("{}[{}]", full, i), 0));
      return out;
    }
    refuse(key, value, full, fmt::format("wants {}, got {}", describe_kinds(key), show(value)));
    return give_up;
  }

  // The enumerator `section` and the function of that name don't mix.
  static constexpr unsigned section_kind = Kind::section;

  Findings& findings_;
  std::vector<std::string>& autos_;
  std::string type_;
};

}  // namespace

json validate(const json& user, Findings& findings, std::vector<std::string>& autos) {
  return Validator(findings, autos).section(table(), user, "", false);
}

}  // namespace deepspeed::config
