// SPDX-License-Identifier: Apache-2.0
#include "config/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "config/builder.h"

namespace deepspeed::config {

using base::ConfigError;
using nlohmann::json;

std::string place(std::string_view text, std::size_t offset, const std::string& name) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n');
  const std::size_t column = before.size() - (start == std::string_view::npos ? 0 : start + 1) + 1;
  return fmt::format("{}, line {}, column {}", name, line, column);
}

// ---- Builder ----

std::string Builder::path_of_entry() const {
  if (levels_.empty()) return "";
  const Level& level = levels_.back();
  if (level.value.is_array()) return fmt::format("{}[{}]", level.path, level.value.size());
  return level.path.empty() ? level.key : level.path + "." + level.key;
}

bool Builder::add(json value) {
  if (levels_.empty()) {
    document_.value = std::move(value);
    done_ = true;
  } else if (levels_.back().value.is_array()) {
    levels_.back().value.push_back(std::move(value));
  } else {
    levels_.back().value[levels_.back().key] = std::move(value);
  }
  return true;
}

bool Builder::open(json container) {
  if (levels_.size() >= max_depth)
    throw ConfigError(fmt::format("{}: nested deeper than {} levels", place(text_, offset_, name_), max_depth));
  std::string path = path_of_entry();
  levels_.push_back({std::move(container), "", std::move(path), {}});
  return true;
}

bool Builder::close() {
  Level level = std::move(levels_.back());
  levels_.pop_back();
  if (!level.duplicates.empty()) {
    std::string names, paths;
    for (const std::string& key : level.duplicates) {
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", key);
      paths += fmt::format("{}{}{}{}", paths.empty() ? "" : ", ", level.path, level.path.empty() ? "" : ".", key);
    }
    throw ConfigError(fmt::format("{}: Duplicate keys in DeepSpeed config: [{}]; keep one of each ({})",
                                  place(text_, offset_, name_), names, paths));
  }
  return add(std::move(level.value));
}

bool Builder::end_object() {
  return close();
}
bool Builder::end_array() {
  return close();
}

bool Builder::key(std::string& key) {
  Level& level = levels_.back();
  if (level.value.contains(key) &&
      std::find(level.duplicates.begin(), level.duplicates.end(), key) == level.duplicates.end())
    level.duplicates.push_back(key);
  level.key = key;
  document_.lines.emplace(path_of_entry(), line_at(std::min(offset_, text_.size())));
  return true;
}

std::size_t Builder::line_at(std::size_t offset) {
  if (offset > counted_) {
    line_ += static_cast<std::size_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                                 text_.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    counted_ = offset;
  }
  return line_;
}

bool Builder::number_unsigned(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(INT64_MAX))
    throw ConfigError(fmt::format("{}: {}: the integer {} doesn't fit in 64 bits", place(text_, offset_, name_),
                                  path_of_entry(), value));
  return add(static_cast<std::int64_t>(value));
}

bool Builder::number_float(double value, const std::string& token) {
  if (token.find_first_of(".eE") == std::string::npos)
    throw ConfigError(fmt::format("{}: {}: the integer {} doesn't fit in 64 bits", place(text_, offset_, name_),
                                  path_of_entry(), token.substr(0, 64)));
  return add(value);
}

bool Builder::parse_error(std::size_t position, const std::string&, const json::exception& error) {
  // The library's text is "[json.exception...] parse error at line 1, column 5: what"; only the last part is wanted.
  std::string problem = error.what();
  const std::size_t colon = problem.find(": ");
  if (colon != std::string::npos) problem.erase(0, colon + 2);
  const std::size_t bracket = problem.find("] ");
  if (problem.front() == '[' && bracket != std::string::npos) problem.erase(0, bracket + 2);
  throw SyntaxError{position == 0 ? 0 : position - 1, problem};
}

Document Builder::take() {
  if (!done_) throw SyntaxError{offset_, "unexpected end of input"};
  return std::move(document_);
}

// ---- reading ----

