// SPDX-License-Identifier: Apache-2.0
// LayerNorm (Centered) and RMSNorm. Forward: a warp, or for wide rows a block, holds a row in registers, so that it is
// read once and the variance is formed from differences to the mean. Backward: a thread of a block owns some columns,
// and sums its part of the weights' gradients in registers while the block goes through its rows.
#include "cuda/columns.cuh"

namespace deepspeed::device::cuda {
namespace {

// A block has several rows that a warp each holds, or one row.
template <int Lanes>
constexpr int forward_threads = Lanes == 32 ? 256 : Lanes;

// The sum over the lanes that share a row, in all of them.
template <int Lanes>
__device__ float row_sum(float value) {
  value = warp_sum(value);
  if constexpr (Lanes > 32) {
    __shared__ float warps[Lanes / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0F;
#pragma unroll
    for (int warp = 0; warp < Lanes / 32; ++warp) value += warps[warp];
  }
  return value;
}

template <class T>
struct Forward {
  std::int64_t rows, width;
  float eps;
  const T *x, *residual;
  T* sum;
  const T *weight, *bias;
  T* y;
  float *mean, *rstd;
};

// Held: packs of a row in a lane's registers; 0 = rows of any width, read again for every pass.
template <bool Centered, class T, int Count, int Lanes, int Held>
__global__ void __launch_bounds__(forward_threads<Lanes>) forward_kernel(const Forward<T> a) {
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (forward_threads<Lanes> / Lanes) + static_cast<int>(threadIdx.x) / Lanes;
  if (row >= a.rows) return;
  const auto packs = static_cast<int>(a.width / Count);
  const T* x = a.x + row * a.width;
  Pack<T, Count> held[Held == 0 ? 1 : Held];
  const auto each = [&](auto&& use) {
    if constexpr (Held > 0) {
#pragma unroll
      for (int k = 0; k < Held; ++k) {
        if (lane + k * Lanes < packs) use((lane + k * Lanes) * Count, held[k]);
      }
    } else {
      for (int p = lane; p < packs; p += Lanes) {
        held[0] = load<Count>(x + p * Count);
        use(p * Count, held[0]);
      }
    }
  };

  if constexpr (Held > 0) each([&](int at, Pack<T, Count>& pack) { pack = load<Count>(x + at); });
  if (a.residual != nullptr) {
    const T* residual = a.residual + row * a.width;
    T* sum = a.sum + row * a.width;
    each([&](int at, Pack<T, Count>& pack) {
      const auto other = load<Count>(residual + at);
#pragma unroll
      for (int i = 0; i < Count; ++i) pack.at[i] = narrow<T>(widen(pack.at[i]) + widen(other.at[i]));
      store(sum + at, pack);
    });
    x = sum;
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0.0F;
  if constexpr (Centered) {
    each([&](int, Pack<T, Count>& pack) {
#pragma unroll
      for (int i = 0; i < Count; ++i) mean += widen(pack.at[i]);
    });
    mean = row_sum<Lanes>(mean) / width;
  }
  float squares = 0.0F;
  each([&](int, Pack<T, Count>& pack) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float difference = widen(pack.at[i]) - mean;
      squares = __fmaf_rn(difference, difference, squares);
    }
  });
  const float rstd = 1.0F / sqrtf(row_sum<Lanes>(squares) / width + a.eps);
  T* y = a.y + row * a.width;
  each([&](int at, Pack<T, Count>& pack) {
    const auto weight = load<Count>(a.weight + at);
    Pack<T, Count> bias{};
    if (Centered && a.bias != nullptr) bias = load<Count>(a.bias + at);
    Pack<T, Count> out;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float normal = (widen(pack.at[i]) - mean) * rstd;
      out.at[i] = narrow<T>(Centered ? __fmaf_rn(normal, widen(weight.at[i]), widen(bias.at[i]))
                                     : normal * widen(weight.at[i]));
    }
    store(y + at, out);
  });
  if (lane == 0) {
    if (Centered) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <bool Centered>
void forward(const NormForward& norm, const char* what, Stream stream) {
  if (norm.rows == 0 || norm.width == 0) return;
  const bool wide = aligned_for_packs(norm.x, norm.residual, norm.sum, norm.weight, norm.bias, norm.y);
  with_packs(norm.type, what, norm.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    constexpr int each = decltype(count)::value;
    const Forward<T> a{norm.rows,
                       norm.width,
                       norm.eps,
                       static_cast<const T*>(norm.x),
                       static_cast<const T*>(norm.residual),
                       static_cast<T*>(norm.sum),
                       static_cast<const T*>(norm.weight),
                       static_cast<const T*>(norm.bias),
                       static_cast<T*>(norm.y),
                       norm.mean,
                       norm.rstd};
    const auto launch = [&](auto kernel, auto lanes) {
      constexpr int threads = forward_threads<decltype(lanes)::value>;
      constexpr int rows = threads / decltype(lanes)::value;
      kernel<<<static_cast<unsigned>((norm.rows + rows - 1) / rows), threads, 0, native(stream)>>>(a);
      check(cudaGetLastError(), what);
    };
    constexpr std::integral_constant<int, 32> warp;
    constexpr std::integral_constant<int, 128> narrow_block;
    constexpr std::integral_constant<int, 256> block;
    const std::int64_t packs = norm.width / each;
    if constexpr (each > 1) {
      if (packs <= 32 * 4) return launch(forward_kernel<Centered, T, each, warp, 4>, warp);
      if (packs <= 128 * 2) return launch(forward_kernel<Centered, T, each, narrow_block, 2>, narrow_block);
      if (packs <= 256 * 2) return launch(forward_kernel<Centered, T, each, block, 2>, block);
      if (packs <= 256 * 4) return launch(forward_kernel<Centered, T, each, block, 4>, block);
    }
    launch(forward_kernel<Centered, T, each, block, 0>, block);
  });
}

template <class T>
struct Backward {
  std::int64_t rows, width;
  const T *dy, *x, *weight;
  const float *mean, *rstd;
  const T* residual;
  T* dx;
  float* partial;  // [blocks, 2, width]: of the weight, of the bias
};

constexpr int backward_threads = 512;  // of a block, at most

// Threads on a multiprocessor: as many as registers are enough for, without one in memory.
template <bool Centered>
constexpr int backward_resident = Centered ? 768 : 1024;

// What was computed from these elements is computed again after this, not kept: elements take half the registers.
template <class T, int Count>
__device__ void keep_packed(Pack<T, Count>& pack) {
  auto* words = reinterpret_cast<std::uint32_t*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof pack / 4); ++i) asm volatile("" : "+r"(words[i]));
}

