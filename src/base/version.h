// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deepspeed::base {

/// "0.1.0"
std::string version();
/// The short git hash of the sources, or "unknown".
std::string git_hash();

}  // namespace deepspeed::base
