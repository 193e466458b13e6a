// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "device/device.h"

namespace deepspeed::device::cuda {

/// Four elements, read and written in one access; the memory must be aligned to their size.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

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

}  // namespace deepspeed::device::cuda
