// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace deepspeed::nn {

/// The state of the default random generators of some devices at one moment.
class RandomState {
 public:
  RandomState() = default;
  /// Reads the states of the CPU and of the devices of these tensors (undefined ones are skipped).
  static RandomState capture(const std::vector<at::Tensor>& tensors);
  /// Reads the states, as they are now, of the devices that this one holds.
  RandomState recapture() const;
  void restore() const;

 private:
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

/// Sets the generators to an earlier state and, at the end of the scope, back to where they were.
class RandomReplay {
 public:
  explicit RandomReplay(const RandomState& state) : before_(state.recapture()) { state.restore(); }
  ~RandomReplay() { before_.restore(); }
  RandomReplay(const RandomReplay&) = delete;
  RandomReplay& operator=(const RandomReplay&) = delete;

 private:
  RandomState before_;
};

}  // namespace deepspeed::nn
