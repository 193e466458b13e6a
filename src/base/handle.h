// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace deepspeed::base {

/// Owns one C handle (a file descriptor, communicator, HDF5 id, stream, ...). Move-only; `Destroy` runs once, when the
/// handle isn't `Null`.
template <class T, void (*Destroy)(T), T Null = T{}>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, Null)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      value_ = std::exchange(other.value_, Null);
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  T get() const { return value_; }
  explicit operator bool() const { return value_ != Null; }
  T release() { return std::exchange(value_, Null); }
  void reset(T value = Null) {
    if (value_ != Null) Destroy(value_);
    value_ = value;
  }

 private:
  T value_ = Null;
};

}  // namespace deepspeed::base
