// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int threads = 256;
constexpr int blocks = static_cast<int>(norm_scratch);
constexpr int launch_pieces = 128;

struct Piece {
  const void* data;
  std::int64_t numel;
  Dtype type;
};
struct Pieces {
  Piece piece[launch_pieces];
  int count;
};

// The sum over the block, in a fixed order; valid in thread 0.
template <int Threads>
__device__ double block_sum(double value) {
  __shared__ double warps[Threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffU, value, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (const double warp : warps) sum += warp;
  }
  return sum;
}

__device__ void add_square(double& sum, float value) {
  const auto x = static_cast<double>(value);
  sum = fma(x, x, sum);
}

template <class T>
__device__ double squares(const T* data, std::int64_t numel) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  constexpr std::int64_t stride = static_cast<std::int64_t>(blocks) * threads;
  double sum = 0.0;
  std::int64_t tail = 0;
  if (aligned_for_four(data)) {
    const auto* fours = reinterpret_cast<const Four<T>*>(data);
    for (std::int64_t i = first; i < numel / 4; i += stride) {
      const Four<T> four = fours[i];
#pragma unroll
      for (int k = 0; k < 4; ++k) add_square(sum, widen(four.at[k]));
    }
    tail = numel / 4 * 4;
  }
  for (std::int64_t i = tail + first; i < numel; i += stride) add_square(sum, widen(data[i]));
  return sum;
}

__global__ void __launch_bounds__(threads) square_kernel(const __grid_constant__ Pieces pieces, double* partial) {
  double sum = 0.0;
  for (int k = 0; k < pieces.count; ++k) {
    const Piece& piece = pieces.piece[k];
    if (piece.type == Dtype::f32) sum += squares(static_cast<const float*>(piece.data), piece.numel);
    if (piece.type == Dtype::bf16) sum += squares(static_cast<const __nv_bfloat16*>(piece.data), piece.numel);
    if (piece.type == Dtype::f16) sum += squares(static_cast<const __half*>(piece.data), piece.numel);
  }
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] += sum;
}

// A square of any finite 32-bit value, and a sum of them, is finite in double: the sum itself says whether all were.
__global__ void __launch_bounds__(blocks) finish_kernel(const double* partial, double* sum, std::uint32_t* not_finite) {
  const double total = block_sum<blocks>(partial[threadIdx.x]);
  if (threadIdx.x == 0) {
    *sum = total;
    *not_finite = isfinite(total) ? 0U : 1U;
  }
}

}  // namespace

void sum_of_squares(const ConstBuffer* pieces, std::size_t count, double* sum, std::uint32_t* not_finite,
                    double* scratch, Stream stream) {
  check(cudaMemsetAsync(scratch, 0, norm_scratch * sizeof(double), native(stream)), "sum_of_squares");
  for (std::size_t next = 0; next < count;) {
    Pieces launch{};
    for (; next < count && launch.count < launch_pieces; ++next) {
      const ConstBuffer& piece = pieces[next];
      if (piece.numel == 0) continue;
      with_floating(piece.type, "sum_of_squares", [](auto) {});
      launch.piece[launch.count++] = {piece.data, piece.numel, piece.type};
    }
    if (launch.count == 0) continue;
    square_kernel<<<blocks, threads, 0, native(stream)>>>(launch, scratch);
    check(cudaGetLastError(), "sum_of_squares");
  }
  finish_kernel<<<1, blocks, 0, native(stream)>>>(scratch, sum, not_finite);
  check(cudaGetLastError(), "sum_of_squares");
}

}  // namespace deepspeed::device::cuda
