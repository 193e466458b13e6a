// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <bit>

#include "base/error.h"
#include "data/data.h"

namespace deepspeed::data {
namespace {

/// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014): a
/// bijection whose every output bit depends on every input bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A keyed bijection of [0, size).
std::uint64_t permute(std::uint64_t index, std::uint64_t size, std::uint64_t key) {
  constexpr std::uint64_t rounds = 8;
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;
  const int half_bits = std::max((static_cast<int>(std::bit_width(size - 1)) + 1) / 2, 1);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  // A Feistel network of four bits and more is an even permutation; swapping the first two or not reaches the odd ones.
  if (index < 2 && size > 1) index ^= key >> 63;
  // The network permutes [0, 4^half_bits); following it from an index below size comes back below size, since its
  // cycle holds the index itself.
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      const std::uint64_t turned = left ^ (mix(mix(key + round * golden) + right * golden) & mask);
      left = right;
      right = turned;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

}  // namespace

Sampler::Sampler(std::int64_t samples, bool shuffle, std::uint64_t seed)
    : samples_(samples), shuffle_(shuffle), seed_(seed) {
  if (samples < 1) throw base::DataError(fmt::format("a sampler over {} samples; at least one is needed", samples));
}

std::int64_t Sampler::at(std::int64_t position) const {
  const std::int64_t epoch = position / samples_;
  const std::int64_t index = position % samples_;
  if (!shuffle_) return index;
  const std::uint64_t key = mix(mix(seed_ + 1) ^ static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(
      permute(static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(samples_), key));
}

}  // namespace deepspeed::data
