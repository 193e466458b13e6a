// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"
#include "comm/group.h"

namespace deepspeed::checkpoint {

/// Throws CheckpointError with the same text on every rank if `error` isn't empty on any: "BEGIN: rank 1: ERROR". Equal
/// errors of several ranks are told once.
void agree(comm::Group& group, const std::string& begin, const std::string& error);

/// Runs `body` (which may not call the group) on this rank; when it fails on any rank, every rank throws.
template <class Body>
void together(comm::Group& group, const std::string& begin, Body&& body) {
  std::string error;
  try {
    body();
  } catch (const std::exception& failure) {
    error = failure.what();
    if (error.empty()) error = "unknown error";
  }
  agree(group, begin, error);
}

}  // namespace deepspeed::checkpoint
