// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "comm/group.h"

namespace deepspeed::comm {

/// Collective: rank 0 alone runs `f`; its text comes back on every rank, and so does its error, as the same base::Error
/// everywhere. For what must happen once: reading standard input, making a folder.
std::string text_from_root(Group& group, const std::function<std::string()>& f);
void on_root(Group& group, const std::function<void()>& f);

}  // namespace deepspeed::comm
