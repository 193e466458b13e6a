// SPDX-License-Identifier: Apache-2.0
#include "nn/products.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "nn/onednn.h"

namespace deepspeed::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool for_onednn(const Tensor& a, const Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && a.numel() > 0 &&
         b.numel() > 0 && onednn_products();
}

/// The tensor itself if its matrices lie in memory by rows or by columns, else a copy that does.
Tensor laid_out(const Tensor& t) {
  const std::int64_t rows = t.stride(-2);
  const std::int64_t columns = t.stride(-1);
  const bool plain = (columns == 1 && rows >= t.size(-1)) || (rows == 1 && columns >= t.size(-2));
  return plain && (t.dim() == 2 || t.stride(0) >= t.size(-1) * t.size(-2)) ? t : t.contiguous();
}

/// a b of matrices or batches of them, fp32 on the CPU.
Tensor product(const Tensor& a, const Tensor& b) {
  std::vector<std::int64_t> shape = a.sizes().vec();
  shape.back() = b.size(-1);
  const Tensor out = at::empty(shape, a.options());
  onednn_product(laid_out(a), laid_out(b), out);
  return out;
}

struct BatchProduct : torch::autograd::Function<BatchProduct> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    ctx->save_for_backward({a, b});
    return product(a, b);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result(2);
    if (!gradients[0].defined()) return result;
    if (ctx->needs_input_grad(0)) result[0] = product(gradients[0], saved[1].transpose(1, 2));
    if (ctx->needs_input_grad(1)) result[1] = product(saved[0].transpose(1, 2), gradients[0]);
    return result;
  }
};

/// x W + bias, of matrices x [rows, in] and W [in, out], which may be another matrix turned.
struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        bool transposed) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["transposed"] = transposed;
    ctx->saved_data["biased"] = bias.has_value();
    Tensor y = product(x, transposed ? weight : weight.t());
    if (bias) y.add_(*bias);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const bool transposed = ctx->saved_data["transposed"].toBool();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Tensor& gradient = gradients[0];
    variable_list result(4);  // the last: `transposed`, no tensor
    if (!gradient.defined()) return result;
    if (ctx->needs_input_grad(0)) result[0] = product(gradient, transposed ? weight.t() : weight);
    if (ctx->needs_input_grad(1)) result[1] = transposed ? product(x.t(), gradient) : product(gradient.t(), x);
    if (ctx->saved_data["biased"].toBool() && ctx->needs_input_grad(2)) result[2] = gradient.sum(0);
    return result;
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, bool transposed) {
  const bool own = for_onednn(x, weight);
  const auto given = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
  if (!own && !transposed) return at::linear(x, weight, given);
  const Tensor rows = x.reshape({-1, x.size(-1)});
  Tensor y;
  if (own)
    y = Linear::apply(rows, weight, given, transposed);
  else
    y = given ? at::addmm(bias, rows, weight) : rows.mm(weight);
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = y.size(-1);
  return y.view(shape);
}

Tensor batch_product(const Tensor& a, const Tensor& b) {
  return for_onednn(a, b) ? BatchProduct::apply(a, b) : at::bmm(a, b);
}

}  // namespace deepspeed::nn
