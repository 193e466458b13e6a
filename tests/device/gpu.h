// SPDX-License-Identifier: Apache-2.0
// What the tests of the plug-in's functions share: a fixture that skips without a GPU, device memory, 16-bit numbers.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/device.h"

namespace deepspeed::device {

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    const Opened& opened = open();
    if (opened.table == nullptr) GTEST_SKIP() << "needs a GPU: " << opened.reason;
    table().set_device(0);
    stream_ = StreamHandle(table().stream_create(false));
  }
  Stream stream() const { return stream_.get(); }
  void wait() const { table().stream_synchronize(stream()); }

 private:
  StreamHandle stream_;
};

inline void release(void* pointer) {
  table().release(pointer);
}

// Device memory with a copy of host values. `shift` elements in front spoil the alignment.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values, std::size_t shift = 0)
      : numel_(values.size()), memory_(table().allocate((numel_ + shift + 1) * sizeof(T))), shift_(shift) {
    table().copy(data(), values.data(), numel_ * sizeof(T), nullptr);
    table().stream_synchronize(nullptr);
  }
  T* data() const { return static_cast<T*>(memory_.get()) + shift_; }
  std::vector<T> values() const {
    std::vector<T> result(numel_);
    table().copy(result.data(), data(), numel_ * sizeof(T), nullptr);
    table().stream_synchronize(nullptr);
    return result;
  }

 private:
  std::size_t numel_;
  base::Handle<void*, release> memory_;
  std::size_t shift_;
};

// 16-bit numbers as their bits.
inline std::uint16_t bf16_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}
inline float of_bf16(std::uint16_t x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16U;
  float result = 0.0F;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
inline std::uint16_t fp16_of(float x) {
  const auto half = static_cast<_Float16>(x);
  std::uint16_t bits = 0;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
inline float of_fp16(std::uint16_t x) {
  _Float16 half{};
  std::memcpy(&half, &x, sizeof half);
  return static_cast<float>(half);
}

// Numbers of one type as bytes, from and to float.
inline std::vector<std::byte> encode(const std::vector<float>& values, Dtype type) {
  std::vector<std::byte> bytes(values.size() * base::size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == Dtype::f32) std::memcpy(&bytes[4 * i], &values[i], 4);
    const std::uint16_t bits = type == Dtype::bf16 ? bf16_of(values[i]) : fp16_of(values[i]);
    if (type != Dtype::f32) std::memcpy(&bytes[2 * i], &bits, 2);
  }
  return bytes;
}
inline std::vector<float> decode(const std::vector<std::byte>& bytes, Dtype type) {
  std::vector<float> values(bytes.size() / base::size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    if (type == Dtype::f32) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
    } else {
      std::memcpy(&bits, &bytes[2 * i], 2);
      values[i] = type == Dtype::bf16 ? of_bf16(bits) : of_fp16(bits);
    }
  }
  return values;
}

inline std::vector<float> normal(std::size_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0.0F, scale);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(engine);
  return values;
}

inline constexpr std::array<Dtype, 3> floating{Dtype::f32, Dtype::bf16, Dtype::f16};

}  // namespace deepspeed::device
