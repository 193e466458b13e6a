// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/dtype.h"

namespace deepspeed::nn {

/// Between torch's element types and ours; an element type that training has no use for throws std::invalid_argument.
at::ScalarType scalar_type(base::Dtype type);
base::Dtype dtype_of(const at::Tensor& tensor);

/// Elements [offset, offset + numel) of a contiguous host tensor as raw memory; the tensor must outlive the view.
base::Buffer view(const at::Tensor& tensor, std::int64_t offset, std::int64_t numel);
base::Buffer view(const at::Tensor& tensor);

}  // namespace deepspeed::nn