// The sums over a warp of `Sums` values: of the first in its first 32 / Sums lanes, and so on. As many values as lanes
// have to tell each other, not five times as many.
template <int Sums>
__device__ float warp_sums(float (&values)[Sums]) {
  int distance = 16;
#pragma unroll
  for (int left = Sums / 2; left > 0; left /= 2, distance /= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float other = __shfl_xor_sync(0xffffffffU, upper ? values[i] : values[i + left], distance);
      values[i] = (upper ? values[i + left] : values[i]) + other;
    }
  }
  for (; distance > 0; distance /= 2) values[0] += __shfl_xor_sync(0xffffffffU, values[0], distance);
  return values[0];
}

// dx = rstd (g - mean(g) - normal mean(g normal)), g = dy weight; RMSNorm has no mean(g).
template <bool Centered, class T, int Count, int Owned, int Rows>
__global__ void __launch_bounds__(Owned == 1 ? backward_resident<Centered> : backward_threads)
    backward_kernel(const Backward<T> a) {
  constexpr int kinds = Centered ? 2 : 1;  // of sums over a row: of g normal, of g
  constexpr int summed = kinds * Rows;
  __shared__ Pack<float, summed> sums[2][backward_threads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto packs = static_cast<int>(a.width / Count);
  const float share = 1.0F / static_cast<float>(a.width);
  const auto owns = [&](int k) { return static_cast<int>(threadIdx.x + k * blockDim.x) < packs; };
  const auto column = [&](int k) { return static_cast<int>(threadIdx.x + k * blockDim.x) * Count; };

  Pack<T, Count> weight[Owned];
  float dweight[Owned][Count];
  float dbias[Owned][Count];
#pragma unroll
  for (int k = 0; k < Owned; ++k) {
    weight[k] = {};
    if (owns(k)) weight[k] = load<Count>(a.weight + column(k));
#pragma unroll
    for (int i = 0; i < Count; ++i) dweight[k][i] = dbias[k][i] = 0.0F;
  }

  int turn = 0;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * Rows; first < a.rows;
       first += static_cast<std::int64_t>(gridDim.x) * Rows, turn ^= 1) {
    Pack<T, Count> dy[Rows][Owned];
    Pack<T, Count> x[Rows][Owned];
    Pack<T, Count> residual[Rows][Owned];
    float mean[Rows];
    float rstd[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const std::int64_t row = first + r;
      mean[r] = Centered && row < a.rows ? a.mean[row] : 0.0F;
      rstd[r] = row < a.rows ? a.rstd[row] : 0.0F;
#pragma unroll
      for (int k = 0; k < Owned; ++k) {
        dy[r][k] = x[r][k] = residual[r][k] = {};
        if (row < a.rows && owns(k)) {
          dy[r][k] = load<Count>(a.dy + row * a.width + column(k));
          x[r][k] = load<Count>(a.x + row * a.width + column(k));
          if (a.residual != nullptr) residual[r][k] = load<Count>(a.residual + row * a.width + column(k));
        }
      }
    }
    float own[summed] = {};
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int k = 0; k < Owned; ++k) {
        // A column past the row's end has x = 0, which isn't its mean; its dy and weight are 0.
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          const float d = widen(dy[r][k].at[i]);
          const float normal = (widen(x[r][k].at[i]) - mean[r]) * rstd[r];
          const float g = d * widen(weight[k].at[i]);
          dweight[k][i] = __fmaf_rn(d, normal, dweight[k][i]);
          own[kinds * r] = __fmaf_rn(g, normal, own[kinds * r]);
          if constexpr (Centered) {
            dbias[k][i] += d;
            own[kinds * r + 1] += g;
          }
        }
      }
    }
    const float of_warp = warp_sums(own);
    if (lane % (32 / summed) == 0) sums[turn][warp].at[lane / (32 / summed)] = of_warp;
