// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace deepspeed::comm {
namespace {

using base::Dtype;

// Sixteen-bit floats as bits; conversions without branches, so that the loops below become vector code.
struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

float to_float(Bfloat x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

float to_float(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7fffU) << 13;
  // The exponent is moved from bias 15 to 127 by a multiplication, which also makes subnormals normal.
  float value = std::bit_cast<float>(magnitude) * 0x1p112F;
  // Infinity and NaN keep the largest exponent.
  const std::uint32_t special = magnitude >= (0x7c00U << 13) ? 0x7f800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | special | sign);
}

template <class T>
T from_float(float value);

template <>
Bfloat from_float<Bfloat>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded)};
}

template <>
Half from_float<Half>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Normal results: move the exponent, then round to nearest even.
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Subnormal results: adding 0.5 puts the last kept bit at the end of the mantissa, and the addition rounds.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t result = magnitude < (113U << 23) ? subnormal : normal;
  result = magnitude >= 0x477ff000U ? 0x7c00U : result;  // 65520 and above round to infinity
  result = magnitude > 0x7f800000U ? 0x7e00U : result;
  return {static_cast<std::uint16_t>(result | sign)};
}

template <class T>
constexpr bool is_float16 = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

/// Sums are formed in this type.
template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Half> {
  using type = float;
};
template <>
struct Accumulator<Bfloat> {
  using type = float;
};

template <class Acc, class T>
Acc widen(T x) {
  if constexpr (is_float16<T>) {
    return to_float(x);
  } else {
    return static_cast<Acc>(x);
  }
}

template <class Out, class Acc>
Out narrow(Acc x) {
  if constexpr (is_float16<Out>) {
    return from_float<Out>(x);
  } else {
    return static_cast<Out>(x);
  }
}

template <class Acc>
Acc combine(Acc a, Acc b, ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return a < b ? b : a;
    case ReduceOp::min:
      return b < a ? b : a;
    case ReduceOp::sum:
      break;
  }
  if constexpr (std::is_integral_v<Acc>) {
    using Wide = std::make_unsigned_t<Acc>;
    return static_cast<Acc>(static_cast<Wide>(a) + static_cast<Wide>(b));
  } else {
    return a + b;
  }
}

template <ReduceOp op, class Acc, class T, class Out>
void reduce(const std::vector<const void*>& slices, Out* out, std::int64_t numel, float scale, bool accumulate) {
  constexpr std::int64_t block = 2048;  // the accumulators stay in the first-level cache
  Acc sum[block];
  for (std::int64_t begin = 0; begin < numel; begin += block) {
    const std::int64_t n = std::min(block, numel - begin);
    const T* first = static_cast<const T*>(slices[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = widen<Acc>(first[i]);
    for (std::size_t s = 1; s < slices.size(); ++s) {
      const T* slice = static_cast<const T*>(slices[s]) + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] = combine(sum[i], widen<Acc>(slice[i]), op);
    }
    Out* to = out + begin;
    if constexpr (std::is_floating_point_v<Acc>) {
      if (scale != 1.0F) {
        for (std::int64_t i = 0; i < n; ++i) sum[i] *= static_cast<Acc>(scale);
      }
    }
    if (accumulate) {
      for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<Out>(combine(widen<Acc>(to[i]), sum[i], ReduceOp::sum));
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<Out>(sum[i]);
    }
  }
}

template <class Acc, class T, class Out>
void dispatch(const std::vector<const void*>& slices, Buffer out, ReduceOp op, float scale, bool accumulate) {
  Out* to = static_cast<Out*>(out.data);
  switch (op) {
    case ReduceOp::sum:
      return reduce<ReduceOp::sum, Acc, T>(slices, to, out.numel, scale, accumulate);
    case ReduceOp::max:
      return reduce<ReduceOp::max, Acc, T>(slices, to, out.numel, scale, accumulate);
    case ReduceOp::min:
      return reduce<ReduceOp::min, Acc, T>(slices, to, out.numel, scale, accumulate);
  }
}

template <class T>
void dispatch_type(const std::vector<const void*>& slices, Dtype type, Buffer out, ReduceOp op, float scale,
                   bool accumulate) {
  if (out.type == type) return dispatch<typename Accumulator<T>::type, T, T>(slices, out, op, scale, accumulate);
  if constexpr (is_float16<T> || std::is_floating_point_v<T>)
    dispatch<float, T, float>(slices, out, op, scale, accumulate);
}

}  // namespace

void reduce_slices(const std::vector<const void*>& slices, Dtype type, Buffer out, ReduceOp op, float scale,
                   bool accumulate) {
  if (out.numel == 0) return;
  switch (type) {
    case Dtype::f64:
      return dispatch_type<double>(slices, type, out, op, scale, accumulate);
    case Dtype::f32:
      return dispatch_type<float>(slices, type, out, op, scale, accumulate);
    case Dtype::f16:
      return dispatch_type<Half>(slices, type, out, op, scale, accumulate);
    case Dtype::bf16:
      return dispatch_type<Bfloat>(slices, type, out, op, scale, accumulate);
    case Dtype::i64:
      return dispatch_type<std::int64_t>(slices, type, out, op, scale, accumulate);
    case Dtype::i32:
      return dispatch_type<std::int32_t>(slices, type, out, op, scale, accumulate);
    case Dtype::i16:
      return dispatch_type<std::int16_t>(slices, type, out, op, scale, accumulate);
    case Dtype::i8:
      return dispatch_type<std::int8_t>(slices, type, out, op, scale, accumulate);
    case Dtype::u8:
      return dispatch_type<std::uint8_t>(slices, type, out, op, scale, accumulate);
    case Dtype::boolean:
      return dispatch_type<std::uint8_t>(slices, type, out, op == ReduceOp::sum ? ReduceOp::max : op, scale,
                                         accumulate);
  }
}

}  // namespace deepspeed::comm
