// SPDX-License-Identifier: Apache-2.0
// mpirun -n N collectives [MEGABYTES]: the groups' collectives beside MPI's own blocking ones, and what arithmetic
// loses to a collective that runs beside it. Best of several runs, largest over the ranks.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "comm/process.h"

namespace {

using deepspeed::base::Dtype;
using deepspeed::comm::Process;

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

int body(Process& process, double megabytes) {
  deepspeed::comm::Group& world = *process.world();
  const int ranks = world.size();
  const std::int64_t slice = std::max<std::int64_t>(1, static_cast<std::int64_t>(megabytes * 1e6 / 4) / ranks);
  const std::int64_t numel = slice * ranks;
  std::vector<float> x(static_cast<std::size_t>(numel), 1.0F);
  std::vector<float> y(static_cast<std::size_t>(numel));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), slice);
  const int n = static_cast<int>(numel);
  const int s = static_cast<int>(slice);

  const auto best = [&](const std::function<void()>& work, int runs) {
    double least = 1e30;
    for (int i = 0; i < runs; ++i) {
      world.barrier().wait();
      least = std::min(least, world.all_reduce_value(milliseconds(work), deepspeed::comm::ReduceOp::max));
    }
    return least;
  };
  const auto ours = [&](const std::function<deepspeed::comm::Work()>& start) {
    return best([&] { start().wait(); }, 15);
  };
  // MPI's own calls may only be made on the communication thread.
  const auto theirs = [&](const std::function<void()>& call) { return best([&] { process.run(call).wait(); }, 15); };
  const auto line = [&](const char* name, double own, double mpi) {
    if (process.rank() == 0) std::printf("%-24s %9.3f ms   MPI, blocking %9.3f ms\n", name, own, mpi);
  };
  if (process.rank() == 0) std::printf("%d ranks, %.3f MB of fp32\n", ranks, static_cast<double>(numel) * 4e-6);
  line("all_reduce", ours([&] {
         return world.all_reduce({x.data(), numel, Dtype::f32});
       }),
       theirs([&] { MPI_Allreduce(MPI_IN_PLACE, x.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }));
  line("all_reduce bf16", ours([&] { return world.all_reduce({x.data(), numel * 2, Dtype::bf16}); }), 0);
  line("reduce_scatter", ours([&] {
         return world.reduce_scatter({x.data(), numel, Dtype::f32}, {y.data(), slice, Dtype::f32});
       }),
       theirs([&] { MPI_Reduce_scatter_block(x.data(), y.data(), s, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }));
  line("ordered_reduce_scatter", ours([&] {
         return world.ordered_reduce_scatter({x.data(), numel, Dtype::f32}, counts, {y.data(), slice, Dtype::f32});
       }),
       0);
  line("all_gather", ours([&] {
         return world.all_gather({x.data(), slice, Dtype::f32}, counts, {y.data(), numel, Dtype::f32});
       }),
       theirs([&] { MPI_Allgather(x.data(), s, MPI_FLOAT, y.data(), s, MPI_FLOAT, MPI_COMM_WORLD); }));
  line("broadcast", ours([&] {
         return world.broadcast({x.data(), numel, Dtype::f32}, 0);
       }),
       theirs([&] { MPI_Bcast(x.data(), n, MPI_FLOAT, 0, MPI_COMM_WORLD); }));
  line("all_to_all", ours([&] {
         return world.all_to_all({x.data(), numel, Dtype::f32}, {y.data(), numel, Dtype::f32});
       }),
       theirs([&] { MPI_Alltoall(x.data(), s, MPI_FLOAT, y.data(), s, MPI_FLOAT, MPI_COMM_WORLD); }));
  line("barrier", ours([&] { return world.barrier(); }), theirs([&] { MPI_Barrier(MPI_COMM_WORLD); }));

  volatile double z = 1;
  const auto arithmetic = [&] {
    for (int i = 0; i < 40000000; ++i) z = z * 1.0000001;
  };
  const double alone = best(arithmetic, 3);
  const double beside = best(
      [&] {
        auto work = world.ordered_reduce_scatter({x.data(), numel, Dtype::f32}, counts, {y.data(), slice, Dtype::f32});
        arithmetic();
        work.wait();
      },
      3);
  // Rank 0 comes late: the others' threads wait beside their arithmetic.
  const double waiting = best(
      [&] {
        deepspeed::comm::Work work;
        if (process.rank() != 0) work = world.barrier();
        arithmetic();
        if (process.rank() == 0) work = world.barrier();
        work.wait();
      },
      3);
  if (process.rank() == 0) {
    std::printf("arithmetic %.1f ms; with an ordered_reduce_scatter beside it %.1f ms; with a late rank %.1f ms\n",
                alone, beside, waiting);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double megabytes = argc > 1 ? std::atof(argv[1]) : 40;
  return deepspeed::comm::run_program("collectives", argc, argv,
                                      [&](Process& process, int, char**) { return body(process, megabytes); });
}
