// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "config/keys.h"

namespace deepspeed::config {

/// The rows of the table in their order, for keys.cpp to build the tree from. Everybody else uses table().
std::vector<Key> key_rows();

}  // namespace deepspeed::config
