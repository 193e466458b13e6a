// SPDX-License-Identifier: Apache-2.0
// Passes over rows in which a thread keeps to its columns: what belongs to a column (a bias) is read once, and what is
// summed over rows stays in registers.
#include "cuda/columns.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int tile_packs = 32;  // columns of a block, in packs
constexpr int tile_rows = 8;    // rows that a block reads at once, before unrolling

// Where the sums over rows go: to `sums` if one block has all rows of a column, else to partial [parts, width].
template <class T>
struct Sums {
  T* sums = nullptr;
  bool accumulate = false;
  float* partial = nullptr;
};

// Pass: `column(pack)` reads what belongs to columns, `read(row, pack)` what belongs to an element, `apply(row, pack,
// column, data, sums)` does the work.
template <class Pass>
__global__ void __launch_bounds__(tile_packs* tile_rows)
    pass_kernel(const Pass pass, std::int64_t rows, std::int64_t width, std::int64_t rows_a_part, unsigned chunks,
                const Sums<typename Pass::T> to) {
  using T = typename Pass::T;
  constexpr int count = Pass::count;
  constexpr int unroll = Pass::unroll;
  const std::int64_t chunk = blockIdx.x % chunks;
  const std::int64_t part = blockIdx.x / chunks;
  const std::int64_t at = (chunk * tile_packs + threadIdx.x) * count;
  const std::int64_t end = min((part + 1) * rows_a_part, rows);
  float sums[count] = {};
  if (at < width) {
    const auto column = pass.column(at);
    std::int64_t row = part * rows_a_part + threadIdx.y;
    for (; row + (unroll - 1) * tile_rows < end; row += unroll * tile_rows) {
      typename Pass::Data data[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) data[u] = pass.read(row + u * tile_rows, at);
#pragma unroll
      for (int u = 0; u < unroll; ++u) pass.apply(row + u * tile_rows, at, column, data[u], sums);
    }
    for (; row < end; row += tile_rows) pass.apply(row, at, column, pass.read(row, at), sums);
  }
  if constexpr (Pass::summed) {
    __shared__ float rest[tile_rows][tile_packs * count];
#pragma unroll
    for (int i = 0; i < count; ++i) rest[threadIdx.y][threadIdx.x * count + i] = sums[i];
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.y * tile_packs + threadIdx.x);
    const std::int64_t mine = chunk * tile_packs * count + thread;
    if (thread >= tile_packs * count || mine >= width) return;
    float sum = 0.0F;
#pragma unroll
    for (int y = 0; y < tile_rows; ++y) sum += rest[y][thread];
    if (to.partial != nullptr) {
      to.partial[part * width + mine] = sum;
    } else {
      to.sums[mine] = narrow<T>(to.accumulate ? widen(to.sums[mine]) + sum : sum);
    }
  }
}

template <class Pass>
unsigned chunks_of(std::int64_t width) {
  return static_cast<unsigned>((width + tile_packs * Pass::count - 1) / (tile_packs * Pass::count));
}

// An element-wise pass.
template <class Pass>
void run(const Pass& pass, std::int64_t rows, std::int64_t width, const char* what, Stream stream) {
  if (rows == 0 || width == 0) return;
  constexpr std::int64_t rows_a_part = tile_rows * Pass::unroll;
  const unsigned chunks = chunks_of<Pass>(width);
  const auto blocks = static_cast<unsigned>((rows + rows_a_part - 1) / rows_a_part * chunks);
  pass_kernel<<<blocks, dim3(tile_packs, tile_rows), 0, native(stream)>>>(pass, rows, width, rows_a_part, chunks,
                                                                          Sums<typename Pass::T>{});
  check(cudaGetLastError(), what);
}

// A pass with sums over rows. About 2048 blocks, whatever the device: their number decides the order of the sums.
template <class Pass>
void run_summed(const Pass& pass, std::int64_t rows, std::int64_t width, void* sums, bool accumulate, float* scratch,
                const char* what, Stream stream) {
  using T = typename Pass::T;
  if (width == 0) return;
  const unsigned chunks = chunks_of<Pass>(width);
  constexpr std::int64_t step = tile_rows * Pass::unroll;
  const std::int64_t steps = std::max<std::int64_t>(1, (rows + step - 1) / step);
  const std::int64_t wanted = std::clamp<std::int64_t>(2048 / chunks, 1, steps);
  const std::int64_t rows_a_part = (steps + wanted - 1) / wanted * step;
  const std::int64_t parts = std::max<std::int64_t>(1, (rows + rows_a_part - 1) / rows_a_part);
  const Sums<T> to{static_cast<T*>(sums), accumulate, parts == 1 ? nullptr : scratch};
  pass_kernel<<<static_cast<unsigned>(parts * chunks), dim3(tile_packs, tile_rows), 0, native(stream)>>>(
      pass, rows, width, rows_a_part, chunks, to);
  check(cudaGetLastError(), what);
  if (parts > 1) {
    finish_columns(scratch, parts, width, width, to.sums, static_cast<T*>(nullptr), accumulate, what, stream);
  }
}

