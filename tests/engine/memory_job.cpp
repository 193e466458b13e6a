// SPDX-License-Identifier: Apache-2.0
// memory_job STAGE LAYERS: trains a stack of layers and prints what a rank has resident, in bytes, with all of a step's
// gradients there. A process of its own, since memory that was used once comes back to the system when the heap likes.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "comm/process.h"
#include "config/config.h"
#include "engine/engine.h"
#include "engine/layer_stack.h"
#include "nn/memory.h"

namespace deepspeed::engine::testing {
namespace {

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double all = 0;
  double resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

int measure(comm::Process& process, int stage, int layers) {
  constexpr std::int64_t width = 512;
  const std::shared_ptr<comm::Group> world = process.world();
  config::Facts facts;
  facts.world_size = world->size();
  facts.accelerator = true;
  // The sum over micro batches that stage 1 holds beside the mean is there only where there are several.
  const std::int64_t accumulation = stage == 1 ? 2 : 1;
  const config::Config config =
      config::Config::parse(stack_config(stage, accumulation, width).dump(), "memory_job", {}, facts);
  nn::count_allocations();
  zero::Init sharded(world, init_options(config));
  const auto model = std::make_shared<LayerStack>(layers, width);
  sharded.close();
  const auto engine = initialize(model, config, world);
  const auto micro = [&] { engine->backward(engine->forward([&] { return model->loss(); })); };
  for (std::int64_t i = 0; i < accumulation; ++i) {
    micro();
    engine->step();
  }
  micro();
  const double mean = world->all_reduce_value(resident_bytes()) / world->size();
  if (world->rank() == 0) std::printf("%.0f\n", mean);
  engine->step();
  return 0;
}

}  // namespace
}  // namespace deepspeed::engine::testing

int main(int argc, char** argv) {
  return deepspeed::comm::run_program(
      "memory_job", argc, argv, [](deepspeed::comm::Process& process, int count, char** arguments) {
        if (count != 3) return 2;
        return deepspeed::engine::testing::measure(process, std::atoi(arguments[1]), std::atoi(arguments[2]));
      });
}
