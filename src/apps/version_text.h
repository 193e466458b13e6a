// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/version.h"

namespace deepspeed::apps {

/// What --version of every program prints: version, git hash, back ends.
inline std::string version_text(const std::string& program) {
  return fmt::format("{} (deepspeed-mpi) {} git {}\nback ends: {}", program, base::version(), base::git_hash(),
                     base::back_ends());
}

}  // namespace deepspeed::apps
