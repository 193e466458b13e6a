// SPDX-License-Identifier: Apache-2.0
// The plug-in's kernels beside a plain device copy, which is the most that memory gives. Needs a GPU.
//   device_kernels [MILLIONS OF ELEMENTS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "device/device.h"

namespace {

namespace device = deepspeed::device;
using deepspeed::base::Dtype;

// Milliseconds of one run: the best of several, after one to warm up.
template <class Run>
float best_ms(Run&& run) {
  const device::Table& gpu = device::table();
  const device::EventHandle begin(gpu.event_create(true));
  const device::EventHandle end(gpu.event_create(true));
  float best = 1e30F;
  for (int round = 0; round < 11; ++round) {
    gpu.event_record(begin.get(), nullptr);
    run();
    gpu.event_record(end.get(), nullptr);
    gpu.event_synchronize(end.get());
    if (round > 0) best = std::min(best, gpu.event_elapsed_ms(begin.get(), end.get()));
  }
  return best;
}

void report(const char* what, float ms, double bytes) {
  std::printf("%-44s %9.3f ms %8.0f GB/s\n", what, static_cast<double>(ms), bytes / static_cast<double>(ms) * 1e-6);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const device::Table& gpu = device::table();
    const std::int64_t millions = argc > 1 ? std::atoll(argv[1]) : 512;
    const std::int64_t numel = millions * 1'000'000;
    const auto n = static_cast<double>(numel);
    gpu.set_device(0);
    std::printf("%s, %lld M elements\n", gpu.device_info(0).name.c_str(), static_cast<long long>(millions));

    std::vector<void*> fp32;
    std::vector<void*> fp16;
    for (int i = 0; i < 3; ++i) fp32.push_back(gpu.allocate(static_cast<std::size_t>(numel) * 4));
    for (int i = 0; i < 2; ++i) fp16.push_back(gpu.allocate(static_cast<std::size_t>(numel) * 2));
    for (void* pointer : fp32) gpu.fill(pointer, 0, static_cast<std::size_t>(numel) * 4, nullptr);
    for (void* pointer : fp16) gpu.fill(pointer, 0, static_cast<std::size_t>(numel) * 2, nullptr);
    auto* sum = static_cast<double*>(gpu.allocate(sizeof(double)));
    auto* scratch = static_cast<double*>(gpu.allocate(device::norm_scratch * sizeof(double)));
    auto* flag = static_cast<std::uint32_t*>(gpu.allocate(sizeof(std::uint32_t)));

    report("copy, fp32", best_ms([&] { gpu.copy(fp32[0], fp32[1], static_cast<std::size_t>(numel) * 4, nullptr); }),
           8 * n);

    // One piece, and the same memory as the parameters of a model: pieces of 1 to 4 million elements.
    device::AdamStep step;
    step.gradient_type = Dtype::bf16;
    step.working_type = Dtype::bf16;
    step.weight_decay = 0.1;
    const auto piece = [&](std::int64_t at, std::int64_t count) {
      device::AdamPiece p;
      p.master = static_cast<float*>(fp32[0]) + at;
      p.exp_avg = static_cast<float*>(fp32[1]) + at;
      p.exp_avg_sq = static_cast<float*>(fp32[2]) + at;
      p.gradient = static_cast<const char*>(fp16[0]) + 2 * at;
      p.working = static_cast<char*>(fp16[1]) + 2 * at;
      p.numel = count;
      return p;
    };
    const std::vector<device::AdamPiece> whole{piece(0, numel)};
    std::vector<device::AdamPiece> pieces;
    for (std::int64_t at = 0, k = 0; at < numel; ++k) {
      pieces.push_back(piece(at, std::min(numel - at, (k % 4 + 1) * 1'000'000)));
      at += pieces.back().numel;
    }
    report("AdamW, bf16 gradient and weights", best_ms([&] { gpu.adam(whole.data(), 1, step, nullptr); }), 28 * n);
    report("AdamW, in pieces", best_ms([&] { gpu.adam(pieces.data(), pieces.size(), step, nullptr); }), 28 * n);

    const deepspeed::base::ConstBuffer gradient(fp16[0], numel, Dtype::bf16);
    const deepspeed::base::ConstBuffer wide(fp32[0], numel, Dtype::f32);
    report("sum of squares, bf16", best_ms([&] { gpu.sum_of_squares(&gradient, 1, sum, flag, scratch, nullptr); }),
           2 * n);
    report("sum of squares, fp32", best_ms([&] { gpu.sum_of_squares(&wide, 1, sum, flag, scratch, nullptr); }), 4 * n);
    report("cast, fp32 to bf16", best_ms([&] { gpu.cast(wide, {fp16[1], numel, Dtype::bf16}, 1.0F, nullptr); }), 6 * n);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_kernels: %s\n", error.what());
    return 9;
  }
}
