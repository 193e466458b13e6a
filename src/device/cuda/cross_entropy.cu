// SPDX-License-Identifier: Apache-2.0
// A block has a row: greatest value and sum of exponentials in one pass (Milakov and Gimelshein 2018), the gradient in
// a second. Where two rows fit into a multiprocessor's shared memory, the second pass finds its logits there.
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int threads = 512;
constexpr int unroll = 4;

// The sum of exp(x - greatest) over some x.
struct Statistic {
  float greatest, sum;
};
// Of no x at all: below what a logit may be, yet finite, so that a logit of -infinity adds 0.
constexpr Statistic none{-1e30F, 0.0F};

// The difference comes first: equal values must give 1, or each merge would add to an error of great logits.
__device__ float exponential(float x, float greatest) {
  return power_of_two((x - greatest) * log2_e);
}

// Lanes that merge each other's get the same bits: nothing is fused.
__device__ Statistic merge(const Statistic& a, const Statistic& b) {
  const float greatest = fmaxf(a.greatest, b.greatest);
  return {greatest, __fadd_rn(__fmul_rn(a.sum, exponential(a.greatest, greatest)),
                              __fmul_rn(b.sum, exponential(b.greatest, greatest)))};
}

template <class T, int Count>
__device__ void add(Statistic& statistic, const Pack<T, Count>& pack) {
  float greatest = widen(pack.at[0]);
#pragma unroll
  for (int i = 1; i < Count; ++i) greatest = fmaxf(greatest, widen(pack.at[i]));
  if (greatest > statistic.greatest) {
    statistic.sum *= exponential(statistic.greatest, greatest);
    statistic.greatest = greatest;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) statistic.sum += exponential(widen(pack.at[i]), statistic.greatest);
}

template <class T, bool Staged>
__global__ void __launch_bounds__(threads) cross_entropy_kernel(const CrossEntropy c) {
  constexpr int count = 16 / sizeof(T);
  extern __shared__ uint4 shared[];
  auto* stage = reinterpret_cast<Pack<T, count>*>(shared);
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(c.logits) + row * c.stride;
  const std::int64_t target = c.targets[row];
  const std::int64_t filled = max(c.vocabulary, c.padded);
  if (target == c.ignored) {
    if (thread == 0) c.losses[row] = 0.0F;
    if (c.gradient) {
      for (std::int64_t i = thread; i < filled; i += threads) logits[i] = narrow<T>(0.0F);
    }
    return;
  }

  // A row may begin and end between the places of packs; what lies there goes to one element a thread.
  const auto vocabulary = static_cast<int>(c.vocabulary);
  const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(logits) % 16 / sizeof(T));
  const int head = min(vocabulary, (count - off) % count);
  const int packs = (vocabulary - head) / count;
  const int edges = vocabulary - packs * count;
  const int edge = thread < head ? thread : thread + packs * count;
  T* body = logits + head;

  Statistic statistic = none;
  int p = thread;
  for (; p + (unroll - 1) * threads < packs; p += unroll * threads) {
    Pack<T, count> pack[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) pack[u] = load<count>(body + (p + u * threads) * count);
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (Staged) stage[p + u * threads] = pack[u];
      add(statistic, pack[u]);
    }
  }
  for (; p < packs; p += threads) {
    const auto pack = load<count>(body + p * count);
    if (Staged) stage[p] = pack;
    add(statistic, pack);
  }
  float own_edge = 0.0F;
  if (thread < edges) {
    own_edge = widen(logits[edge]);
    add(statistic, Pack<float, 1>{{own_edge}});
  }
  const bool known = target >= 0 && target < c.vocabulary;
  float target_logit = 0.0F;
  if (thread == 0 && known) target_logit = widen(logits[target]);

  __shared__ Statistic warps[threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    statistic = merge(statistic, {__shfl_xor_sync(0xffffffffU, statistic.greatest, distance),
                                  __shfl_xor_sync(0xffffffffU, statistic.sum, distance)});
  }
  if (thread % 32 == 0) warps[thread / 32] = statistic;
  __syncthreads();
  statistic = warps[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; ++warp) statistic = merge(statistic, warps[warp]);
  if (thread == 0) c.losses[row] = known ? logf(statistic.sum) + (statistic.greatest - target_logit) : nanf("");
  if (!c.gradient) return;

  float scale = c.scale;
  if (c.device_scales[0] != nullptr) scale *= *c.device_scales[0];
  if (c.device_scales[1] != nullptr) scale *= *c.device_scales[1];
  const float share = scale / statistic.sum;
  // From the row's end, which is the likelier to be still in a cache where it isn't staged.
  for (p = thread < packs ? thread + (packs - 1 - thread) / threads * threads : -1; p >= 0; p -= threads) {
    const auto pack = Staged ? stage[p] : load<count>(body + p * count);
    Pack<T, count> out;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      out.at[i] = narrow<T>(exponential(widen(pack.at[i]), statistic.greatest) * share);
    }
    store(body + p * count, out);
  }
  if (thread < edges) logits[edge] = narrow<T>(exponential(own_edge, statistic.greatest) * share);
  for (std::int64_t i = c.vocabulary + thread; i < filled; i += threads) logits[i] = narrow<T>(0.0F);
  __syncthreads();
  if (thread == 0 && known) {
    logits[target] = narrow<T>(__fmaf_rn(exponential(target_logit, statistic.greatest), share, -scale));
  }
}

