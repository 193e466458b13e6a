// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/error.h"
#include "device/device.h"

namespace deepspeed::device::cuda {

/// Throws DeviceError naming the call; the runtime's own error state is cleared, so that the next call starts clean
/// (an error that poisoned the context comes back by itself).
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw base::DeviceError(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

inline cudaStream_t native(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
inline cudaEvent_t native(Event event) {
  return reinterpret_cast<cudaEvent_t>(event);
}

// The parts of the table, each in its own source.
void fill_runtime(Table& table);
void fill_torch(Table& table);
void fill_nccl(Table& table);
void adam(const AdamPiece* pieces, std::size_t count, const AdamStep& step, Stream stream);
void sum_of_squares(const ConstBuffer* pieces, std::size_t count, double* sum, std::uint32_t* not_finite,
                    double* scratch, Stream stream);
void cast(ConstBuffer input, Buffer output, float scale, Stream stream);
void layer_norm_forward(const NormForward& norm, Stream stream);
void layer_norm_backward(const NormBackward& norm, Stream stream);
void rms_norm_forward(const NormForward& norm, Stream stream);
void rms_norm_backward(const NormBackward& norm, Stream stream);
void gelu_forward(const GeluForward& gelu, Stream stream);
void gelu_backward(const GeluBackward& gelu, Stream stream);
void column_sum(const ColumnSum& sum, Stream stream);
void swiglu_forward(const SwigluForward& swiglu, Stream stream);
void swiglu_backward(const SwigluBackward& swiglu, Stream stream);
void rope(const Rope& rope, Stream stream);
void cross_entropy(const CrossEntropy& loss, Stream stream);
void loss_sum(const float* losses, const std::int64_t* targets, std::int64_t rows, std::int64_t ignored,
              LossSum* result, Stream stream);
void embedding_backward(const EmbeddingBackward& embedding, Stream stream);
std::size_t embedding_scratch(std::int64_t count, std::int64_t width);

}  // namespace deepspeed::device::cuda
