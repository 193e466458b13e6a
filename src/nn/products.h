// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

/// Differentiable matrix products on their quickest route. ATen hands 16-bit products on the CPU to oneDNN, but fp32
/// ones to MKL, which on processors that aren't Intel's runs at less than half of what the AVX-512 units can do; here
/// those go to oneDNN too, in plain fp32 arithmetic. All others are ATen's own. First derivatives only.
namespace deepspeed::nn {

/// x W^T + bias with x [..., in]; W is [out, in], or [in, out] if `transposed` (then x W + bias); bias [out] or
/// undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool transposed);

/// a b with a [batch, m, k] and b [batch, k, n].
at::Tensor batch_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace deepspeed::nn
