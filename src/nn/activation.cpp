// SPDX-License-Identifier: Apache-2.0
#include "nn/activation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "kernels/host.h"

namespace deepspeed::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<base::Dtype> kernel_type(const Tensor& x) {
  if (!x.is_cpu()) return std::nullopt;
  switch (x.scalar_type()) {
    case at::kFloat:
      return base::Dtype::f32;
    case at::kHalf:
      return base::Dtype::f16;
    case at::kBFloat16:
      return base::Dtype::bf16;
    default:
      return std::nullopt;
  }
}

base::Buffer buffer(const Tensor& contiguous) {
  return {contiguous.data_ptr(), contiguous.numel(), *kernel_type(contiguous)};
}

struct GeluTanh : torch::autograd::Function<GeluTanh> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    const Tensor in = x.contiguous();
    Tensor y = at::empty_like(in);
    kernels::gelu_tanh(buffer(y), buffer(in));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined()) return {Tensor()};
    const Tensor x = ctx->get_saved_variables()[0].contiguous();
    const Tensor gradient = gradients[0].contiguous();
    Tensor result = at::empty_like(x);
    kernels::gelu_tanh_backward(buffer(result), buffer(gradient), buffer(x));
    return {result};
  }
};

}  // namespace

Tensor gelu_tanh(const Tensor& x) {
  return kernel_type(x) ? GeluTanh::apply(x) : at::gelu(x, "tanh");
}

}  // namespace deepspeed::nn
