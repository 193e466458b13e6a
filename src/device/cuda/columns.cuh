// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {

constexpr int finish_columns_wide = 8;  // columns of a block: one access to memory
constexpr int finish_columns_deep = 64;

/// Sums the rows of `partial` [parts, columns]; the first `split` columns go to `first`, the others to `second`. A null
/// output isn't written.
template <class T>
__global__ void __launch_bounds__(finish_columns_wide* finish_columns_deep)
    finish_columns_kernel(const float* __restrict__ partial, std::int64_t parts, std::int64_t columns,
                          std::int64_t split, T* first, T* second, bool accumulate) {
  __shared__ float sums[finish_columns_deep][finish_columns_wide + 1];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * finish_columns_wide;
  float sum = 0.0F;
  if (begin + threadIdx.x < columns) {
#pragma unroll 8
    for (std::int64_t part = threadIdx.y; part < parts; part += finish_columns_deep) {
      sum += partial[part * columns + begin + threadIdx.x];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // A warp to a column.
  const int thread = static_cast<int>(threadIdx.y * finish_columns_wide + threadIdx.x);
  const int mine = thread / 32;
  if (mine >= finish_columns_wide || begin + mine >= columns) return;
  sum = warp_sum(sums[thread % 32][mine] + sums[thread % 32 + 32][mine]);
  T* to = begin + mine < split ? first : second;
  if (thread % 32 != 0 || to == nullptr) return;
  to += begin + mine < split ? begin + mine : begin + mine - split;
  *to = narrow<T>(accumulate ? widen(*to) + sum : sum);
}

template <class T>
void finish_columns(const float* partial, std::int64_t parts, std::int64_t columns, std::int64_t split, T* first,
                    T* second, bool accumulate, const char* what, Stream stream) {
  const auto blocks = static_cast<unsigned>((columns + finish_columns_wide - 1) / finish_columns_wide);
  finish_columns_kernel<<<blocks, dim3(finish_columns_wide, finish_columns_deep), 0, native(stream)>>>(
      partial, parts, columns, split, first, second, accumulate);
  check(cudaGetLastError(), what);
}

}  // namespace deepspeed::device::cuda
