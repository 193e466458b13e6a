// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/group.h"

/// What every back end checks before it takes a call. Each throws GroupError that names the call and the numbers.
namespace deepspeed::comm::arguments {

void reduce_scatter(const Group& group, const ConstBuffer& input, const Buffer& output);
void ordered_reduce_scatter(const Group& group, const ConstBuffer& input, const std::vector<std::int64_t>& counts,
                            const Buffer& output);
void all_gather(const Group& group, const ConstBuffer& input, const std::vector<std::int64_t>& counts,
                const Buffer& output);
void all_to_all(const Group& group, const ConstBuffer& input, const Buffer& output);
/// `what`: "broadcast root", "send to", "receive from".
void rank(const Group& group, std::string_view what, int rank);
void tag(const Group& group, std::string_view what, int tag);

}  // namespace deepspeed::comm::arguments
