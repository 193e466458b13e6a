// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <array>
#include <utility>

namespace deepspeed::base {

std::size_t size_of(Dtype type) {
  switch (type) {
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::f16:
    case Dtype::bf16:
    case Dtype::i16:
      return 2;
    case Dtype::i8:
    case Dtype::u8:
    case Dtype::boolean:
      return 1;
  }
  return 0;
}

std::string_view name_of(Dtype type) {
  switch (type) {
    case Dtype::f64:
      return "fp64";
    case Dtype::f32:
      return "fp32";
    case Dtype::f16:
      return "fp16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::i64:
      return "int64";
    case Dtype::i32:
      return "int32";
    case Dtype::i16:
      return "int16";
    case Dtype::i8:
      return "int8";
    case Dtype::u8:
      return "uint8";
    case Dtype::boolean:
      return "bool";
  }
  return "?";
}

bool parse_dtype(std::string_view name, Dtype& type) {
  constexpr std::string_view torch = "torch.";
  if (name.starts_with(torch)) name.remove_prefix(torch.size());
  static constexpr std::array<std::pair<std::string_view, Dtype>, 18> names{{{"fp32", Dtype::f32},
                                                                             {"float32", Dtype::f32},
                                                                             {"float", Dtype::f32},
                                                                             {"fp16", Dtype::f16},
                                                                             {"float16", Dtype::f16},
                                                                             {"half", Dtype::f16},
                                                                             {"bf16", Dtype::bf16},
                                                                             {"bfloat16", Dtype::bf16},
                                                                             {"fp64", Dtype::f64},
                                                                             {"float64", Dtype::f64},
                                                                             {"double", Dtype::f64},
                                                                             {"int64", Dtype::i64},
                                                                             {"int32", Dtype::i32},
                                                                             {"int16", Dtype::i16},
                                                                             {"int8", Dtype::i8},
                                                                             {"uint8", Dtype::u8},
                                                                             {"bool", Dtype::boolean},
                                                                             {"long", Dtype::i64}}};
  for (const auto& [known, value] : names) {
    if (known == name) {
      type = value;
      return true;
    }
  }
  return false;
}

}  // namespace deepspeed::base
