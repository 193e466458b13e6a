// SPDX-License-Identifier: Apache-2.0
// Jobs that end in each of the ways that run_program has to cope with: comm_job SCENARIO.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/process.h"

namespace {

using namespace std::chrono_literals;
using deepspeed::comm::Process;

void sum(Process& process) {
  float x = 1.0F;
  process.world()->all_reduce({&x, 1, deepspeed::base::Dtype::f32}).wait();
}

int body(Process& process, const std::string& scenario) {
  sum(process);
  const int rank = process.rank();
  const int last = process.size() - 1;
  if (scenario == "fine") {
    std::printf("rank %d of %d\n", rank, process.size());
    return 0;
  }
  if (scenario == "preempted") return 75;
  if (scenario == "config") {
    throw deepspeed::base::ConfigError("zero_optimization.stage: 7 is not a stage; use 0, 1, 2 or 3");
  }
  if (scenario == "no_memory") {
    if (rank == last) throw deepspeed::base::MemoryError();
    throw std::bad_alloc();
  }
  if (scenario == "most") {
    if (rank == 0) return 0;
    throw deepspeed::base::DataError("no tokens");
  }
  if (scenario == "one_of_waiting") {
    if (rank == last) throw deepspeed::base::IoError("/data/x: No space left on device");
    sum(process);
  }
  if (scenario == "first_of_waiting") {
    if (rank == 0) throw std::runtime_error("a bug");
    sum(process);
  }
  if (scenario == "one_while_others_compute") {
    if (rank == last) throw deepspeed::base::CheckpointError("tag 5: damaged");
    std::this_thread::sleep_for(60s);
  }
  if (scenario == "one_with_memory_under_way") {
    // A collective still writes to memory that the exception would free.
    std::vector<float> x(8000000);
    auto work = process.world()->all_reduce({x.data(), 8000000, deepspeed::base::Dtype::f32});
    try {
      if (rank == last) throw deepspeed::base::DataError("half a batch");
      work.wait();
      sum(process);
    } catch (...) {
      process.report_failure();
      throw;
    }
  }
  if (scenario == "all_with_memory_under_way") {
    std::vector<float> x(8000000);
    auto work = process.world()->all_reduce({x.data(), 8000000, deepspeed::base::Dtype::f32});
    try {
      throw deepspeed::base::DataError("half a batch");
    } catch (...) {
      process.report_failure();
      std::puts(work.done() ? "settled" : "still under way");
      throw;
    }
  }
  if (scenario == "leaves_early") {
    if (rank == last) return 0;
    sum(process);
  }
  if (scenario == "killed") {
    if (rank == last) raise(SIGKILL);
    sum(process);
  }
  if (scenario == "timeout") {
    if (rank == last) std::this_thread::sleep_for(60s);
    sum(process);
  }
  if (scenario == "mismatch") {
    if (rank == last) process.world()->barrier().wait();
    sum(process);
  }
  if (scenario == "slow_rank") {
    // A rank that is late, or ends first, is no failure.
    if (rank == 0) std::this_thread::sleep_for(3s);
    sum(process);
    if (rank == last) std::this_thread::sleep_for(3s);
    return 0;
  }
  if (scenario == "abort") {
    if (rank == last) process.abort(9);
    sum(process);
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "fine";
  return deepspeed::comm::run_program("comm_job", argc, argv,
                                      [&](Process& process, int, char**) { return body(process, scenario); });
}
