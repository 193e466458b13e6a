// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

/// XXH3 of the xxHash library (seed 0), as 16 or 32 lower-case hex digits, most significant first: what `xxhsum -H3`
/// and Python's xxhash.xxh3_64_hexdigest / xxh3_128_hexdigest print. They find damage, not malice.
namespace deepspeed::io {

std::uint64_t xxh3_64(std::span<const std::byte> bytes);
std::string xxh3_64_hex(std::span<const std::byte> bytes);
std::string xxh3_128_hex(std::span<const std::byte> bytes);

/// The checksum of bytes that come piece by piece.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;
  void reset();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value_64() const;
  std::string hex_64() const;
  std::string hex_128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deepspeed::io