#pragma unroll
    for (int k = 0; k < Owned; ++k) {
      keep_packed(weight[k]);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        keep_packed(dy[r][k]);
        keep_packed(x[r][k]);
      }
    }
    // One barrier a turn: who writes `sums` again has passed the next one, and so has read, as all others have.
    __syncthreads();
    Pack<float, summed> totals{};
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const auto part = sums[turn][w];
#pragma unroll
      for (int i = 0; i < summed; ++i) totals.at[i] += part.at[i];
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (first + r >= a.rows) break;
      const float weighted = totals.at[kinds * r] * share;
      const float plain = Centered ? totals.at[kinds * r + kinds - 1] * share : 0.0F;
#pragma unroll
      for (int k = 0; k < Owned; ++k) {
        if (!owns(k)) continue;
        Pack<T, Count> dx;
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          const float normal = (widen(x[r][k].at[i]) - mean[r]) * rstd[r];
          const float g = widen(dy[r][k].at[i]) * widen(weight[k].at[i]);
          const float inner = __fmaf_rn(-normal, weighted, g - plain);
          dx.at[i] = narrow<T>(__fmaf_rn(inner, rstd[r], widen(residual[r][k].at[i])));
        }
        store(a.dx + (first + r) * a.width + column(k), dx);
      }
    }
#pragma unroll
    for (int k = 0; k < Owned; ++k) keep_packed(weight[k]);
  }

  float* partial = a.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * a.width;
#pragma unroll
  for (int k = 0; k < Owned; ++k) {
    if (!owns(k)) continue;
    store_floats<Count>(partial + column(k), dweight[k]);
    if (Centered) store_floats<Count>(partial + a.width + column(k), dbias[k]);
  }
}

