// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace deepspeed::config {

inline Config parse(const std::string& text, int world = 1, const std::vector<std::string>& overrides = {}) {
  Facts facts;
  facts.world_size = world;
  facts.accelerator = true;
  return Config::parse(text, "ds.json", overrides, facts);
}

/// The message of the refusal, "" if it was accepted.
inline std::string refusal(const std::string& text, int world = 1, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, world, overrides);
  } catch (const base::ConfigError& error) {
    return error.what();
  }
  return "";
}

/// What check_supported() says of it, "" for nothing.
inline std::string unsupported(const std::string& text) {
  const Config config = parse(text);
  try {
    check_supported(config);
  } catch (const base::ConfigError& error) {
    return error.what();
  }
  return "";
}

/// A one-key change to an otherwise good configuration.
inline std::string with(const std::string& member) {
  return R"({"train_batch_size": 8, )" + member + "}";
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace deepspeed::config
