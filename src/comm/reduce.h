// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "comm/group.h"

namespace deepspeed::comm {

/// Reduces slices of `out.numel` elements of `type` in the order given: out = scale * (slices[0] op slices[1] op ...),
/// plus what `out` held when `accumulate`. `out` is of `type`, or fp32 when `type` is a floating one. fp16, bf16 and
/// fp32 are summed in fp32 and rounded once; fp64 in fp64; integers wrap and take no scale;
/// bool: sum and max are "or", min is "and". `out` may be one of the slices.
void reduce_slices(const std::vector<const void*>& slices, base::Dtype type, Buffer out, ReduceOp op = ReduceOp::sum,
                   float scale = 1.0F, bool accumulate = false);

}  // namespace deepspeed::comm
