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
    t.layer_norm_forward = cuda::layer_norm_forward;
    t.layer_norm_backward = cuda::layer_norm_backward;
    t.rms_norm_forward = cuda::rms_norm_forward;
    t.rms_norm_backward = cuda::rms_norm_backward;
    t.gelu_forward = cuda::gelu_forward;
    t.gelu_backward = cuda::gelu_backward;
    t.column_sum = cuda::column_sum;
    t.swiglu_forward = cuda::swiglu_forward;
    t.swiglu_backward = cuda::swiglu_backward;
    t.rope = cuda::rope;
    t.cross_entropy = cuda::cross_entropy;
    t.loss_sum = cuda::loss_sum;
    t.embedding_backward = cuda::embedding_backward;
    t.embedding_scratch = cuda::embedding_scratch;
    return t;
  }();
  return &table;
}
