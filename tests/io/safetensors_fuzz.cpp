// SPDX-License-Identifier: Apache-2.0
// Any bytes are a file that reads whole, or a DataError.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = deepspeed::io::SafeTensors::from_memory(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    unsigned sum = 0;
    for (const auto& tensor : file.tensors()) {
      const auto* bytes = static_cast<const unsigned char*>(tensor.data.data);
      for (std::size_t i = 0; i < tensor.data.bytes(); ++i) sum += bytes[i];
      if (file.find(tensor.name) != &tensor) __builtin_trap();
    }
    volatile unsigned used = sum;
    static_cast<void>(used);
  } catch (const deepspeed::base::DataError&) {
  }
  return 0;
}
