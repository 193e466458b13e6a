// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int threads = 256;

template <class In, class Out>
__global__ void __launch_bounds__(threads) cast_kernel(const In* input, Out* output, std::int64_t numel, float scale) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  std::int64_t tail = 0;
  if (aligned_for_four(input) && aligned_for_four(output)) {
    for (std::int64_t i = first; i < numel / 4; i += stride) {
      const Four<In> in = reinterpret_cast<const Four<In>*>(input)[i];
      Four<Out> out;
#pragma unroll
      for (int k = 0; k < 4; ++k) out.at[k] = narrow<Out>(widen(in.at[k]) * scale);
      reinterpret_cast<Four<Out>*>(output)[i] = out;
    }
    tail = numel / 4 * 4;
  }
  for (std::int64_t i = tail + first; i < numel; i += stride) output[i] = narrow<Out>(widen(input[i]) * scale);
}

}  // namespace

void cast(ConstBuffer input, Buffer output, float scale, Stream stream) {
  if (input.numel != output.numel) throw base::DeviceError("cast: input and output differ in length");
  if (input.numel == 0) return;
  with_floating(input.type, "cast's input", [&](auto in) {
    with_floating(output.type, "cast's output", [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      const std::int64_t wanted = (input.numel + 4 * threads - 1) / (4 * threads);
      const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(wanted, 1 << 20));
      cast_kernel<In, Out><<<blocks, threads, 0, native(stream)>>>(static_cast<const In*>(input.data),
                                                                   static_cast<Out*>(output.data), input.numel, scale);
      check(cudaGetLastError(), "cast");
    });
  });
}

}  // namespace deepspeed::device::cuda
