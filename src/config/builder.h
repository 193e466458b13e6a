// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/reader.h"

namespace deepspeed::config {

/// A syntax error at a place of the text; the reader turns it into a ConfigError or tries the next syntax.
struct SyntaxError {
  std::size_t offset = 0;
  std::string problem;
};

/// Builds a Document from the events of either syntax (nlohmann's SAX interface), so that both obey the same rules.
/// Rules about the content throw ConfigError; syntax errors throw SyntaxError.
class Builder {
 public:
  /// `offset` is where the reader stands in `text`; it is looked at when an event comes.
  Builder(std::string_view text, const std::string& name, const std::size_t& offset)
      : text_(text), name_(name), offset_(offset) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value);
  bool number_float(double value, const std::string& token);
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(nlohmann::json::object()); }
  bool key(std::string& key);
  bool end_object();
  bool start_array(std::size_t) { return open(nlohmann::json::array()); }
  bool end_array();
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error);

  Document take();

 private:
  struct Level {
    nlohmann::json value;
    std::string key;                      ///< of the entry that is being read
    std::string path;                     ///< dotted, of this container
    std::vector<std::string> duplicates;  ///< keys seen again
  };

  bool add(nlohmann::json value);
  bool open(nlohmann::json container);
  bool close();
  std::string path_of_entry() const;
  std::size_t line_at(std::size_t offset);

  std::string_view text_;
  const std::string& name_;
  const std::size_t& offset_;
  std::vector<Level> levels_;
  Document document_;
  bool done_ = false;
  std::size_t counted_ = 0;  ///< bytes whose line ends are counted in line_: counting anew for each key is quadratic
  std::size_t line_ = 1;
};

/// "name, line 3, column 14" for an offset into the text.
std::string place(std::string_view text, std::size_t offset, const std::string& name);

/// Feeds a Builder from HJSON text; throws SyntaxError.
void parse_hjson(std::string_view text, std::size_t& offset, Builder& builder);

}  // namespace deepspeed::config
