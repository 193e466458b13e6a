// SPDX-License-Identifier: Apache-2.0
// Places sorted by id (the sort is stable) make runs of equal ids. The sorted places are cut into chunks; a block sums
// the runs of its chunk, and writes those that lie within it to the table. Of a run that crosses chunks each leaves its
// part, at most two a chunk, and the chunk in which the run begins sums them in order.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int chunk_size = 32;
constexpr int ahead = 8;  // rows on their way at a time

std::size_t rounded(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::size_t sort_bytes(std::int64_t count) {
  std::size_t bytes = 0;
  const std::uint32_t* in = nullptr;
  std::uint32_t* out = nullptr;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, in, out, in, out, static_cast<int>(count)),
        "embedding_scratch");
  return bytes;
}

__global__ void __launch_bounds__(256) keys_kernel(const std::int64_t* ids, std::int64_t count, std::int64_t vocabulary,
                                                   std::uint32_t* keys, std::uint32_t* places) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= count) return;
  const std::int64_t id = ids[i];
  // What is in no row of the table sorts behind all that is.
  keys[i] = static_cast<std::uint32_t>(id >= 0 && id < vocabulary ? id : vocabulary);
  places[i] = static_cast<std::uint32_t>(i);
}

template <class T>
struct Runs {
  std::int64_t count, width;
  std::uint32_t vocabulary;
  const std::uint32_t *keys, *places;  // sorted
  const T* dy;
  T* dtable;
  bool accumulate;
  float* partial;  // [chunks, 2, width]: of the run that comes from the chunk before, of the one that only goes on
};

template <int Count, class T>
__device__ void write(const Runs<T>& a, std::uint32_t key, std::int64_t at, const float* sum) {
  if (key >= a.vocabulary) return;
  T* to = a.dtable + key * a.width + at;
  Pack<T, Count> out{};
  if (a.accumulate) out = load<Count>(to);
#pragma unroll
  for (int i = 0; i < Count; ++i) out.at[i] = narrow<T>(a.accumulate ? widen(out.at[i]) + sum[i] : sum[i]);
  store(to, out);
}

template <class T, int Count>
__global__ void __launch_bounds__(256) chunk_kernel(const Runs<T> a) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * Count;
  if (at >= a.width) return;
  const std::int64_t chunk = blockIdx.x;
  const std::int64_t begin = chunk * chunk_size;
  const std::int64_t end = min(begin + chunk_size, a.count);
  bool begins_here = begin == 0 || a.keys[begin - 1] != a.keys[begin];
  float sum[Count] = {};
  for (std::int64_t first = begin; first < end; first += ahead) {
    Pack<T, Count> dy[ahead];
    std::uint32_t key[ahead];
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      if (first + u >= end) break;
      key[u] = a.keys[first + u];
      dy[u] = load<Count>(a.dy + a.places[first + u] * a.width + at);
    }
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      const std::int64_t i = first + u;
      if (i >= end) break;
#pragma unroll
      for (int k = 0; k < Count; ++k) sum[k] += widen(dy[u].at[k]);
      const bool ends = i + 1 == a.count || a.keys[i + 1] != key[u];
      if (!ends && i + 1 < end) continue;
      if (begins_here && ends) {
        write<Count>(a, key[u], at, sum);
      } else {
        // A run that neither begins nor ends here is one that comes from the chunk before.
        store_floats<Count>(a.partial + (2 * chunk + (begins_here ? 1 : 0)) * a.width + at, sum);
      }
      begins_here = true;
#pragma unroll
      for (int k = 0; k < Count; ++k) sum[k] = 0.0F;
    }
  }
}

