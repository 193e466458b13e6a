// SPDX-License-Identifier: Apache-2.0
#include "comm/arguments.h"

#include <fmt/format.h>

#include <numeric>
#include <string>

#include "comm/group_error.h"

namespace deepspeed::comm::arguments {
namespace {

constexpr int largest_tag = 32766;  // MPI promises tags up to 32767; tag 0 is the back end's own

[[noreturn]] void refuse(const Group& group, std::string_view call, const std::string& what) {
  throw GroupError(fmt::format("{} on group '{}'", call, group.name()),
                   fmt::format("rank {} of {}", group.rank(), group.size()), what);
}

void same_type(const Group& group, std::string_view call, const ConstBuffer& input, const Buffer& output) {
  if (input.type != output.type) {
    refuse(group, call, fmt::format("input is {}, output {}", name_of(input.type), name_of(output.type)));
  }
}

/// Checks the counts, and gives their sum.
std::int64_t total(const Group& group, std::string_view call, const std::vector<std::int64_t>& counts) {
  if (counts.size() != static_cast<std::size_t>(group.size())) {
    refuse(group, call, fmt::format("{} counts for {} ranks", counts.size(), group.size()));
  }
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0) refuse(group, call, fmt::format("the count of rank {} is {}", r, counts[r]));
  }
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

void elements(const Group& group, std::string_view call, std::string_view what, std::int64_t have, std::int64_t want) {
  if (have != want) refuse(group, call, fmt::format("{} has {} elements where {} are needed", what, have, want));
}

}  // namespace

void reduce_scatter(const Group& group, const ConstBuffer& input, const Buffer& output) {
  same_type(group, "reduce_scatter", input, output);
  elements(group, "reduce_scatter", "input", input.numel, output.numel * group.size());
}

void ordered_reduce_scatter(const Group& group, const ConstBuffer& input, const std::vector<std::int64_t>& counts,
                            const Buffer& output) {
  constexpr std::string_view call = "ordered_reduce_scatter";
  elements(group, call, "input", input.numel, total(group, call, counts));
  elements(group, call, "output", output.numel, counts[static_cast<std::size_t>(group.rank())]);
  if (output.type != base::Dtype::f32) {
    refuse(group, call, fmt::format("output is {}; it must be fp32", name_of(output.type)));
  }
  switch (input.type) {
    case base::Dtype::f64:
    case base::Dtype::f32:
    case base::Dtype::f16:
    case base::Dtype::bf16:
      return;
    default:
      refuse(group, call, fmt::format("input is {}; it must be a floating type", name_of(input.type)));
  }
}

void all_gather(const Group& group, const ConstBuffer& input, const std::vector<std::int64_t>& counts,
                const Buffer& output) {
  same_type(group, "all_gather", input, output);
  elements(group, "all_gather", "output", output.numel, total(group, "all_gather", counts));
  elements(group, "all_gather", "input", input.numel, counts[static_cast<std::size_t>(group.rank())]);
}

void all_to_all(const Group& group, const ConstBuffer& input, const Buffer& output) {
  same_type(group, "all_to_all", input, output);
  elements(group, "all_to_all", "output", output.numel, input.numel);
  if (input.numel % group.size() != 0) {
    refuse(group, "all_to_all", fmt::format("{} elements can't be cut into {} slices", input.numel, group.size()));
  }
}

void rank(const Group& group, std::string_view what, int rank) {
  if (rank < 0 || rank >= group.size())
    refuse(group, what, fmt::format("rank {} is not one of {}", rank, group.size()));
}

void tag(const Group& group, std::string_view what, int tag) {
  if (tag < 0 || tag > largest_tag) refuse(group, what, fmt::format("tag {} is not in 0 .. {}", tag, largest_tag));
}

}  // namespace deepspeed::comm::arguments
