// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace deepspeed::kernels {

/// Host threads for the kernels: one object in `main`, for the life of the process. It initialises Kokkos unless the
/// application has done so (then on this same thread), with as many threads as OpenMP would use here, and finalises
/// what it initialised. Kernels run in parallel when called on the thread that made the first Threads; on any other
/// thread, and while no Threads lives, they run the same loops serially, with the same bits. Several objects count as
/// one; Kokkos can't start twice in a process, so once the last is gone kernels stay serial.
class Threads {
 public:
  Threads();
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
};

/// How many threads a kernel called on this thread uses.
int concurrency();

/// Elements that one chunk holds. Chunks are the same however many threads share them.
inline constexpr std::int64_t chunk_size = 65536;

/// Calls body(context, chunk) for every chunk in [0, chunks), possibly in parallel.
void run_chunks(std::int64_t chunks, void (*body)(void* context, std::int64_t chunk), void* context);

/// Calls f(begin, end) for consecutive ranges of chunk_size that cover [0, n), possibly in parallel.
template <class F>
void for_chunks(std::int64_t n, F f) {
  struct Context {
    F* f;
    std::int64_t n;
  } context{&f, n};
  run_chunks((n + chunk_size - 1) / chunk_size,
             [](void* raw, std::int64_t chunk) {
               const auto& c = *static_cast<Context*>(raw);
               const std::int64_t begin = chunk * chunk_size;
               (*c.f)(begin, begin + chunk_size < c.n ? begin + chunk_size : c.n);
             },
             &context);
}

}  // namespace deepspeed::kernels
