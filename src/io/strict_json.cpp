// SPDX-License-Identifier: Apache-2.0
#include "io/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <unordered_set>

#include "base/error.h"
#include "io/file.h"

namespace deepspeed::io {

using nlohmann::json;

json parse_strict_json(std::string_view text, const std::string& what, int max_depth) {
  if (text.starts_with("\xEF\xBB\xBF")) throw base::DataError(what + " begins with a byte-order mark");
  std::vector<std::unordered_set<std::string>> names;  // of the open objects
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        names.emplace_back();
        [[fallthrough]];
      case json::parse_event_t::array_start:
        if (depth >= max_depth)
          throw base::DataError(fmt::format("{} is nested more than {} levels deep", what, max_depth));
        break;
      case json::parse_event_t::object_end:
        names.pop_back();
        break;
      case json::parse_event_t::key:
        if (const auto& name = parsed.get_ref<const std::string&>(); !names.back().insert(name).second)
          throw base::DataError(fmt::format("{} has the name {} twice", what, in_quotes(name)));
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    throw base::DataError(fmt::format("{} isn't valid JSON at byte {}", what, error.byte));
  } catch (const json::exception&) {  // a number beyond double's range
    throw base::DataError(what + " holds a number that is out of range");
  }
}

bool to_size(const json& value, std::int64_t& out) {
  if (!value.is_number_unsigned()) return false;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
  out = static_cast<std::int64_t>(number);
  return true;
}

bool to_sizes(const json& value, std::vector<std::int64_t>& out) {
  if (!value.is_array()) return false;
  out.clear();
  for (const json& item : value) {
    out.emplace_back();
    if (!to_size(item, out.back())) return false;
  }
  return true;
}

}  // namespace deepspeed::io
