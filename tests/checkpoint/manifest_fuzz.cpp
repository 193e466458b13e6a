// SPDX-License-Identifier: Apache-2.0
// Any text with the right checksum is a manifest that validates and comes back the same, or a CheckpointError.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "io/checksum.h"

namespace ck = deepspeed::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string rest(reinterpret_cast<const char*>(data), size);
  const std::string text =
      "{\"xxh3_128\": \"" + deepspeed::io::xxh3_128_hex(std::as_bytes(std::span(rest))) + "\",\n" + rest;
  try {
    const ck::Manifest manifest = ck::parse_manifest(text, "fuzz");
    ck::validate(manifest, "fuzz");
    const std::string again = ck::to_text(manifest);
    if (ck::to_text(ck::parse_manifest(again, "again")) != again) __builtin_trap();
  } catch (const deepspeed::base::CheckpointError&) {
  }
  return 0;
}
