// SPDX-License-Identifier: Apache-2.0
#include "profile/memory.h"

#include <sys/resource.h>

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

namespace deepspeed::profile {
namespace {

/// "NAME:   123 kB" of /proc/self/status in bytes; 0 if it isn't there.
std::int64_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t digits = line.find_first_of("0123456789");
    if (digits == std::string::npos) return 0;
    std::int64_t kibibytes = 0;
    std::from_chars(line.data() + digits, line.data() + line.size(), kibibytes);
    return kibibytes * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t peak_host_bytes() {
  if (const std::int64_t bytes = status_bytes("VmHWM:"); bytes > 0) return bytes;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

std::int64_t host_bytes() {
  return status_bytes("VmRSS:");
}

}  // namespace deepspeed::profile
