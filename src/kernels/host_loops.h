// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

/// The table of plain loops behind host.h. host_loops.cpp is compiled once for each instruction set; neither it nor
/// this header may include a C++ standard header: an inline function compiled there for AVX-512 could be the copy that
/// the linker keeps for the whole program.
namespace deepspeed::kernels {

/// Element types that the loops know, in the order of the tables below.
enum Element { f32, f16, bf16, element_count };

/// Elementwise update rules. Notation: p weight, g gradient (already scaled), m, v states; formulas are those of
/// UpdateStep's fields.
enum Rule {
  adam,          ///< weight decay added to the gradient (Kingma and Ba, 2015)
  adamw,         ///< decoupled weight decay (Loshchilov and Hutter, 2019)
  adagrad,       ///< Duchi et al., 2011; one state, the sum of squares
  lion,          ///< Chen et al., 2023; one state
  sgd,           ///< no state
  sgd_momentum,  ///< one state
  sgd_nesterov,
  rule_count
};

/// The numbers of one step, formed in double and rounded once. Fields that a rule doesn't name are ignored by it.
struct UpdateStep {
  float gradient_scale = 1;  ///< g = gradient_scale * gradient, as it is read
  float beta1 = 0;           ///< m = beta1 m + alpha1 g
  float alpha1 = 0;
  float beta2 = 0;  ///< v = beta2 v + alpha2 g^2 (lion: m = beta2 m + alpha2 g after the weight)
  float alpha2 = 0;
  float eps = 0;            ///< denominator sqrt(v) * root_scale + eps
  float root_scale = 1;     ///< 1 / sqrt(1 - beta2^t), or 1
  float l2 = 0;             ///< g += l2 p (adam, adagrad, sgd)
  float decay = 0;          ///< p += decay p, decay = -lr * weight_decay (adamw, lion)
  float negative_rate = 0;  ///< p += negative_rate * direction: -lr / (1 - beta1^t), or -lr
};

struct Loops {
  const char* name;
  /// to[i] = round(from[i]), indexed [to][from].
  void (*cast[element_count][element_count])(void* to, const void* from, int64_t n);
  /// y[i] = round(y[i] + x[i]) and y[i] = round(fma(a, x[i], y[i])), indexed [y][x].
  void (*add[element_count][element_count])(void* y, const void* x, int64_t n);
  void (*add_scaled[element_count][element_count])(void* y, const void* x, float a, int64_t n);
  /// y[i] = round(a * y[i])
  void (*scale[element_count])(void* y, float a, int64_t n);
  /// The sum of x[i]^2 in 16 interleaved fp64 sums. The products are exact, and finite for finite x; so the result is
  /// finite exactly if every x[i] is.
  double (*sum_squares[element_count])(const void* x, int64_t n);
  /// One update of n elements. `state0` and `state1` are null where the rule has none.
  void (*update[rule_count])(float* weight, const float* gradient, float* state0, float* state1, const UpdateStep& step,
                             int64_t n);
  /// y[i] = gelu(x[i]) and dx[i] = dy[i] gelu'(x[i]), in the tanh form (Hendrycks and Gimpel, 2016).
  void (*gelu_tanh[element_count])(void* y, const void* x, int64_t n);
  void (*gelu_tanh_backward[element_count])(void* dx, const void* dy, const void* x, int64_t n);
};

#if defined(__x86_64__)
extern const Loops loops_x86_64_v2;
extern const Loops loops_x86_64_v3;
extern const Loops loops_x86_64_v4;
#else
extern const Loops loops_generic;
#endif

}  // namespace deepspeed::kernels