namespace {

/// An input iterator that tells how far the library has read.
class Counting {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Counting(const char* at, const char* begin, std::size_t* offset) : at_(at), begin_(begin), offset_(offset) {}
  reference operator*() const { return *at_; }
  Counting& operator++() {
    ++at_;
    *offset_ = static_cast<std::size_t>(at_ - begin_);
    return *this;
  }
  Counting operator++(int) {
    Counting old = *this;
    ++*this;
    return old;
  }
  bool operator==(const Counting& other) const { return at_ == other.at_; }
  bool operator!=(const Counting& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char* begin_;
  std::size_t* offset_;
};

Document parse_json(std::string_view text, const std::string& name) {
  std::size_t offset = 0;
  Builder builder(text, name, offset);
  const char* begin = text.data();
  const char* end = begin + text.size();
  json::sax_parse(Counting(begin, begin, &offset), Counting(end, begin, &offset), &builder);
  return builder.take();
}

bool only_blanks(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string_view without_mark(std::string_view text) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  return text;
}

bool decode_base64(std::string_view text, std::string& out) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.empty() || text.size() % 4 == 1) return false;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    std::uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<std::uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<std::uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9')
      value = static_cast<std::uint32_t>(c - '0' + 52);
    else if (c == '+' || c == '-')
      value = 62;
    else if (c == '/' || c == '_')
      value = 63;
    else
      return false;
    bits = bits << 6 | value;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return true;
}

std::string read_stream(std::istream& in, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > max_text_bytes)
      throw ConfigError(fmt::format("{}: larger than {} bytes: not a configuration", name, max_text_bytes));
  }
  if (in.bad()) throw base::IoError(base::system_error(name, errno));
  return text;
}

}  // namespace

Document read_document(std::string_view text, const std::string& name) {
  if (text.size() > max_text_bytes)
    throw ConfigError(fmt::format("{}: larger than {} bytes: not a configuration", name, max_text_bytes));
  text = without_mark(text);
  if (only_blanks(text)) return {json::object(), {}};
  SyntaxError first;
  try {
    return parse_json(text, name);
  } catch (const SyntaxError& error) {
    first = error;
  }
  try {
    std::size_t offset = 0;
    Builder builder(text, name, offset);
    parse_hjson(text, offset, builder);
    return builder.take();
  } catch (const SyntaxError&) {
    throw ConfigError(fmt::format("{}: {}", place(text, first.offset, name), first.problem));
  }
}

bool read_json_value(std::string_view text, const std::string& name, json& out) {
  try {
    out = parse_json(text, name).value;
    return true;
  } catch (const SyntaxError&) {
    return false;
  }
}

std::string read_source(const std::string& source, std::string& name) {
  if (source == "-") {
    name = "standard input";
    return read_stream(std::cin, name);
  }
  std::error_code error;
  if (source.size() < 4096 && std::filesystem::exists(source, error)) {
    name = source;
    if (std::filesystem::is_directory(source, error))
      throw ConfigError(fmt::format("{}: is a folder; name the configuration file in it", source));
    errno = 0;
    std::ifstream file(source, std::ios::binary);
    if (!file) throw base::IoError(base::system_error(source, errno));
    return read_stream(file, name);
  }
  name = "configuration text";
  const std::size_t start = source.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (start != std::string::npos && (source[start] == '{' || source.find('\n') != std::string::npos)) return source;
  std::string decoded;
  if (decode_base64(source, decoded)) {
    // A mistyped file name may decode too; what counts is that an object comes out.
    try {
      if (read_document(decoded, name).value.is_object()) {
        name = "base64 configuration";
        return decoded;
      }
    } catch (const ConfigError&) {
      const std::size_t first = decoded.find_first_not_of(" \t\r\n");
      if (first != std::string::npos && decoded[first] == '{') {
        name = "base64 configuration";
        return decoded;
      }
    }
  }
  if (source.find(": ") != std::string::npos) return source;  // HJSON without braces
  throw ConfigError(
      fmt::format("Expected a string path to an existing deepspeed config, or a dictionary or a valid base64. "
                  "Received: {} (no such file, and neither JSON, HJSON nor base64 of it)",
                  source.size() > 200 ? source.substr(0, 200) + "..." : source));
}

}  // namespace deepspeed::config
