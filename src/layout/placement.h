// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deepspeed::layout {

/// Whether each rank of the data-parallel group holds the whole of something, or its slice.
enum class Spread { replicated, sharded };

/// What ZeRO shards (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020,
/// section 5). The stage is read once, here; all else asks for the spread.
struct Placement {
  Spread parameters = Spread::replicated;
  Spread gradients = Spread::replicated;
  Spread optimizer = Spread::replicated;

  /// 0: all replicated; 1: optimizer states sharded; 2: gradients too; 3: parameters too. Others: ConfigError.
  static Placement of_stage(int stage);
  bool operator==(const Placement&) const = default;
};

}  // namespace deepspeed::layout
