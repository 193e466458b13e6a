// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "device/device.h"

namespace deepspeed::device::cuda {

/// Elements that are read and written in one access; the memory must be aligned to their size.
template <class T, int Count>
struct alignas(Count * sizeof(T)) Pack {
  T at[Count];
};
template <class T>
using Four = Pack<T, 4>;

template <int Count, class T>
__device__ Pack<T, Count> load(const T* from) {
  return *reinterpret_cast<const Pack<T, Count>*>(from);
}
template <class T, int Count>
__device__ void store(T* to, const Pack<T, Count>& pack) {
  *reinterpret_cast<Pack<T, Count>*>(to) = pack;
}

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float widen(__half x) {
  return __half2float(x);
}

template <class T>
__device__ T narrow(float x);  // round to nearest even
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}

template <class T>
__host__ __device__ bool aligned_for_four(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(Four<T>) == 0;
}

/// Whether 16-byte accesses may be used; null pointers don't matter.
template <class... Pointers>
bool aligned_for_packs(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls `use` with a value of the C++ type that stands for `type`.
template <class Use>
void with_floating(base::Dtype type, const char* what, Use&& use) {
  switch (type) {
    case base::Dtype::f32:
      return use(float{});
    case base::Dtype::bf16:
      return use(__nv_bfloat16{});
    case base::Dtype::f16:
      return use(__half{});
    default:
      throw base::DeviceError(std::string(what) + ": " + std::string(base::name_of(type)) +
                              " isn't one of fp32, bf16, fp16");
  }
}

/// As above, and with the number of elements that one access takes: 16 bytes of them, or, if `wide` is false or a
/// multiple of that many doesn't fill `width`, 1.
template <class Use>
void with_packs(base::Dtype type, const char* what, std::int64_t width, bool wide, Use&& use) {
  with_floating(type, what, [&](auto element) {
    constexpr int full = 16 / sizeof element;
    if (wide && width % full == 0) return use(element, std::integral_constant<int, full>());
    use(element, std::integral_constant<int, 1>());
  });
}

/// Floats beside a pack of elements; where there are four or more of them the memory must be aligned to 16 bytes.
template <int Count>
__device__ Pack<float, Count> load_floats(const float* from) {
  Pack<float, Count> floats;
  constexpr int step = Count % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < Count; i += step) {
    const auto part = load<step>(from + i);
#pragma unroll
    for (int k = 0; k < step; ++k) floats.at[i + k] = part.at[k];
  }
  return floats;
}
template <int Count>
__device__ void store_floats(float* to, const float* floats) {
  constexpr int step = Count % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < Count; i += step) {
    Pack<float, step> part;
#pragma unroll
    for (int k = 0; k < step; ++k) part.at[k] = floats[i + k];
    store(to + i, part);
  }
}

/// 2^x, to about two units of the last place; 0 below the normal numbers.
__device__ inline float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// 1 / x, to about one unit of the last place; 0 below the normal numbers.
__device__ inline float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline constexpr float log2_e = 1.4426950408889634F;

/// The sum over a warp, in every lane; a butterfly gives all lanes the same bits.
__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffU, value, distance);
  return value;
}

}  // namespace deepspeed::device::cuda
