// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "comm/group.h"
#include "config/config.h"

namespace deepspeed::train {

/// The folder of one run (training.output):
///   config.json     everything resolved        metrics.jsonl   one object a step
///   log.txt         the messages               tensorboard/    event files
///   checkpoints/    TAG/ and latest            trace_rankN.json, with training.profile
struct RunFolder {
  std::filesystem::path root;
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path trace(int rank) const { return root / ("trace_rank" + std::to_string(rank) + ".json"); }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }

  /// The folder that the configuration names, whether it is there or not.
  static RunFolder of(const config::Config& config);
  /// Collective: rank 0 makes the folder, writes config.json and opens log.txt. Throws IoError on every rank.
  static RunFolder open(comm::Group& group, const config::Config& config);
};

}  // namespace deepspeed::train
