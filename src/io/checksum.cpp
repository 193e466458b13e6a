// SPDX-License-Identifier: Apache-2.0
#include "io/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace deepspeed::io {

namespace {
std::string hex(XXH64_hash_t hash) {
  return fmt::format("{:016x}", hash);
}
std::string hex(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}
}  // namespace

// One state serves one width: the 64- and the 128-bit digests differ only in how the state is read.
struct Xxh3::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

std::uint64_t xxh3_64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}
std::string xxh3_64_hex(std::span<const std::byte> bytes) {
  return hex(XXH3_64bits(bytes.data(), bytes.size()));
}
std::string xxh3_128_hex(std::span<const std::byte> bytes) {
  return hex(XXH3_128bits(bytes.data(), bytes.size()));
}

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  reset();
}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;
void Xxh3::reset() {
  XXH3_128bits_reset(state_->xxh);
}
void Xxh3::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
std::uint64_t Xxh3::value_64() const {
  return XXH3_64bits_digest(state_->xxh);
}
std::string Xxh3::hex_64() const {
  return hex(XXH3_64bits_digest(state_->xxh));
}
std::string Xxh3::hex_128() const {
  return hex(XXH3_128bits_digest(state_->xxh));
}

}  // namespace deepspeed::io
