// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "layout/rows.h"
#include "models/decoder_config.h"

namespace deepspeed::models {

/// The parameters of parameter_specs(), with the units of the decoder that use them, numbered as nn::units_of does.
std::vector<layout::ParameterFacts> parameter_facts(const DecoderConfig& config, base::Dtype type);

/// Most bytes that forward and backward of one micro batch hold beside weights and gradients on the CPU: what each
/// operation keeps for its backward, in every block (with `checkpointing` in one, and the others' inputs), and the
/// head's logits. From the decoder's arithmetic; an estimate to about 15 %.
std::int64_t activation_bytes(const DecoderConfig& config, std::int64_t batch, std::int64_t sequence, base::Dtype type,
                              bool checkpointing);

}  // namespace deepspeed::models
