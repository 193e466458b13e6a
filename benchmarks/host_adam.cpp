// SPDX-License-Identifier: Apache-2.0
// What the host kernels cost against the machine's memory: AdamW and its company beside a STREAM triad
// (McCalpin, 1995), on one thread and on all that OMP_NUM_THREADS gives. Medians.
//
//   host_adam [millions of elements, default 50] [repetitions, default 11]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host.h"
#include "kernels/threads.h"

namespace {

using namespace deepspeed::kernels;

#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("arch=x86-64-v3", "default")))
#endif
void triad(float* a, const float* b, const float* c, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
}

double median_ms(int repetitions, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> times;
  for (int r = 0; r < repetitions; ++r) {
    const auto start = Clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[static_cast<std::size_t>(repetitions / 2)];
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t n = (argc > 1 ? std::atoll(argv[1]) : 50) * 1000000;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 11;
  if (n <= 0 || repetitions <= 0) {
    fmt::print(stderr, "usage: host_adam [millions of elements] [repetitions]\n");
    return 2;
  }
  const Threads threads;
  const auto make = [&](Dtype type, float value) {
    const auto bytes = static_cast<std::size_t>(n) * deepspeed::base::size_of(type);
    Memory memory(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
    const Buffer buffer{memory.get(), n, type};
    zero(buffer);  // each thread touches its own part first
    if (type == Dtype::f32)
      for_chunks(n, [&](std::int64_t begin, std::int64_t end) {
        std::fill(static_cast<float*>(memory.get()) + begin, static_cast<float*>(memory.get()) + end, value);
      });
    return memory;
  };
  const Memory p = make(Dtype::f32, 1), g = make(Dtype::f32, 1e-3f), m = make(Dtype::f32, 0), v = make(Dtype::f32, 0),
               g16 = make(Dtype::bf16, 0), w16 = make(Dtype::bf16, 0);
  const auto f32_of = [&](const Memory& memory) { return Buffer{memory.get(), n, Dtype::f32}; };
  const Buffer gradient16{g16.get(), n, Dtype::bf16}, working16{w16.get(), n, Dtype::bf16};
  cast(gradient16, f32_of(g));
  const Buffer states[] = {f32_of(m), f32_of(v)};
  UpdateStep step;
  step.beta1 = 0.9f, step.alpha1 = 0.1f, step.beta2 = 0.999f, step.alpha2 = 0.001f, step.eps = 1e-8f;
  step.decay = -1e-5f, step.negative_rate = -1e-3f;

  struct Case {
    std::string name;
    int bytes;     // moved for each element, as the program asks
    int allocate;  // read for each element only because a line is written that wasn't read
    std::function<void()> run;
  };
  const void* const inputs[] = {g.get(), p.get()};
  const std::vector<Case> cases{
      {"triad", 12, 4,
       [&] {
         for_chunks(n, [&](std::int64_t begin, std::int64_t end) {
           triad(static_cast<float*>(m.get()) + begin, static_cast<float*>(p.get()) + begin,
                 static_cast<float*>(g.get()) + begin, end - begin);
         });
       }},
      {"AdamW fp32", 28, 0,
       [&] {
         update(adamw, {f32_of(p), f32_of(g), states, {}}, step);
       }},
      {"AdamW bf16 gradient and copy", 28, 2,
       [&] {
         update(adamw, {f32_of(p), gradient16, states, working16}, step);
       }},
      {"cast fp32 to bf16", 6, 2, [&] { cast(working16, f32_of(p)); }},
      {"accumulate fp32 += bf16", 10, 0, [&] { accumulate(f32_of(m), gradient16); }},
      {"sum of squares fp32", 4, 0, [&] { sum_squares(f32_of(g)); }},
      {"ordered sum of 2 fp32", 12, 4, [&] { ordered_sum(f32_of(m), inputs, Dtype::f32, 0.5f); }},
  };
  fmt::print("{} M elements, {}, median of {}\n", n / 1000000, host_loops().name, repetitions);
  fmt::print("{:<30} {:>7} {:>9} {:>9} {:>14}\n", "", "threads", "ms", "GB/s", "with allocate");
  const auto measure = [&](int used) {
    for (const Case& c : cases) {
      zero(states[0]);
      zero(states[1]);
      const double ms = median_ms(repetitions, c.run);
      const double million = static_cast<double>(n) / 1e6;
      fmt::print("{:<30} {:>7} {:>9.2f} {:>9.1f} {:>14.1f}\n", c.name, used, ms, million * c.bytes / ms,
                 million * (c.bytes + c.allocate) / ms);
    }
  };
  std::thread([&] { measure(1); }).join();  // any but the first thread runs the loops serially
  if (concurrency() > 1) measure(concurrency());
}
