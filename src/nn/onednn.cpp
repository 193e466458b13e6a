// SPDX-License-Identifier: Apache-2.0
#include "nn/onednn.h"

#include <ATen/Context.h>

namespace at::native {
// What at::mm itself calls for 16-bit types. libtorch exports it without a header; CMake has checked that it is there
// with these types. For fp32 tensors it computes in fp32 unless at::Context's precision of oneDNN products was lowered.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace deepspeed::nn {

bool onednn_products() {
  return at::hasMKLDNN() && at::globalContext().userEnabledMkldnn();
}

void onednn_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  at::native::mkldnn_matmul(a, b, out, 0.0F, 1.0F);
}

}  // namespace deepspeed::nn
