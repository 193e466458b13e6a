// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace deepspeed::optim {

/// How a dynamic loss scale moves; the keys of the config's fp16 block.
struct DynamicScale {
  double initial = 65536;       ///< 2^initial_scale_power
  std::int64_t window = 1000;   ///< loss_scale_window: good steps in a row before the scale doubles
  std::int64_t hysteresis = 2;  ///< overflows that are taken before the scale halves
  double minimum = 1;           ///< min_loss_scale
  bool consecutive = false;     ///< consecutive_hysteresis: every good step refills the hysteresis
};

/// The factor that keeps fp16 gradients in range (Micikevicius et al., 2018): the loss is multiplied by scale() before
/// backward, the gradients are divided by the scale their backward used.
class LossScaler {
 public:
  /// A fixed scale; 1 for fp32 and bf16.
  explicit LossScaler(double scale = 1);
  explicit LossScaler(const DynamicScale& dynamic);

  double scale() const { return scale_; }
  bool dynamic() const { return dynamic_; }
  std::int64_t hysteresis() const { return hysteresis_; }

  /// To be called once for each optimizer step, applied or skipped because of `overflow`. Returns what people should be
  /// told, or "". Throws DivergedError where the scale would have to go below its minimum.
  std::string update(bool overflow);

  /// All that the next updates depend on, but for the constructor's arguments.
  nlohmann::json state() const;
  /// Throws CheckpointError if it isn't such a state.
  void load(const nlohmann::json& state);

 private:
  bool dynamic_;
  DynamicScale rule_;
  double scale_;
  std::int64_t hysteresis_;
  std::int64_t iteration_ = 0;
  std::int64_t last_overflow_ = -1;
};

/// How gradients of scaled loss are to be read by an update: times `factor`, which undoes the loss scale and clips.
struct GradientScale {
  float norm = 0;    ///< of the unscaled gradient before clipping; not finite after an overflow
  float factor = 1;  ///< 1 / (loss_scale * max(1, (norm + 1e-6) / clipping))
};

/// `sum_squares` is over all gradients of all ranks, still scaled. The norm is rounded to fp32 before it is used, so
/// that the last bits of a sum's order don't reach the weights. clipping 0 = none.
GradientScale gradient_scale(double sum_squares, double loss_scale, double clipping);

}  // namespace deepspeed::optim
