// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace deepspeed::profile {

/// The most physical memory that this process has held so far, in bytes (VmHWM; ru_maxrss where there is no /proc).
std::int64_t peak_host_bytes();
/// The physical memory that this process holds now, in bytes (VmRSS); 0 where there is no /proc.
std::int64_t host_bytes();

}  // namespace deepspeed::profile
