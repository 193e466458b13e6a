// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace deepspeed::train {

/// What a configuration takes on each number of ranks at each ZeRO stage, before a job is queued. Starts neither MPI
/// nor Kokkos nor a device and reads no weights.
///
/// `load`: the configuration for a number of ranks with these overrides (path=value). `memory`: bytes that a rank may
/// hold; the smallest setting that fits is named. The result is what `ds_train --plan --json` prints:
///     {"model": {...}, "memory_limit": bytes or null,
///      "plans": [{"ranks": N, "configured_stage": S, "micro_batch": ..., "fits": {...} or null,
///                 "stages": [{"stage": 0, "checkpointing": false, "bytes": {"parameters": ..., "total": ...},
///                             "sent_per_step": {"gradients": ..., "gathers": ..., "updates": ..., "total": ...}}]}]}
/// All bytes are those of the rank that holds most. Throws ConfigError or DataError as --check does.
nlohmann::json plan(const std::function<config::Config(int ranks, const std::vector<std::string>& overrides)>& load,
                    const std::vector<int>& ranks, std::optional<std::int64_t> memory);

/// The same as tables.
std::string plan_text(const nlohmann::json& plan);

/// "80GB", "512 MiB", "1.5e9": bytes; throws UsageError.
std::int64_t parse_bytes(const std::string& text);

}  // namespace deepspeed::train