struct Nothing {};

// 1 / (1 + 2^-x); 0 and 1 far out.
__device__ float base_two_sigmoid(float x) {
  return reciprocal(1.0F + power_of_two(-x));
}

// 0.5 (1 + tanh(u)) = sigmoid(2 u), with 2 u = slope (x + cube x^3).
constexpr float gelu_slope = 1.5957691216057308F;
constexpr float gelu_cube = 0.044715F;

__device__ float gelu(float x) {
  return x * base_two_sigmoid(gelu_slope * log2_e * x * __fmaf_rn(gelu_cube * x, x, 1.0F));
}

__device__ float gelu_derivative(float x) {
  // Where the square is cut off the derivative is 0 or 1 in fp32, and stays so: no infinity meets a 0.
  const float square = fminf(x * x, 1e6F);
  const float s = base_two_sigmoid(gelu_slope * log2_e * x * __fmaf_rn(gelu_cube, square, 1.0F));
  const float slope = gelu_slope * x * __fmaf_rn(3.0F * gelu_cube, square, 1.0F);
  return __fmaf_rn(s * (1.0F - s), slope, s);
}

template <class Element, int Count>
struct GeluForwardPass {
  using T = Element;
  using Data = Pack<T, Count>;
  static constexpr int unroll = 4;
  static constexpr int count = Count;
  static constexpr bool summed = false;
  std::int64_t width;
  const T *x, *bias;
  T* y;
  __device__ Data column(std::int64_t at) const { return bias == nullptr ? Data{} : load<Count>(bias + at); }
  __device__ Data read(std::int64_t row, std::int64_t at) const { return load<Count>(x + row * width + at); }
  __device__ void apply(std::int64_t row, std::int64_t at, const Data& b, const Data& d, float*) const {
    Data out;
#pragma unroll
    for (int i = 0; i < Count; ++i) out.at[i] = narrow<T>(gelu(widen(d.at[i]) + widen(b.at[i])));
    store(y + row * width + at, out);
  }
};

template <class Element, int Count, bool Summed>
struct GeluBackwardPass {
  using T = Element;
  struct Data {
    Pack<T, Count> x, dy;
  };
  static constexpr int unroll = 4;
  static constexpr int count = Count;
  static constexpr bool summed = Summed;
  std::int64_t width;
  const T *dy, *x, *bias;
  T* dx;
  __device__ Pack<T, Count> column(std::int64_t at) const {
    return bias == nullptr ? Pack<T, Count>{} : load<Count>(bias + at);
  }
  __device__ Data read(std::int64_t row, std::int64_t at) const {
    return {load<Count>(x + row * width + at), load<Count>(dy + row * width + at)};
  }
  __device__ void apply(std::int64_t row, std::int64_t at, const Pack<T, Count>& b, const Data& d, float* sums) const {
    Pack<T, Count> out;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float gradient = widen(d.dy.at[i]) * gelu_derivative(widen(d.x.at[i]) + widen(b.at[i]));
      if (Summed) sums[i] += gradient;
      out.at[i] = narrow<T>(gradient);
    }
    store(dx + row * width + at, out);
  }
};

template <class Element, int Count>
struct ColumnSumPass {
  using T = Element;
  using Data = Pack<T, Count>;
  static constexpr int unroll = 8;
  static constexpr int count = Count;
  static constexpr bool summed = true;
  std::int64_t width;
  const T* x;
  __device__ Nothing column(std::int64_t) const { return {}; }
  __device__ Data read(std::int64_t row, std::int64_t at) const { return load<Count>(x + row * width + at); }
  __device__ void apply(std::int64_t, std::int64_t, Nothing, const Data& d, float* sums) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) sums[i] += widen(d.at[i]);
  }
};

template <class Element, int Count>
struct SwigluForwardPass {
  using T = Element;
  struct Data {
    Pack<T, Count> gate, up;
  };
  static constexpr int unroll = 4;
  static constexpr int count = Count;
  static constexpr bool summed = false;
  std::int64_t width, stride;
  const T *gate, *up;
  T* y;
  __device__ Nothing column(std::int64_t) const { return {}; }
  __device__ Data read(std::int64_t row, std::int64_t at) const {
    return {load<Count>(gate + row * stride + at), load<Count>(up + row * stride + at)};
  }
  __device__ void apply(std::int64_t row, std::int64_t at, Nothing, const Data& d, float*) const {
    Pack<T, Count> out;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float g = widen(d.gate.at[i]);
      out.at[i] = narrow<T>(g * base_two_sigmoid(g * log2_e) * widen(d.up.at[i]));
    }
    store(y + row * width + at, out);
  }
};

