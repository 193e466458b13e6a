// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

/// JSON from files that may be damaged or hostile: a name given twice, nesting beyond a limit, a byte-order mark and
/// anything after the value are refused.
namespace deepspeed::io {

/// `what` begins every message ("PATH: header"). Throws DataError with the byte position.
nlohmann::json parse_strict_json(std::string_view text, const std::string& what, int max_depth = 32);

/// A whole number from 0 to 2^63 - 1, or false. Floats, signs and larger numbers (which the parser turns into floats)
/// aren't.
bool to_size(const nlohmann::json& value, std::int64_t& out);
/// An array of such numbers, or false.
bool to_sizes(const nlohmann::json& value, std::vector<std::int64_t>& out);

}  // namespace deepspeed::io
