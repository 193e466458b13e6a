// SPDX-License-Identifier: Apache-2.0
// checkpoint_saver FOLDER FIRST: saves global_stepN for N = FIRST, FIRST + 1, ... without end; every third one again
// under its own tag. It first checks that what is there can be resumed from, and ends with 3 if not.
#include <cstdlib>
#include <string>

#include "checkpoint/sample.h"

namespace ck = deepspeed::checkpoint;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<ck::sample::Spec> specs = {{"model/w", {700, 301}, deepspeed::base::Dtype::f32},
                                               {"model/b", {301}, deepspeed::base::Dtype::bf16},
                                               {"optimizer/exp_avg/w", {700, 301}, deepspeed::base::Dtype::f32}};
  const auto group = deepspeed::comm::self_group();
  try {
    const auto reader = ck::Reader::open_newest(*group, argv[1]);
    if (reader && !ck::sample::all_read_back(*reader, specs, reader->state()["version"].get<std::uint64_t>())) return 3;
    for (auto step = std::strtoull(argv[2], nullptr, 10);; ++step) {
      ck::sample::save_whole(argv[1], "global_step" + std::to_string(step), specs, step, 2);
      if (step % 3 == 0) ck::sample::save_whole(argv[1], "global_step" + std::to_string(step), specs, step, 2);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