template <class T, int Count>
__global__ void __launch_bounds__(256) crossing_kernel(const Runs<T> a) {
  const std::int64_t chunk = blockIdx.x;
  const std::int64_t begin = chunk * chunk_size;
  const std::int64_t end = min(begin + chunk_size, a.count);
  if (end == a.count) return;
  const std::uint32_t key = a.keys[end - 1];
  if (key >= a.vocabulary || a.keys[end] != key) return;
  if (a.keys[begin] == key && begin > 0 && a.keys[begin - 1] == key) return;
  // The first place behind the run.
  std::int64_t low = end + 1;
  std::int64_t high = a.count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (a.keys[middle] == key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const std::int64_t last = (low - 1) / chunk_size;
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * Count;
  if (at >= a.width) return;
  auto sum = load_floats<Count>(a.partial + (2 * chunk + 1) * a.width + at);
#pragma unroll 8
  for (std::int64_t next = chunk + 1; next <= last; ++next) {
    const auto part = load_floats<Count>(a.partial + 2 * next * a.width + at);
#pragma unroll
    for (int k = 0; k < Count; ++k) sum.at[k] += part.at[k];
  }
  write<Count>(a, key, at, sum.at);
}

}  // namespace

std::size_t embedding_scratch(std::int64_t count, std::int64_t width) {
  const auto n = static_cast<std::size_t>(count);
  const std::size_t chunks = (n + chunk_size - 1) / chunk_size;
  return 4 * rounded(n * sizeof(std::uint32_t)) +
         rounded(chunks * 2 * static_cast<std::size_t>(width) * sizeof(float)) + rounded(sort_bytes(count));
}

void embedding_backward(const EmbeddingBackward& embedding, Stream stream) {
  const char* what = "embedding_backward";
  const std::int64_t limit = std::int64_t{1} << 31;
  if (embedding.count >= limit || embedding.vocabulary >= limit - 1) {
    throw base::DeviceError("embedding_backward: counts of ids and rows must stay below 2^31");
  }
  if (!embedding.accumulate) {
    check(cudaMemsetAsync(
              embedding.dtable, 0,
              static_cast<std::size_t>(embedding.vocabulary * embedding.width) * base::size_of(embedding.type),
              native(stream)),
          what);
  }
  if (embedding.count == 0 || embedding.width == 0 || embedding.vocabulary == 0) return;
  const auto n = static_cast<std::size_t>(embedding.count);
  const auto chunks = static_cast<unsigned>((n + chunk_size - 1) / chunk_size);
  auto* next = static_cast<char*>(embedding.scratch);
  const auto take = [&](std::size_t bytes) {
    void* taken = next;
    next += rounded(bytes);
    return taken;
  };
  auto* keys = static_cast<std::uint32_t*>(take(n * sizeof(std::uint32_t)));
  auto* places = static_cast<std::uint32_t*>(take(n * sizeof(std::uint32_t)));
  auto* sorted_keys = static_cast<std::uint32_t*>(take(n * sizeof(std::uint32_t)));
  auto* sorted_places = static_cast<std::uint32_t*>(take(n * sizeof(std::uint32_t)));
  auto* partial =
      static_cast<float*>(take(std::size_t{chunks} * 2 * static_cast<std::size_t>(embedding.width) * sizeof(float)));
  keys_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, native(stream)>>>(embedding.ids, embedding.count,
                                                                                  embedding.vocabulary, keys, places);
  check(cudaGetLastError(), what);
  int bits = 1;
  while (embedding.vocabulary >> bits != 0) ++bits;
  std::size_t bytes = sort_bytes(embedding.count);
  check(cub::DeviceRadixSort::SortPairs(next, bytes, keys, sorted_keys, places, sorted_places, static_cast<int>(n), 0,
                                        bits, native(stream)),
        what);

  const bool wide = aligned_for_packs(embedding.dy, embedding.dtable);
  with_packs(embedding.type, what, embedding.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    constexpr int each = decltype(count)::value;
    const Runs<T> runs{embedding.count,
                       embedding.width,
                       static_cast<std::uint32_t>(embedding.vocabulary),
                       sorted_keys,
                       sorted_places,
                       static_cast<const T*>(embedding.dy),
                       static_cast<T*>(embedding.dtable),
                       embedding.accumulate,
                       partial};
    const std::int64_t packs = embedding.width / each;
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>(256, (packs + 31) / 32 * 32));
    const dim3 blocks(chunks, static_cast<unsigned>((packs + threads - 1) / threads));
    chunk_kernel<T, each><<<blocks, threads, 0, native(stream)>>>(runs);
    check(cudaGetLastError(), what);
    crossing_kernel<T, each><<<blocks, threads, 0, native(stream)>>>(runs);
    check(cudaGetLastError(), what);
  });
}

}  // namespace deepspeed::device::cuda
