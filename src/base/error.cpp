// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <system_error>

namespace deepspeed::base {

std::string system_error(const std::string& what, int error_number) {
  return what + ": " + std::generic_category().message(error_number);
}

}  // namespace deepspeed::base
