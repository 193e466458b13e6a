// SPDX-License-Identifier: Apache-2.0
// What only torch's own CUDA library can say.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/check.cuh"

namespace deepspeed::device::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

Stream torch_stream() {
  return reinterpret_cast<Stream>(c10::cuda::getCurrentCUDAStream().stream());
}

std::size_t bytes(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

TorchMemory torch_memory(int device) {
  // The allocator comes to life with torch's first CUDA tensor.
  if (!allocator::get()->initialized()) return {};
  const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  const auto& held = stats.allocated_bytes[0];  // 0: all pools together
  const auto& taken = stats.reserved_bytes[0];
  return {bytes(held.current), bytes(held.peak), bytes(taken.current), bytes(taken.peak)};
}

void torch_reset_peak(int device) {
  if (allocator::get()->initialized()) allocator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
}

void torch_empty_cache() {
  if (allocator::get()->initialized()) allocator::emptyCache();
}

}  // namespace

void fill_torch(Table& table) {
  table.torch_stream = torch_stream;
  table.torch_memory = torch_memory;
  table.torch_reset_peak = torch_reset_peak;
  table.torch_empty_cache = torch_empty_cache;
}

}  // namespace deepspeed::device::cuda
