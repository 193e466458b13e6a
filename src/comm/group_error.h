// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"

namespace deepspeed::comm {

/// A collective that failed. `everywhere` is the message without the rank, so that those of several ranks can be told
/// as one.
class GroupError : public base::CommError {
 public:
  GroupError(std::string call, const std::string& rank, const std::string& what)
      : base::CommError(call + ", " + rank + ": " + what), everywhere_(call + ": " + what) {}
  const std::string& everywhere() const { return everywhere_; }

 private:
  std::string everywhere_;
};

}  // namespace deepspeed::comm
