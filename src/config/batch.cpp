// SPDX-License-Identifier: Apache-2.0
#include "config/batch.h"

#include <fmt/format.h>

#include "base/error.h"

namespace deepspeed::config {

using base::ConfigError;

namespace {

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t product(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out) || __builtin_mul_overflow(out, c, &out))
    throw ConfigError(fmt::format("train_batch_size: {} * {} * {} doesn't fit in 64 bits", a, b, c));
  return out;
}

}  // namespace

BatchTriple complete_batch(const BatchTriple& given, std::int64_t ranks) {
  // The key that was given wrong is named; where DeepSpeed complains of the train batch derived from it, so is that.
  const auto positive = [&](const std::optional<std::int64_t>& value, const char* key, const char* words) {
    if (!value || *value > 0) return;
    std::string text = fmt::format("{}: {}: {} has to be greater than 0", key, words, *value);
    if (const std::int64_t train = given.train ? 1 : product(*given.micro, given.accumulation.value_or(1), ranks);
        train <= 0)
      text += fmt::format(" (Train batch size: {} has to be greater than 0)", train);
    throw ConfigError(text);
  };
  BatchTriple all = given;
  if (!all.train && !all.micro)
    throw ConfigError(
        "train_batch_size: Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  // What is given is looked at first, so that nothing is divided by zero.
  positive(all.train, "train_batch_size", "Train batch size");
  positive(all.micro, "train_micro_batch_size_per_gpu", "Micro batch size per gpu");
  positive(all.accumulation, "gradient_accumulation_steps", "Gradient accumulation steps");

  if (all.train && all.micro) {
    if (!all.accumulation) all.accumulation = floor_divide(floor_divide(*all.train, *all.micro), ranks);
  } else if (all.train) {
    if (!all.accumulation) all.accumulation = 1;
    all.micro = floor_divide(floor_divide(*all.train, ranks), *all.accumulation);
  } else {
    if (!all.accumulation) all.accumulation = 1;
    all.train = product(*all.micro, *all.accumulation, ranks);
  }

  const auto derived = [&](const std::optional<std::int64_t>& value, const char* key, const char* words,
                           bool was_given) {
    if (!was_given && *value <= 0)
      throw ConfigError(fmt::format(
          "{}: {}: {} has to be greater than 0 (train_batch_size {} is too small for {} ranks"
          "{}{})",
          key, words, *value, *all.train, ranks,
          given.micro ? fmt::format(" of micro batch {}", *given.micro) : std::string(),
          given.accumulation ? fmt::format(" with {} accumulation steps", *given.accumulation) : std::string()));
  };
  derived(all.micro, "train_micro_batch_size_per_gpu", "Micro batch size per gpu", given.micro.has_value());
  derived(all.accumulation, "gradient_accumulation_steps", "Gradient accumulation steps",
          given.accumulation.has_value());
  if (*all.train != product(*all.micro, *all.accumulation, ranks))
    throw ConfigError(fmt::format(
        "train_batch_size: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size {} != {} * {} * {}",
        *all.train, *all.micro, *all.accumulation, ranks));
  return all;
}

}  // namespace deepspeed::config