constexpr int sum_threads = 1024;

__global__ void __launch_bounds__(sum_threads)
    loss_sum_kernel(const float* losses, const std::int64_t* targets, std::int64_t rows, std::int64_t ignored,
                    LossSum* result) {
  double sum = 0.0;
  int count = 0;
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += sum_threads) {
    if (targets[row] == ignored) continue;
    ++count;
    if (losses != nullptr) sum += static_cast<double>(losses[row]);
  }
  __shared__ double sums[sum_threads / 32];
  __shared__ int counts[sum_threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    count += __shfl_xor_sync(0xffffffffU, count, distance);
  }
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
    counts[threadIdx.x / 32] = count;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  LossSum all{0.0, 0.0, 0.0F, 0.0F};
  for (int warp = 0; warp < sum_threads / 32; ++warp) {
    all.sum += sums[warp];
    all.count += counts[warp];
  }
  all.mean = losses == nullptr ? 0.0F : static_cast<float>(all.sum / all.count);
  all.reciprocal = all.count > 0.0 ? static_cast<float>(1.0 / all.count) : 0.0F;
  *result = all;
}

}  // namespace

void cross_entropy(const CrossEntropy& loss, Stream stream) {
  const char* what = "cross_entropy";
  if (loss.vocabulary < 1 || loss.vocabulary > std::int64_t{1} << 30 || loss.padded > loss.stride ||
      loss.vocabulary > loss.stride) {
    throw base::DeviceError("cross_entropy: a vocabulary of " + std::to_string(loss.vocabulary) + ", filled up to " +
                            std::to_string(loss.padded) + ", in rows of " + std::to_string(loss.stride) + " elements");
  }
  if (loss.rows == 0) return;
  with_floating(loss.type, what, [&](auto element) {
    using T = decltype(element);
    int device = 0;
    int whole = 0;
    check(cudaGetDevice(&device), what);
    check(cudaDeviceGetAttribute(&whole, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device), what);
    // Beside a block's own memory the system keeps 1 KB of it.
    const auto most = static_cast<std::size_t>(whole / 2 - 2048);
    const std::size_t bytes = (static_cast<std::size_t>(loss.vocabulary) * sizeof(T) + 15) / 16 * 16;
    const auto blocks = static_cast<unsigned>(loss.rows);
    if (loss.gradient && bytes <= most) {
      check(cudaFuncSetAttribute(cross_entropy_kernel<T, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(most)),
            what);
      cross_entropy_kernel<T, true><<<blocks, threads, bytes, native(stream)>>>(loss);
    } else {
      cross_entropy_kernel<T, false><<<blocks, threads, 0, native(stream)>>>(loss);
    }
    check(cudaGetLastError(), what);
  });
}

void loss_sum(const float* losses, const std::int64_t* targets, std::int64_t rows, std::int64_t ignored,
              LossSum* result, Stream stream) {
  loss_sum_kernel<<<1, sum_threads, 0, native(stream)>>>(losses, targets, rows, ignored, result);
  check(cudaGetLastError(), "loss_sum");
}

}  // namespace deepspeed::device::cuda
