// SPDX-License-Identifier: Apache-2.0
// HJSON, read into the same Builder as JSON. The syntax is the one of https://hjson.github.io/syntax.html.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "config/builder.h"

namespace deepspeed::config {
namespace {

class Parser {
 public:
  Parser(std::string_view text, std::size_t& offset, Builder& builder) : text_(text), at_(offset), builder_(builder) {}

  void document() {
    skip_blanks();
    if (peek() == '{' || peek() == '[') {
      value();
    } else {
      builder_.start_object(0);
      members('\0');
      builder_.end_object();
    }
    skip_blanks();
    if (at_ < text_.size()) fail("text after the end");
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw SyntaxError{at_, problem}; }

  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool at_end() const { return at_ >= text_.size(); }
  bool starts(std::string_view what) const { return text_.substr(at_, what.size()) == what; }

  static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
  static bool punctuator(char c) { return c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':'; }

  void skip_line() {
    while (!at_end() && peek() != '\n') ++at_;
  }

  void skip_blanks() {
    while (!at_end()) {
      if (blank(peek())) {
        ++at_;
      } else if (peek() == '#' || starts("//")) {
        skip_line();
      } else if (starts("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail("comment without an end");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  void members(char closer) {
    for (;;) {
      skip_blanks();
      if (at_end()) {
        if (closer != '\0') fail("object without an end");
        return;
      }
      if (peek() == '}') {
        if (closer == '\0') fail("unexpected }");
        ++at_;
        return;
      }
      std::string name = key();
      builder_.key(name);
      skip_blanks();
      if (peek() != ':') fail("':' expected after a key");
      ++at_;
      skip_blanks();
      value();
      skip_blanks();
      if (peek() == ',') ++at_;
    }
  }

  std::string key() {
    if (peek() == '"' || peek() == '\'') return quoted();
    const std::size_t start = at_;
    while (!at_end() && !blank(peek()) && !punctuator(peek())) ++at_;
    if (at_ == start) fail("key expected");
    return std::string(text_.substr(start, at_ - start));
  }

  void value() {
    if (at_end()) fail("value expected");
    const char c = peek();
    if (c == '{') {
      ++at_;
      builder_.start_object(0);
      members('}');
      builder_.end_object();
    } else if (c == '[') {
      ++at_;
      builder_.start_array(0);
      elements();
      builder_.end_array();
    } else if (starts("'''")) {
      std::string text = multi_line();
      builder_.string(text);
    } else if (c == '"' || c == '\'') {
      std::string text = quoted();
      builder_.string(text);
    } else if (punctuator(c)) {
      fail(fmt::format("value expected, found '{}'", c));
    } else {
      unquoted();
    }
  }

  void elements() {
    for (;;) {
      skip_blanks();
      if (at_end()) fail("list without an end");
      if (peek() == ']') {
        ++at_;
        return;
      }
      value();
      skip_blanks();
      if (peek() == ',') ++at_;
    }
  }

  // A number or word if it ends at a comma, a closing bracket, a comment or the line's end; else a string to the line's
  // end.
  void unquoted() {
    const std::size_t start = at_;
    std::size_t end = start;
    while (end < text_.size() && !blank(text_[end]) && text_[end] != ',' && text_[end] != '}' && text_[end] != ']' &&
           text_[end] != '#' && text_.substr(end, 2) != "//" && text_.substr(end, 2) != "/*")
      ++end;
    const std::string word(text_.substr(start, end - start));
    std::size_t next = end;
    while (next < text_.size() && (text_[next] == ' ' || text_[next] == '\t' || text_[next] == '\r')) ++next;
    const bool alone = next >= text_.size() || text_[next] == '\n' || text_[next] == ',' || text_[next] == '}' ||
                       text_[next] == ']' || text_[next] == '#' || text_.substr(next, 2) == "//" ||
                       text_.substr(next, 2) == "/*";
    if (alone) {
      at_ = end;
      if (word == "null") return void(builder_.null());
      if (word == "true") return void(builder_.boolean(true));
      if (word == "false") return void(builder_.boolean(false));
      // The same number grammar and the same 64-bit rule as in JSON.
      if (word.find_first_not_of("+-.0123456789eE") == std::string::npos && json_number(word)) return;
    }
    at_ = start;
    skip_line();
    std::string text(text_.substr(start, at_ - start));
    text.erase(text.find_last_not_of(" \t\r") + 1);
    builder_.string(text);
  }

  bool json_number(const std::string& word) {
    const nlohmann::json number = nlohmann::json::parse(word, nullptr, false);
    if (number.is_number_unsigned())
      builder_.number_unsigned(number.get<std::uint64_t>());
    else if (number.is_number_integer())
      builder_.number_integer(number.get<std::int64_t>());
    else if (number.is_number_float())
      builder_.number_float(number.get<double>(), word);
    else
      return false;
    return true;
  }

  std::string quoted() {
    const char quote = peek();
    const std::size_t start = at_++;
    std::string inner = "\"";
    for (;; ++at_) {
      if (at_end() || peek() == '\n') {
        at_ = start;
        fail("string without an end");
      }
      const char c = peek();
      if (c == quote) break;
      if (c == '\\') {
        if (at_ + 1 >= text_.size()) fail("string without an end");
        ++at_;
        if (peek() == '\'') {
          inner += '\'';
          continue;
        }
        inner += '\\';
        inner += peek();
      } else if (c == '"') {
        inner += "\\\"";
      } else {
        inner += c;
      }
    }
    ++at_;
    // JSON's own rules for escapes, control characters and UTF-8.
    const nlohmann::json value = nlohmann::json::parse(inner + "\"", nullptr, false);
    if (!value.is_string()) {
      at_ = start;
      fail("malformed string");
    }
    return value.get<std::string>();
  }

  // ''' text ''': the white space before the opening quotes' column goes from each line, and the first and last line
  // ends go.
  std::string multi_line() {
    std::size_t indent = 0;
    while (indent < at_ && text_[at_ - indent - 1] != '\n') ++indent;
    const std::size_t start = at_ + 3;
    const std::size_t end = text_.find("'''", start);
    if (end == std::string_view::npos) fail("''' string without an end");
    std::string_view raw = text_.substr(start, end - start);
    at_ = end + 3;
    const std::size_t first_line = raw.find('\n');
    if (first_line != std::string_view::npos && raw.substr(0, first_line).find_first_not_of(" \t\r") == raw.npos)
      raw.remove_prefix(first_line + 1);
    std::string out;
    bool line_start = first_line != std::string_view::npos;
    std::size_t skipped = 0;
    for (const char c : raw) {
      if (line_start && skipped < indent && (c == ' ' || c == '\t')) {
        ++skipped;
        continue;
      }
      line_start = false;
      if (c == '\r') continue;
      out += c;
      if (c == '\n') {
        line_start = true;
        skipped = 0;
      }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }

  std::string_view text_;
  std::size_t& at_;
  Builder& builder_;
};

}  // namespace

void parse_hjson(std::string_view text, std::size_t& offset, Builder& builder) {
  try {
    static_cast<void>(nlohmann::json(std::string(text)).dump());  // throws unless it is UTF-8
  } catch (const nlohmann::json::exception&) {
    throw SyntaxError{0, "not UTF-8 text"};
  }
  Parser(text, offset, builder).document();
}

}  // namespace deepspeed::config
