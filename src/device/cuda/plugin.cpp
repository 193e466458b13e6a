// SPDX-License-Identifier: Apache-2.0
// The one symbol that the plug-in shows.
#include <cuda_runtime_api.h>

#include "cuda/check.cuh"

extern "C" __attribute__((visibility("default"))) const deepspeed::device::Table* deepspeed_device_table() {
  static const deepspeed::device::Table table = [] {
    using namespace deepspeed::device;  // NOLINT: the language allows no namespace block here
    Table t{};
    t.version = table_version;
    t.cuda_version = CUDART_VERSION;
    cuda::fill_runtime(t);
    cuda::fill_torch(t);
    cuda::fill_nccl(t);
    t.adam = cuda::adam;
    t.sum_of_squares = cuda::sum_of_squares;
    t.cast = cuda::cast;
    return t;
  }();
  return &table;
}
