// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"

namespace deepspeed::comm {

/// A group of one rank under this name, whatever back end the others use: every collective is done when the call
/// returns, and copies only where input and output differ.
std::shared_ptr<Group> make_self_group(const std::string& name);

}  // namespace deepspeed::comm
