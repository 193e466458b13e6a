// SPDX-License-Identifier: Apache-2.0
// Compiled once for each instruction set, with DS_LOOPS naming the table. Every operation is written out (fma where a
// fused one is meant, contraction off) and no loop carries a value between elements, so an element's bits depend
// neither on the instruction set nor on where a chunk begins.
#include "kernels/host_loops.h"

namespace deepspeed::kernels {
namespace {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
inline float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

inline float widen(float x) {
  return x;
}
inline float widen(Bfloat x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}
inline float widen(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // A subnormal half is a small integer times 2^-24; no subnormal float arises, so a flush-to-zero mode can't bite.
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t value = magnitude < 0x400u ? subnormal : (magnitude >= 0x7c00u ? special : normal);
  return float_of(value | ((x.bits & 0x8000u) << 16));
}

inline void narrow(float& to, float x) {
  to = x;
}
inline void narrow(Bfloat& to, float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  to.bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
inline void narrow(Half& to, float x) {
  const uint32_t u = bits_of(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 leaves the half's last place as the float's last place: the addition rounds.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t value = magnitude < 0x38800000u ? subnormal : normal;
  value = magnitude >= 0x477ff000u ? 0x7c00u : value;  // 65520 and above round to infinity
  value = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : value;
  to.bits = static_cast<uint16_t>(value | ((u >> 16) & 0x8000u));
}

template <class To, class From>
void cast_loop(void* to, const void* from, int64_t n) {
  auto* __restrict out = static_cast<To*>(to);
  const auto* __restrict in = static_cast<const From*>(from);
  for (int64_t i = 0; i < n; ++i) narrow(out[i], widen(in[i]));
}

template <class Y, class X>
void add_loop(void* to, const void* from, int64_t n) {
  auto* __restrict y = static_cast<Y*>(to);
  const auto* __restrict x = static_cast<const X*>(from);
  for (int64_t i = 0; i < n; ++i) narrow(y[i], widen(y[i]) + widen(x[i]));
}

template <class Y, class X>
void add_scaled_loop(void* to, const void* from, float a, int64_t n) {
  auto* __restrict y = static_cast<Y*>(to);
  const auto* __restrict x = static_cast<const X*>(from);
  for (int64_t i = 0; i < n; ++i) narrow(y[i], __builtin_fmaf(a, widen(x[i]), widen(y[i])));
}

template <class T>
void scale_loop(void* data, float a, int64_t n) {
  auto* __restrict y = static_cast<T*>(data);
  for (int64_t i = 0; i < n; ++i) narrow(y[i], a * widen(y[i]));
}

constexpr int lanes = 16;

template <class T>
double sum_squares_loop(const void* data, int64_t n) {
  const auto* __restrict x = static_cast<const T*>(data);
  double sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) {
      const double value = static_cast<double>(widen(x[i + lane]));
      sums[lane] += value * value;
    }
  }
  for (int lane = 0; i + lane < n; ++lane) {
    const double value = static_cast<double>(widen(x[i + lane]));
    sums[lane] += value * value;
  }
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

template <bool decoupled>
void adam_loop(float* weight, const float* gradient, float* state0, float* state1, const UpdateStep& step, int64_t n) {
  float* __restrict p = weight;
  const float* __restrict grad = gradient;
  float* __restrict m = state0;
  float* __restrict v = state1;
  const UpdateStep s = step;
  for (int64_t i = 0; i < n; ++i) {
    float g = s.gradient_scale * grad[i];
    if (!decoupled) g = __builtin_fmaf(s.l2, p[i], g);
    const float first = __builtin_fmaf(s.alpha1, g, s.beta1 * m[i]);
    const float second = __builtin_fmaf(s.alpha2, g * g, s.beta2 * v[i]);
    const float direction = first / __builtin_fmaf(__builtin_sqrtf(second), s.root_scale, s.eps);
    const float start = decoupled ? __builtin_fmaf(s.decay, p[i], p[i]) : p[i];
    m[i] = first;
    v[i] = second;
    p[i] = __builtin_fmaf(s.negative_rate, direction, start);
  }
}

void adagrad_loop(float* weight, const float* gradient, float* state0, float*, const UpdateStep& step, int64_t n) {
  float* __restrict p = weight;
  const float* __restrict grad = gradient;
  float* __restrict v = state0;
  const UpdateStep s = step;
  for (int64_t i = 0; i < n; ++i) {
    const float g = __builtin_fmaf(s.l2, p[i], s.gradient_scale * grad[i]);
    const float second = __builtin_fmaf(g, g, v[i]);
    v[i] = second;
    p[i] = __builtin_fmaf(s.negative_rate, g / (__builtin_sqrtf(second) + s.eps), p[i]);
  }
}

void lion_loop(float* weight, const float* gradient, float* state0, float*, const UpdateStep& step, int64_t n) {
  float* __restrict p = weight;
  const float* __restrict grad = gradient;
  float* __restrict m = state0;
  const UpdateStep s = step;
  for (int64_t i = 0; i < n; ++i) {
    const float g = s.gradient_scale * grad[i];
    const float direction = __builtin_fmaf(s.alpha1, g, s.beta1 * m[i]);
    const float start = __builtin_fmaf(s.decay, p[i], p[i]);
    m[i] = __builtin_fmaf(s.alpha2, g, s.beta2 * m[i]);
    // The sign of an exact zero counts: +0 is positive.
    p[i] = start + s.negative_rate * __builtin_copysignf(1.0f, direction);
  }
}

void sgd_loop(float* weight, const float* gradient, float*, float*, const UpdateStep& step, int64_t n) {
  float* __restrict p = weight;
  const float* __restrict grad = gradient;
  const UpdateStep s = step;
  for (int64_t i = 0; i < n; ++i) {
    const float g = __builtin_fmaf(s.l2, p[i], s.gradient_scale * grad[i]);
    p[i] = __builtin_fmaf(s.negative_rate, g, p[i]);
  }
}

template <bool nesterov>
void momentum_loop(float* weight, const float* gradient, float* state0, float*, const UpdateStep& step, int64_t n) {
  float* __restrict p = weight;
  const float* __restrict grad = gradient;
  float* __restrict m = state0;
  const UpdateStep s = step;
  for (int64_t i = 0; i < n; ++i) {
    const float g = __builtin_fmaf(s.l2, p[i], s.gradient_scale * grad[i]);
    const float first = __builtin_fmaf(s.alpha1, g, s.beta1 * m[i]);
    m[i] = first;
    p[i] = __builtin_fmaf(s.negative_rate, nesterov ? __builtin_fmaf(s.beta1, first, g) : first, p[i]);
  }
}

/// x held within [low, high]; NaN stays NaN.
inline float limited(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

/// exp(x) within 2 units of the last place (the reduction and polynomial of Cephes' expf), for x in [-87.3, 89];
/// infinity from 88.4 on.
inline float exponential(float x) {
  constexpr float to_integer = 0x1.8p23f;  // adding it rounds to a whole number, held in the low bits
  const float shifted = x * 1.44269504088896341f + to_integer;
  const float n = shifted - to_integer;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // the first product is exact
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  return p * float_of(((bits_of(shifted) + 127u) & 0xffu) << 23);
}

// (1 + tanh(u)) / 2 is the logistic function of 2u, with 2u = x (a + b x^2): one exponential, no cancellation.
constexpr float gelu_a = 1.5957691216057308f;   // 2 sqrt(2 / pi)
constexpr float gelu_b = 0.07135481282553254f;  // 0.044715 a

template <class T>
void gelu_tanh_loop(void* to, const void* from, int64_t n) {
  auto* __restrict y = static_cast<T*>(to);
  const auto* __restrict x = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) {
    const float v = widen(x[i]);
    const float e = exponential(limited(-v * (gelu_a + gelu_b * (v * v)), -87.0f, 89.0f));
    narrow(y[i], v / (1.0f + e));
  }
}

template <class T>
void gelu_tanh_backward_loop(void* to, const void* gradient, const void* from, int64_t n) {
  auto* __restrict dx = static_cast<T*>(to);
  const auto* __restrict dy = static_cast<const T*>(gradient);
  const auto* __restrict x = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) {
    // Beyond, the slope is 0 or 1 to within 1e-35. (Two limits on one path are taken apart by GCC, to a third of the
    // speed.)
    const float v = limited(widen(x[i]), -10.0f, 10.0f);
    const float square = v * v;
    const float e = exponential(-v * (gelu_a + gelu_b * square));
    const float s = 1.0f / (1.0f + e);
    // The logistic function's derivative is s (1 - s) = s^2 e, which can't cancel.
    const float slope = s + v * (gelu_a + 3.0f * gelu_b * square) * (s * (s * e));
    narrow(dx[i], widen(dy[i]) * slope);
  }
}

}  // namespace

#define DS_STRING(x) #x
#define DS_NAME(x) DS_STRING(x)
#define DS_PAIRS(loop)                                                   \
  {                                                                      \
    {loop<float, float>, loop<float, Half>, loop<float, Bfloat>},        \
        {loop<Half, float>, loop<Half, Half>, loop<Half, Bfloat>},       \
        {loop<Bfloat, float>, loop<Bfloat, Half>, loop<Bfloat, Bfloat>}, \
  }

extern const Loops DS_LOOPS = {
    DS_NAME(DS_LOOPS),
    DS_PAIRS(cast_loop),
    DS_PAIRS(add_loop),
    DS_PAIRS(add_scaled_loop),
    {scale_loop<float>, scale_loop<Half>, scale_loop<Bfloat>},
    {sum_squares_loop<float>, sum_squares_loop<Half>, sum_squares_loop<Bfloat>},
    {adam_loop<false>, adam_loop<true>, adagrad_loop, lion_loop, sgd_loop, momentum_loop<false>, momentum_loop<true>},
    {gelu_tanh_loop<float>, gelu_tanh_loop<Half>, gelu_tanh_loop<Bfloat>},
    {gelu_tanh_backward_loop<float>, gelu_tanh_backward_loop<Half>, gelu_tanh_backward_loop<Bfloat>},
};

}  // namespace deepspeed::kernels
