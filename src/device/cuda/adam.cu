// SPDX-License-Identifier: Apache-2.0
// Compiled with -fmad=false: the only fused operations are the ones written here, as in the host kernel.
#include <algorithm>
#include <cmath>

#include "cuda/check.cuh"
#include "cuda/elements.cuh"

namespace deepspeed::device::cuda {
namespace {

constexpr int threads = 256;
constexpr int block_elements = threads * 16;
// As many pieces as fit, with the rest, in the 4 KB of arguments that every GPU takes.
constexpr int launch_pieces = 64;

struct Pieces {
  AdamPiece piece[launch_pieces];
  int first_block[launch_pieces + 1];
  int count;
};

// As the host kernel has them: each formed in double and rounded once.
struct Coefficients {
  float gradient_scale;
  float beta1, alpha1;  // m = beta1 m + alpha1 g
  float beta2, alpha2;  // v = beta2 v + alpha2 g^2
  float eps;
  float root_scale;     // 1 / sqrt(1 - beta2^t)
  float l2;             // weight decay added to the gradient
  float decay;          // p += decay p
  float negative_rate;  // -lr / (1 - beta1^t)
  bool decoupled;
  const float* device_gradient_scale;
  const std::uint32_t* skip;
};

__device__ void update(float& p, float g, float& m, float& v, const Coefficients& c) {
  if (!c.decoupled) g = __fmaf_rn(c.l2, p, g);
  m = __fmaf_rn(c.alpha1, g, c.beta1 * m);
  v = __fmaf_rn(c.alpha2, g * g, c.beta2 * v);
  const float direction = __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), c.root_scale, c.eps));
  const float start = c.decoupled ? __fmaf_rn(c.decay, p, p) : p;
  p = __fmaf_rn(c.negative_rate, direction, start);
}

template <class Gradient, class Working>
__global__ void __launch_bounds__(threads) adam_kernel(const __grid_constant__ Pieces pieces, const Coefficients c) {
  if (c.skip != nullptr && *c.skip != 0) return;
  const int block = static_cast<int>(blockIdx.x);
  int index = 0;
  while (block >= pieces.first_block[index + 1]) ++index;
  const AdamPiece& piece = pieces.piece[index];
  const auto* gradient = static_cast<const Gradient*>(piece.gradient);
  auto* working = static_cast<Working*>(piece.working);
  const float scale =
      c.device_gradient_scale == nullptr ? c.gradient_scale : c.gradient_scale * *c.device_gradient_scale;

  const std::int64_t begin = static_cast<std::int64_t>(block - pieces.first_block[index]) * block_elements;
  const std::int64_t end = min(begin + block_elements, piece.numel);
  const bool fours = aligned_for_four(piece.master) && aligned_for_four(gradient) && aligned_for_four(piece.exp_avg) &&
                     aligned_for_four(piece.exp_avg_sq) && aligned_for_four(working);
  std::int64_t tail = begin;
  if (fours) {
    tail = begin + (end - begin) / 4 * 4;
    for (std::int64_t i = begin + 4 * threadIdx.x; i < tail; i += 4 * threads) {
      auto p = *reinterpret_cast<const Four<float>*>(piece.master + i);
      auto m = *reinterpret_cast<const Four<float>*>(piece.exp_avg + i);
      auto v = *reinterpret_cast<const Four<float>*>(piece.exp_avg_sq + i);
      const auto g = *reinterpret_cast<const Four<Gradient>*>(gradient + i);
      Four<Working> w;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        update(p.at[k], widen(g.at[k]) * scale, m.at[k], v.at[k], c);
        w.at[k] = narrow<Working>(p.at[k]);
      }
      *reinterpret_cast<Four<float>*>(piece.master + i) = p;
      *reinterpret_cast<Four<float>*>(piece.exp_avg + i) = m;
      *reinterpret_cast<Four<float>*>(piece.exp_avg_sq + i) = v;
      if (working != nullptr) *reinterpret_cast<Four<Working>*>(working + i) = w;
    }
  }
  for (std::int64_t i = tail + threadIdx.x; i < end; i += threads) {
    float p = piece.master[i];
    float m = piece.exp_avg[i];
    float v = piece.exp_avg_sq[i];
    update(p, widen(gradient[i]) * scale, m, v, c);
    piece.master[i] = p;
    piece.exp_avg[i] = m;
    piece.exp_avg_sq[i] = v;
    if (working != nullptr) working[i] = narrow<Working>(p);
  }
}

}  // namespace

void adam(const AdamPiece* pieces, std::size_t count, const AdamStep& step, Stream stream) {
  const auto t = static_cast<double>(step.step);
  const double correction1 = step.bias_correction ? 1.0 - std::pow(step.beta1, t) : 1.0;
  const double correction2 = step.bias_correction ? 1.0 - std::pow(step.beta2, t) : 1.0;
  Coefficients c{};
  c.gradient_scale = step.gradient_scale;
  c.beta1 = static_cast<float>(step.beta1);
  c.alpha1 = static_cast<float>(1.0 - step.beta1);
  c.beta2 = static_cast<float>(step.beta2);
  c.alpha2 = static_cast<float>(1.0 - step.beta2);
  c.eps = static_cast<float>(step.eps);
  c.root_scale = static_cast<float>(1.0 / std::sqrt(correction2));
  c.l2 = static_cast<float>(step.weight_decay);
  c.decay = static_cast<float>(-step.lr * step.weight_decay);
  c.negative_rate = static_cast<float>(-step.lr / correction1);
  c.decoupled = step.decoupled;
  c.device_gradient_scale = step.device_gradient_scale;
  c.skip = step.skip;

  with_floating(step.gradient_type, "adam's gradient", [&](auto gradient) {
    with_floating(step.working_type, "adam's working copy", [&](auto working) {
      for (std::size_t next = 0; next < count;) {
        Pieces launch{};
        int blocks = 0;
        for (; next < count && launch.count < launch_pieces; ++next) {
          if (pieces[next].numel == 0) continue;
          launch.piece[launch.count] = pieces[next];
          blocks += static_cast<int>((pieces[next].numel + block_elements - 1) / block_elements);
          launch.first_block[++launch.count] = blocks;
        }
        if (blocks == 0) continue;
        adam_kernel<decltype(gradient), decltype(working)><<<blocks, threads, 0, native(stream)>>>(launch, c);
        check(cudaGetLastError(), "adam");
      }
    });
  });
}

}  // namespace deepspeed::device::cuda
