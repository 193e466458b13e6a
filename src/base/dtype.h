// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deepspeed::base {

/// Element types of buffers, files and collectives.
enum class Dtype : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

/// Bytes of one element.
std::size_t size_of(Dtype type);
/// "fp32", "bf16", "int64", ...: the name used in configs and checkpoints.
std::string_view name_of(Dtype type);
/// Reads fp32 | float32 | float, fp16 | float16 | half, bf16 | bfloat16, fp64 | float64 | double, int64, ..., each also
/// with a leading "torch."; false if it is none of them.
bool parse_dtype(std::string_view name, Dtype& type);

/// Typed raw memory without ownership: `numel` elements of `type` at `data`, contiguous.
struct Buffer {
  void* data = nullptr;
  std::int64_t numel = 0;
  Dtype type = Dtype::f32;
  std::size_t bytes() const { return static_cast<std::size_t>(numel) * size_of(type); }
  /// Elements [offset, offset + count).
  Buffer part(std::int64_t offset, std::int64_t count) const {
    return {static_cast<char*>(data) + offset * static_cast<std::int64_t>(size_of(type)), count, type};
  }
};

struct ConstBuffer {
  const void* data = nullptr;
  std::int64_t numel = 0;
  Dtype type = Dtype::f32;
  ConstBuffer() = default;
  ConstBuffer(const void* memory, std::int64_t count, Dtype dtype) : data(memory), numel(count), type(dtype) {}
  ConstBuffer(const Buffer& b) : data(b.data), numel(b.numel), type(b.type) {}  // NOLINT: a view of a view
  std::size_t bytes() const { return static_cast<std::size_t>(numel) * size_of(type); }
};

}  // namespace deepspeed::base
