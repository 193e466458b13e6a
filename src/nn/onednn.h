// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

/// The oneDNN that is inside libtorch, for what ATen doesn't hand to it. Where libtorch doesn't let us at it, a twin
/// that answers "no" is built instead.
namespace deepspeed::nn {

/// Whether onednn_product may be called: libtorch has oneDNN and the user hasn't switched it off.
bool onednn_products();

/// out = a b in fp32 on the CPU: [m, k] [k, n], or the same with an equal batch dimension before. `a` and `b` lie in
/// memory by rows or by columns; `out` is contiguous and is overwritten.
void onednn_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

}  // namespace deepspeed::nn
