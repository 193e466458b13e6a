// SPDX-License-Identifier: Apache-2.0
// Sixteen-bit floats in plain arithmetic, as the truth for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace deepspeed::test {

/// The value of a float of `exponent_bits` and `mantissa_bits`.
inline double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int sign = bits >> 15;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return sign != 0 ? -value : value;
}

inline double decode_half(std::uint16_t bits) {
  return decode(bits, 5, 10);
}
inline double decode_bfloat(std::uint16_t bits) {
  return decode(bits, 8, 7);
}

/// Nearest of all finite values and infinity, ties to the even mantissa: by bisection over the ordered bit patterns.
inline std::uint16_t encode(double value, int exponent_bits, int mantissa_bits) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1 << (mantissa_bits - 1));
  int low = 0;
  int high = infinity;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (decode(static_cast<std::uint16_t>(middle), exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = decode(static_cast<std::uint16_t>(low), exponent_bits, mantissa_bits);
  // Beyond the largest value, infinity counts as the next step.
  const double above = high == infinity
                           ? 2 * below - decode(static_cast<std::uint16_t>(low - 1), exponent_bits, mantissa_bits)
                           : decode(static_cast<std::uint16_t>(high), exponent_bits, mantissa_bits);
  const double down = magnitude - below;
  const double up = above - magnitude;
  const bool take_high = up < down || (up == down && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (take_high ? high : low));
}

inline std::uint16_t encode_half(double value) {
  return encode(value, 5, 10);
}
inline std::uint16_t encode_bfloat(double value) {
  return encode(value, 8, 7);
}

}  // namespace deepspeed::test
