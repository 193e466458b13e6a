// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/host_loops.h"

/// Kernels on host memory. Buffers are fp32, fp16 or bf16 where nothing else is said, contiguous, of any alignment and
/// size; different buffers of one call don't overlap. Arithmetic is fp32 and rounds to nearest even. Every result has
/// the same bits whatever the instruction set, the number of threads and (but for sums) the cutting of a tensor into
/// calls. Buffers that don't fit together throw std::invalid_argument: a programming mistake.
namespace deepspeed::kernels {

using base::Buffer;
using base::ConstBuffer;
using base::Dtype;

/// The loops chosen for this CPU.
const Loops& host_loops();
/// Every set of loops that this CPU can run, the chosen one last.
std::span<const Loops* const> usable_loops();

/// to = from, converted. Equal types of any kind are copied. NaN stays NaN; what a 16-bit type can't hold becomes
/// infinite.
void cast(Buffer to, ConstBuffer from);
/// y = 0, any type.
void zero(Buffer y);
/// y *= a
void scale(Buffer y, float a);
/// y += a x, rounded to y's type once for each element (fused where a isn't 1). A bf16 y is thus accumulated in plain
/// bf16, as grad_accum_dtype "bf16" asks.
void accumulate(Buffer y, ConstBuffer x, float a = 1);
/// out = scale * (inputs[0] + inputs[1] + ...), summed in fp32 in this order and rounded to out's type once: the sum of
/// a deterministic reduction. Every input has out.numel elements of `type`; `out` may be one of the inputs only if it
/// is the first and fp32.
void ordered_sum(Buffer out, std::span<const void* const> inputs, Dtype type, float scale = 1);
/// The sum of squares in fp64. It is NaN or infinite exactly if an element is: one pass tells the norm and the
/// overflow. Partial sums have a fixed shape, so the value doesn't depend on threads.
double sum_squares(ConstBuffer x);

/// y = gelu(x) in the tanh form, x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, formed without cancellation; all of
/// one type.
void gelu_tanh(Buffer y, ConstBuffer x);
/// dx = dy gelu'(x).
void gelu_tanh_backward(Buffer dx, ConstBuffer dy, ConstBuffer x);

/// What one elementwise update works on; equal numel throughout.
struct Update {
  Buffer master;                   ///< the weights, updated in place
  ConstBuffer gradient;            ///< read, not written
  std::span<const Buffer> states;  ///< states_of(rule) buffers, updated in place
  Buffer working;                  ///< receives the new master, converted, in the same pass; data null = none
};

/// How many states a rule keeps for each element.
int states_of(Rule rule);
/// Applies one step of the rule. 16-bit masters and states are widened, updated in fp32 and rounded back.
void update(Rule rule, const Update& buffers, const UpdateStep& step);

}  // namespace deepspeed::kernels
