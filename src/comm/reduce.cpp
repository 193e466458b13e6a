// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "kernels/host.h"

namespace deepspeed::comm {
namespace {

using base::Dtype;
using kernels::Element;

/// Elements whose sums stay in the first-level cache.
constexpr std::int64_t tile_size = 1024;

template <class T>
T combine(T a, T b, ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return a < b ? b : a;
    case ReduceOp::min:
      return b < a ? b : a;
    case ReduceOp::sum:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
  } else {
    return a + b;
  }
}

template <class T>
void combine(T* y, const T* x, std::int64_t n, ReduceOp op) {
  if (op == ReduceOp::sum) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = combine(y[i], x[i], ReduceOp::sum);
  } else if (op == ReduceOp::max) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = combine(y[i], x[i], ReduceOp::max);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = combine(y[i], x[i], ReduceOp::min);
  }
}

/// fp32, fp16 and bf16, by the kernels' loops: in fp32, rounded once.
void reduce_floats(const std::vector<const void*>& slices, Element from, Buffer out, Element to, ReduceOp op,
                   float scale, bool accumulate) {
  const kernels::Loops& loops = kernels::host_loops();
  alignas(64) std::array<float, tile_size> sum;
  alignas(64) std::array<float, tile_size> other;
  const auto width = [](Element type) { return type == Element::f32 ? std::int64_t{4} : std::int64_t{2}; };
  for (std::int64_t begin = 0; begin < out.numel; begin += tile_size) {
    const std::int64_t n = std::min(tile_size, out.numel - begin);
    const auto slice = [&](std::size_t s) { return static_cast<const char*>(slices[s]) + begin * width(from); };
    loops.cast[Element::f32][from](sum.data(), slice(0), n);
    for (std::size_t s = 1; s < slices.size(); ++s) {
      if (op == ReduceOp::sum) {
        loops.add[Element::f32][from](sum.data(), slice(s), n);
      } else {
        loops.cast[Element::f32][from](other.data(), slice(s), n);
        combine(sum.data(), other.data(), n, op);
      }
    }
    if (scale != 1) loops.scale[Element::f32](sum.data(), scale, n);
    void* result = static_cast<char*>(out.data) + begin * width(to);
    (accumulate ? loops.add : loops.cast)[to][Element::f32](result, sum.data(), n);
  }
}

/// All other types, each in its own arithmetic.
template <class T>
void reduce_plain(const std::vector<const void*>& slices, Buffer out, ReduceOp op, float scale, bool accumulate) {
  std::array<T, tile_size> sum;
  for (std::int64_t begin = 0; begin < out.numel; begin += tile_size) {
    const std::int64_t n = std::min(tile_size, out.numel - begin);
    std::copy_n(static_cast<const T*>(slices[0]) + begin, n, sum.data());
    for (std::size_t s = 1; s < slices.size(); ++s)
      combine(sum.data(), static_cast<const T*>(slices[s]) + begin, n, op);
    if constexpr (std::is_same_v<T, double>) {
      if (scale != 1) {
        for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] *= scale;
      }
      if (out.type == Dtype::f32) {
        float* result = static_cast<float*>(out.data) + begin;
        for (std::int64_t i = 0; i < n; ++i) {
          const auto value = static_cast<float>(sum[static_cast<std::size_t>(i)]);
          result[i] = accumulate ? result[i] + value : value;
        }
        continue;
      }
    }
    T* result = static_cast<T*>(out.data) + begin;
    if (accumulate) {
      combine(result, sum.data(), n, ReduceOp::sum);
    } else {
      std::copy_n(sum.data(), n, result);
    }
  }
}

Element element_of(Dtype type) {
  return type == Dtype::f16 ? Element::f16 : type == Dtype::bf16 ? Element::bf16 : Element::f32;
}

}  // namespace

void reduce_slices(const std::vector<const void*>& slices, Dtype type, Buffer out, ReduceOp op, float scale,
                   bool accumulate) {
  if (out.numel == 0) return;
  switch (type) {
    case Dtype::f32:
    case Dtype::f16:
    case Dtype::bf16:
      return reduce_floats(slices, element_of(type), out, element_of(out.type), op, scale, accumulate);
    case Dtype::f64:
      return reduce_plain<double>(slices, out, op, scale, accumulate);
    case Dtype::i64:
      return reduce_plain<std::int64_t>(slices, out, op, scale, accumulate);
    case Dtype::i32:
      return reduce_plain<std::int32_t>(slices, out, op, scale, accumulate);
    case Dtype::i16:
      return reduce_plain<std::int16_t>(slices, out, op, scale, accumulate);
    case Dtype::i8:
      return reduce_plain<std::int8_t>(slices, out, op, scale, accumulate);
    case Dtype::u8:
      return reduce_plain<std::uint8_t>(slices, out, op, scale, accumulate);
    case Dtype::boolean:
      return reduce_plain<std::uint8_t>(slices, out, op == ReduceOp::sum ? ReduceOp::max : op, scale, accumulate);
  }
}

}  // namespace deepspeed::comm