template <class Element, int Count>
struct SwigluBackwardPass {
  using T = Element;
  struct Data {
    Pack<T, Count> gate, up, dy;
  };
  static constexpr int unroll = 4;
  static constexpr int count = Count;
  static constexpr bool summed = false;
  std::int64_t width, stride;
  const T *dy, *gate, *up;
  T *dgate, *dup;
  __device__ Nothing column(std::int64_t) const { return {}; }
  __device__ Data read(std::int64_t row, std::int64_t at) const {
    return {load<Count>(gate + row * stride + at), load<Count>(up + row * stride + at),
            load<Count>(dy + row * width + at)};
  }
  __device__ void apply(std::int64_t row, std::int64_t at, Nothing, const Data& d, float*) const {
    Pack<T, Count> first;
    Pack<T, Count> second;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float g = widen(d.gate.at[i]);
      const float s = base_two_sigmoid(g * log2_e);
      const float silu = g * s;
      const float gradient = widen(d.dy.at[i]);
      // d silu = s (1 + g (1 - s))
      first.at[i] = narrow<T>(gradient * widen(d.up.at[i]) * __fmaf_rn(silu, 1.0F - s, s));
      second.at[i] = narrow<T>(gradient * silu);
    }
    store(dgate + row * stride + at, first);
    store(dup + row * stride + at, second);
  }
};

}  // namespace

void gelu_forward(const GeluForward& gelu, Stream stream) {
  const char* what = "gelu_forward";
  const bool wide = aligned_for_packs(gelu.x, gelu.bias, gelu.y);
  with_packs(gelu.type, what, gelu.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    run(GeluForwardPass<T, decltype(count)::value>{gelu.width, static_cast<const T*>(gelu.x),
                                                   static_cast<const T*>(gelu.bias), static_cast<T*>(gelu.y)},
        gelu.rows, gelu.width, what, stream);
  });
}

void gelu_backward(const GeluBackward& gelu, Stream stream) {
  const char* what = "gelu_backward";
  const bool wide = aligned_for_packs(gelu.dy, gelu.x, gelu.bias, gelu.dx);
  with_packs(gelu.type, what, gelu.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    constexpr int each = decltype(count)::value;
    const auto* dy = static_cast<const T*>(gelu.dy);
    const auto* x = static_cast<const T*>(gelu.x);
    const auto* bias = static_cast<const T*>(gelu.bias);
    auto* dx = static_cast<T*>(gelu.dx);
    if (gelu.dbias == nullptr) {
      run(GeluBackwardPass<T, each, false>{gelu.width, dy, x, bias, dx}, gelu.rows, gelu.width, what, stream);
    } else {
      run_summed(GeluBackwardPass<T, each, true>{gelu.width, dy, x, bias, dx}, gelu.rows, gelu.width, gelu.dbias, false,
                 gelu.scratch, what, stream);
    }
  });
}

void column_sum(const ColumnSum& sum, Stream stream) {
  const char* what = "column_sum";
  with_packs(sum.type, what, sum.width, aligned_for_packs(sum.x), [&](auto element, auto count) {
    using T = decltype(element);
    run_summed(ColumnSumPass<T, decltype(count)::value>{sum.width, static_cast<const T*>(sum.x)}, sum.rows, sum.width,
               sum.sums, sum.accumulate, sum.scratch, what, stream);
  });
}

void swiglu_forward(const SwigluForward& swiglu, Stream stream) {
  const char* what = "swiglu_forward";
  const bool wide = aligned_for_packs(swiglu.gate, swiglu.up, swiglu.y) && swiglu.stride % 8 == 0;
  with_packs(swiglu.type, what, swiglu.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    run(SwigluForwardPass<T, decltype(count)::value>{swiglu.width, swiglu.stride, static_cast<const T*>(swiglu.gate),
                                                     static_cast<const T*>(swiglu.up), static_cast<T*>(swiglu.y)},
        swiglu.rows, swiglu.width, what, stream);
  });
}

void swiglu_backward(const SwigluBackward& swiglu, Stream stream) {
  const char* what = "swiglu_backward";
  const bool wide =
      aligned_for_packs(swiglu.dy, swiglu.gate, swiglu.up, swiglu.dgate, swiglu.dup) && swiglu.stride % 8 == 0;
  with_packs(swiglu.type, what, swiglu.width, wide, [&](auto element, auto count) {
    using T = decltype(element);
    run(SwigluBackwardPass<T, decltype(count)::value>{swiglu.width, swiglu.stride, static_cast<const T*>(swiglu.dy),
                                                      static_cast<const T*>(swiglu.gate),
                                                      static_cast<const T*>(swiglu.up), static_cast<T*>(swiglu.dgate),
                                                      static_cast<T*>(swiglu.dup)},
        swiglu.rows, swiglu.width, what, stream);
  });
}

}  // namespace deepspeed::device::cuda
