// SPDX-License-Identifier: Apache-2.0
#include "nn/tensor_buffer.h"

#include <stdexcept>
#include <string>

namespace deepspeed::nn {

using base::Dtype;

at::ScalarType scalar_type(Dtype type) {
  switch (type) {
    case Dtype::f64:
      return at::kDouble;
    case Dtype::f32:
      return at::kFloat;
    case Dtype::f16:
      return at::kHalf;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::i64:
      return at::kLong;
    case Dtype::i32:
      return at::kInt;
    case Dtype::i16:
      return at::kShort;
    case Dtype::i8:
      return at::kChar;
    case Dtype::u8:
      return at::kByte;
    case Dtype::boolean:
      return at::kBool;
  }
  throw std::invalid_argument("unknown dtype");
}

Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Dtype::f64;
    case at::kFloat:
      return Dtype::f32;
    case at::kHalf:
      return Dtype::f16;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kLong:
      return Dtype::i64;
    case at::kInt:
      return Dtype::i32;
    case at::kShort:
      return Dtype::i16;
    case at::kChar:
      return Dtype::i8;
    case at::kByte:
      return Dtype::u8;
    case at::kBool:
      return Dtype::boolean;
    default:
      throw std::invalid_argument(std::string("element type ") + c10::toString(tensor.scalar_type()));
  }
}

base::Buffer view(const at::Tensor& tensor, std::int64_t offset, std::int64_t numel) {
  const Dtype type = dtype_of(tensor);
  char* data = static_cast<char*>(tensor.data_ptr());
  return {data + offset * static_cast<std::int64_t>(base::size_of(type)), numel, type};
}

base::Buffer view(const at::Tensor& tensor) {
  return view(tensor, 0, tensor.numel());
}

}  // namespace deepspeed::nn
