// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/group.h"

namespace deepspeed::zero {

/// All ranks of the test.
std::shared_ptr<comm::Group> world();

}  // namespace deepspeed::zero
