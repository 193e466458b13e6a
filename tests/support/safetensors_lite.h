// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace deepspeed::test {

/// One tensor of a safetensors file, for rooms that stand below the one with the real reader.
struct Tensor {
  std::string type;  ///< "F32", "F64", "BF16", ...
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;

  /// The elements as double, whatever the type.
  std::vector<double> values() const {
    const auto elements = [this](auto sample, auto convert) {
      std::vector<double> result(bytes.size() / sizeof sample);
      for (std::size_t i = 0; i < result.size(); ++i) {
        std::memcpy(&sample, bytes.data() + i * sizeof sample, sizeof sample);
        result[i] = convert(sample);
      }
      return result;
    };
    if (type == "F64") return elements(double{}, [](double x) { return x; });
    if (type == "F32") return elements(float{}, [](float x) { return static_cast<double>(x); });
    if (type == "BF16") {
      return elements(std::uint16_t{}, [](std::uint16_t x) {
        const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return static_cast<double>(value);
      });
    }
    throw std::runtime_error("safetensors_lite: type " + type);
  }
};

inline std::map<std::string, Tensor> read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  if (all.size() < 8) throw std::runtime_error("can't read " + path);
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), 8);
  std::map<std::string, Tensor> tensors;
  const auto header = nlohmann::json::parse(all.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto& at = entry.at("data_offsets");
    const std::string data =
        all.substr(8 + length + at[0].get<std::size_t>(), at[1].get<std::size_t>() - at[0].get<std::size_t>());
    tensors[name] = {entry.at("dtype"), entry.at("shape"), {data.begin(), data.end()}};
  }
  return tensors;
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("can't read " + path);
  return nlohmann::json::parse(file);
}

}  // namespace deepspeed::test