// Rows of any width and alignment: read twice, the sums of columns kept in memory.
constexpr int any_blocks = 264;
template <bool Centered, class T>
__global__ void __launch_bounds__(256) backward_any_kernel(const Backward<T> a) {
  const float share = 1.0F / static_cast<float>(a.width);
  float* dweight = a.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * a.width;
  float* dbias = dweight + a.width;
  for (std::int64_t i = threadIdx.x; i < 2 * a.width; i += 256) dweight[i] = 0.0F;
  __syncthreads();
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* dy = a.dy + row * a.width;
    const T* x = a.x + row * a.width;
    const float mean = Centered ? a.mean[row] : 0.0F;
    const float rstd = a.rstd[row];
    float plain = 0.0F;
    float weighted = 0.0F;
    for (std::int64_t i = threadIdx.x; i < a.width; i += 256) {
      const float d = widen(dy[i]);
      const float normal = (widen(x[i]) - mean) * rstd;
      const float g = d * widen(a.weight[i]);
      dweight[i] = __fmaf_rn(d, normal, dweight[i]);
      if (Centered) dbias[i] += d;
      if (Centered) plain += g;
      weighted = __fmaf_rn(g, normal, weighted);
    }
    if (Centered) plain = row_sum<256>(plain) * share;
    weighted = row_sum<256>(weighted) * share;
    for (std::int64_t i = threadIdx.x; i < a.width; i += 256) {
      const float normal = (widen(x[i]) - mean) * rstd;
      const float inner = __fmaf_rn(-normal, weighted, widen(dy[i]) * widen(a.weight[i]) - plain);
      const float past = a.residual == nullptr ? 0.0F : widen(a.residual[row * a.width + i]);
      a.dx[row * a.width + i] = narrow<T>(__fmaf_rn(inner, rstd, past));
    }
  }
}

template <bool Centered>
void backward(const NormBackward& norm, const char* what, Stream stream) {
  if (norm.width == 0) return;
  const bool wide = aligned_for_packs(norm.dy, norm.x, norm.weight, norm.residual, norm.dx);
  with_packs(norm.type, what, norm.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    constexpr int each = decltype(count)::value;
    const Backward<T> a{norm.rows,
                        norm.width,
                        static_cast<const T*>(norm.dy),
                        static_cast<const T*>(norm.x),
                        static_cast<const T*>(norm.weight),
                        norm.mean,
                        norm.rstd,
                        static_cast<const T*>(norm.residual),
                        static_cast<T*>(norm.dx),
                        norm.scratch};
    const std::int64_t packs = norm.width / each;
    std::int64_t blocks = any_blocks;
    if (norm.rows == 0) {
      blocks = 0;
    } else if (each == 1 || packs > 2 * backward_threads) {
      backward_any_kernel<Centered><<<any_blocks, 256, 0, native(stream)>>>(a);
    } else if constexpr (each > 1) {
      // Enough threads to keep the memory of a large GPU (132 multiprocessors) busy; not what the device at hand has,
      // since the number of blocks decides the order of the sums.
      const int owned = packs <= backward_threads ? 1 : 2;
      const auto threads = static_cast<int>(((packs + owned - 1) / owned + 31) / 32 * 32);
      blocks = 132 * (owned == 1 ? backward_resident<Centered> / threads : 2);
      if (owned == 1) {
        backward_kernel<Centered, T, each, 1, 2><<<static_cast<unsigned>(blocks), threads, 0, native(stream)>>>(a);
      } else {
        backward_kernel<Centered, T, each, 2, 1><<<static_cast<unsigned>(blocks), threads, 0, native(stream)>>>(a);
      }
    }
    check(cudaGetLastError(), what);
    finish_columns(norm.scratch, blocks, 2 * norm.width, norm.width, static_cast<T*>(norm.dweight),
                   Centered ? static_cast<T*>(norm.dbias) : nullptr, false, what, stream);
  });
}

}  // namespace

void layer_norm_forward(const NormForward& norm, Stream stream) {
  forward<true>(norm, "layer_norm_forward", stream);
}
void layer_norm_backward(const NormBackward& norm, Stream stream) {
  backward<true>(norm, "layer_norm_backward", stream);
}
void rms_norm_forward(const NormForward& norm, Stream stream) {
  forward<false>(norm, "rms_norm_forward", stream);
}
void rms_norm_backward(const NormBackward& norm, Stream stream) {
  backward<false>(norm, "rms_norm_backward", stream);
}

}  // namespace deepspeed::device::cuda
