// SPDX-License-Identifier: Apache-2.0
#include "kernels/threads.h"

#include <Kokkos_Core.hpp>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace deepspeed::kernels {

namespace {

using Space = Kokkos::DefaultHostExecutionSpace;

std::mutex mutex;
int living = 0;        // Threads objects
bool ours = false;     // we initialised Kokkos
bool started = false;  // ever
// The one thread that may call Kokkos; no thread while there is none.
std::atomic<std::thread::id> owner{};

bool may_use_kokkos() {
  return owner.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

}  // namespace

Threads::Threads() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (living++ > 0) return;
  if (!Kokkos::is_initialized()) {
    if (started) return;
    setenv("KOKKOS_DISABLE_WARNINGS", "1", 0);  // its advice on thread binding is for the launcher, not for our users
    int argc = 0;
    char* argv[] = {nullptr};
    Kokkos::initialize(argc, argv);
    ours = true;
  }
  started = true;
  owner = std::this_thread::get_id();
}

Threads::~Threads() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (--living > 0) return;
  owner = std::thread::id{};
  if (ours && Kokkos::is_initialized()) Kokkos::finalize();
  ours = false;
}

int concurrency() {
  return may_use_kokkos() ? static_cast<int>(Space().concurrency()) : 1;
}

void run_chunks(std::int64_t chunks, void (*body)(void*, std::int64_t), void* context) {
  if (chunks < 2 || concurrency() < 2) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
    return;
  }
  Kokkos::parallel_for("deepspeed", Kokkos::RangePolicy<Space>(0, chunks),
                       [=](std::int64_t chunk) { body(context, chunk); });
  Space().fence();
}

}  // namespace deepspeed::kernels
