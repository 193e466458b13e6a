// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace deepspeed::config {

/// The three linked batch numbers: train = micro x accumulation x data-parallel ranks.
struct BatchTriple {
  std::optional<std::int64_t> train, micro, accumulation;
};

/// Fills in what is missing by DeepSpeed's rules (a lone micro or train batch means accumulation 1) and checks the
/// identity. Throws ConfigError naming the key and the numbers.
BatchTriple complete_batch(const BatchTriple& given, std::int64_t ranks);

}  // namespace deepspeed::config
