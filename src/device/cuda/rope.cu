// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int most_threads = 256;
constexpr int together = 4;  // heads of a thread, which turn by the same angles

template <class T, int Count>
__global__ void __launch_bounds__(most_threads) rope_kernel(const __grid_constant__ Rope rope, int packs) {
  const auto item = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int first = item / packs * together;
  const int at = item % packs * Count;
  const auto token = static_cast<unsigned>(blockIdx.x * blockDim.y + threadIdx.y);
  const auto positions = static_cast<unsigned>(rope.positions);
  const auto queries = static_cast<int>(rope.q.heads);
  const int heads = queries + static_cast<int>(rope.k.heads);
  if (token >= static_cast<unsigned>(rope.batch) * positions || first >= heads) return;
  const std::int64_t sample = token / positions;
  const std::int64_t position = token % positions;
  const std::int64_t half = rope.head_dim / 2;

  T* place[together];
  Pack<T, Count> a[together];
  Pack<T, Count> b[together];
#pragma unroll
  for (int u = 0; u < together; ++u) {
    // Past the last head the last one is read once more, and not written.
    const int head = min(first + u, heads - 1);
    const Rope::Heads& of = head < queries ? rope.q : rope.k;
    place[u] = static_cast<T*>(of.data) + sample * of.batch_stride + position * of.position_stride +
               (head < queries ? head : head - queries) * of.head_stride + at;
    a[u] = load<Count>(place[u]);
    b[u] = load<Count>(place[u] + half);
  }
  const auto cosine = load_floats<Count>(rope.cosine + position * half + at);
  auto sine = load_floats<Count>(rope.sine + position * half + at);
#pragma unroll
  for (int i = 0; i < Count; ++i) sine.at[i] = rope.backward ? -sine.at[i] : sine.at[i];
#pragma unroll
  for (int u = 0; u < together; ++u) {
    if (first + u >= heads) break;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float x = widen(a[u].at[i]);
      const float y = widen(b[u].at[i]);
      a[u].at[i] = narrow<T>(x * cosine.at[i] - y * sine.at[i]);
      b[u].at[i] = narrow<T>(y * cosine.at[i] + x * sine.at[i]);
    }
    store(place[u], a[u]);
    store(place[u] + half, b[u]);
  }
}

}  // namespace

void rope(const Rope& rope, Stream stream) {
  const char* what = "rope";
  if (rope.head_dim % 2 != 0) throw base::DeviceError("rope: a head of odd size has no pairs");
  if (rope.batch * rope.positions >= std::int64_t{1} << 31) {
    throw base::DeviceError("rope: 2^31 positions and more in one call");
  }
  const std::int64_t half = rope.head_dim / 2;
  const std::int64_t tokens = rope.batch * rope.positions;
  const std::int64_t heads = rope.q.heads + rope.k.heads;
  if (tokens == 0 || heads == 0 || half == 0) return;
  bool wide = aligned_for_packs(rope.cosine, rope.sine);
  for (const Rope::Heads* each : {&rope.q, &rope.k}) {
    if (each->heads == 0) continue;
    wide = wide && aligned_for_packs(each->data) && each->batch_stride % 8 == 0 && each->position_stride % 8 == 0 &&
           each->head_stride % 8 == 0;
  }
  with_packs(rope.type, what, half, wide, [&](auto element, auto count) {
    using T = decltype(element);
    constexpr int each = decltype(count)::value;
    const std::int64_t packs = half / each;
    const std::int64_t items = (heads + together - 1) / together * packs;
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>(most_threads, items));
    const unsigned deep = most_threads / threads;
    const dim3 blocks(static_cast<unsigned>((tokens + deep - 1) / deep),
                      static_cast<unsigned>((items + threads - 1) / threads));
    rope_kernel<T, each><<<blocks, dim3(threads, deep), 0, native(stream)>>>(rope, static_cast<int>(packs));
    check(cudaGetLastError(), what);
  });
}

}  // namespace deepspeed::device::cuda
