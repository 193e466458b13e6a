// SPDX-License-Identifier: Apache-2.0
#include "comm/cores.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/handle.h"

namespace deepspeed::comm {
namespace {

void destroy_topology(hwloc_topology_t topology) {
  hwloc_topology_destroy(topology);
}
void free_bitmap(hwloc_bitmap_t bitmap) {
  hwloc_bitmap_free(bitmap);
}

int cores_in(hwloc_topology_t topology, hwloc_const_cpuset_t set) {
  int count = 0;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    if (hwloc_bitmap_intersects(core->cpuset, set) != 0) ++count;
  }
  // Some virtual machines show no cores.
  return count > 0 ? count : std::max(1, hwloc_bitmap_weight(set));
}

}  // namespace

Cores find_cores() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {};
  const base::Handle<hwloc_topology_t, destroy_topology> topology(raw);
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(raw) != 0) return {};
  Cores cores;
  const hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(raw);
  cores.allowed = cores_in(raw, allowed);
  const base::Handle<hwloc_bitmap_t, free_bitmap> bound(hwloc_bitmap_alloc());
  cores.bound =
      hwloc_get_cpubind(raw, bound.get(), HWLOC_CPUBIND_PROCESS) == 0 ? cores_in(raw, bound.get()) : cores.allowed;
  return cores;
}

int threads_for(const Cores& cores, int local_size) {
  if (const char* given = std::getenv("OMP_NUM_THREADS")) {
    const int threads = std::atoi(given);  // "4,2" (nested levels) begins with the outer one
    if (threads > 0) return threads;
  }
  return std::max(1, std::min(cores.bound, cores.allowed / std::max(1, local_size)));
}

std::string binding_advice(const Cores& cores, int local_size) {
  const int share = cores.allowed / std::max(1, local_size);
  if (cores.bound >= share) return "";
  const std::string problem =
      fmt::format("a rank is bound to {} of the {} cores that are its share ({} cores, {} rank{} on this host)",
                  cores.bound, share, cores.allowed, local_size, local_size == 1 ? "" : "s");
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return fmt::format("{}; start with `mpirun --bind-to none` or `mpirun --map-by slot:PE={}`", problem, share);
  }
  if (std::getenv("SLURM_STEP_ID") != nullptr) {
    return fmt::format("{}; start with `srun --cpus-per-task={}`", problem, share);
  }
  return fmt::format("{}; tell the launcher to give each rank {} cores", problem, share);
}

}  // namespace deepspeed::comm
