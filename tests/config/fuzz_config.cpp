// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the text, parse() either throws a ConfigError or gives a configuration that, written out,
// is accepted again with the same meaning. The first byte chooses the rank count.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace deepspeed::config;  // NOLINT: a program of one function
  if (size == 0) return 0;
  Facts facts;
  facts.world_size = 1 + data[0] % 8;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    const Config config = Config::parse(text, "fuzz", {}, facts);
    if (config.get<bool>("elasticity.enabled")) return 0;  // refuses the batch keys that its text holds
    const Config again = Config::parse(config.text(), "again", {}, facts);
    if (again.resolved() != config.resolved()) {
      std::fprintf(stderr, "resolved differently:\n%s\n%s\n", config.text().c_str(), again.text().c_str());
      std::abort();
    }
  } catch (const deepspeed::base::ConfigError&) {
    // A second error would be one of our own text; tell it apart from the refusal of the first.
    try {
      const Config config = Config::parse(text, "fuzz", {}, facts);
      std::fprintf(stderr, "own text refused:\n%s\n", config.text().c_str());
      std::abort();
    } catch (const deepspeed::base::ConfigError&) {
    }
  }
  return 0;
}
