// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

/// What the kernels of a transformer's layers act on. Data are row-major and of one type (fp32, bf16 or fp16);
/// arithmetic, statistics and sums are fp32, rounded once as they are written. All pointers are device memory, aligned
/// to their elements; where they, and the rows behind them, are aligned to 16 bytes, a kernel runs near the memory's
/// bandwidth. Scratch is aligned so, always. A sum is formed in an order that its shape alone decides: the same input
/// gives the same bits. A pointer that may be null says so.
namespace deepspeed::device {

using base::Dtype;

/// LayerNorm (Ba et al. 2016): y = (x - mean) rstd weight + bias; RMSNorm (Zhang and Sennrich 2019): y = x rstd weight.
struct NormForward {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float eps = 1e-5F;               ///< added to the variance (the mean square)
  const void* x = nullptr;         ///< [rows, width]
  const void* residual = nullptr;  ///< [rows, width]; null = none
  void* sum = nullptr;             ///< [rows, width], with a residual: x + residual, rounded, takes the place of x in
                                   ///< what follows. May be x or residual.
  const void* weight = nullptr;    ///< [width]
  const void* bias = nullptr;      ///< [width]; null = none. LayerNorm only.
  void* y = nullptr;               ///< [rows, width]; may be x where there is no residual
  float* mean = nullptr;           ///< [rows]; LayerNorm only
  float* rstd = nullptr;           ///< [rows]: 1 / sqrt(variance + eps)
};

struct NormBackward {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* dy = nullptr;        ///< [rows, width]
  const void* x = nullptr;         ///< [rows, width]: what was normalized, so forward's `sum` if there was a residual
  const void* weight = nullptr;    ///< [width]
  const float* mean = nullptr;     ///< [rows]; LayerNorm only
  const float* rstd = nullptr;     ///< [rows]
  const void* residual = nullptr;  ///< [rows, width], added to dx: the gradient past the norm; null = none. May be dx.
  void* dx = nullptr;              ///< [rows, width]; may be dy
  void* dweight = nullptr;         ///< [width]; null = not wanted
  void* dbias = nullptr;           ///< [width]; null = not wanted. LayerNorm only.
  float* scratch = nullptr;        ///< norm_backward_scratch(width) floats
};
/// Floats that a norm's backward works in.
constexpr std::size_t norm_backward_scratch(std::int64_t width) {
  return 264 * static_cast<std::size_t>(std::max<std::int64_t>(8192, 2 * width));
}

/// GELU in its tanh form (Hendrycks and Gimpel 2016), of x + bias, which isn't rounded in between.
struct GeluForward {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* x = nullptr;     ///< [rows, width]
  const void* bias = nullptr;  ///< [width]; null = none
  void* y = nullptr;           ///< [rows, width]; may be x
};
struct GeluBackward {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* dy = nullptr;    ///< [rows, width]
  const void* x = nullptr;     ///< [rows, width], without the bias
  const void* bias = nullptr;  ///< [width]; null = none
  void* dx = nullptr;          ///< [rows, width]; may be dy or x
  void* dbias = nullptr;       ///< [width]: the sums of dx before it is rounded; null = not wanted
  float* scratch = nullptr;    ///< column_scratch floats, if dbias is wanted
};

/// sums[column] = the sum over rows: the gradient of a bias, or (rows = batch, width = positions * width of a position)
/// of a table of positions.
struct ColumnSum {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* x = nullptr;   ///< [rows, width]
  void* sums = nullptr;      ///< [width]
  bool accumulate = false;   ///< adds to `sums` instead
  float* scratch = nullptr;  ///< column_scratch floats
};
/// Floats that a sum over rows works in.
inline constexpr std::size_t column_scratch = std::size_t{2048} * 256;

/// SwiGLU (Shazeer 2020): y = silu(gate) up. Rows of gate and up (and of their gradients) start `stride` elements
/// apart, so that both may be halves of one product's output.
struct SwigluForward {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
  const void* gate = nullptr;  ///< [rows, width]
  const void* up = nullptr;    ///< [rows, width]
  void* y = nullptr;           ///< [rows, width], contiguous
};
struct SwigluBackward {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
  const void* dy = nullptr;    ///< [rows, width], contiguous
  const void* gate = nullptr;  ///< [rows, width]
  const void* up = nullptr;    ///< [rows, width]
  void* dgate = nullptr;       ///< [rows, width]; may be gate
  void* dup = nullptr;         ///< [rows, width]; may be up
};

/// Rotary position embedding (Su et al. 2021) of queries and keys, in place, in the layout of Llama: element i of a
/// head turns with element i + head_dim / 2.
struct Rope {
  /// [batch, positions, heads, head_dim], strides in elements; head_dim is contiguous.
  struct Heads {
    void* data = nullptr;
    std::int64_t heads = 0;  ///< 0 = none
    std::int64_t batch_stride = 0;
    std::int64_t position_stride = 0;
    std::int64_t head_stride = 0;
  };
  Dtype type = Dtype::bf16;
  std::int64_t batch = 0;
  std::int64_t positions = 0;
  std::int64_t head_dim = 0;  ///< even
  Heads q;
  Heads k;
  const float* cosine = nullptr;  ///< [positions, head_dim / 2]
  const float* sine = nullptr;    ///< [positions, head_dim / 2]
  bool backward = false;          ///< turns back: on the gradients of q and k
};

/// What `loss_sum` leaves in device memory.
struct LossSum {
  double sum = 0.0;         ///< of the losses
  double count = 0.0;       ///< of the targets that aren't ignored
  float mean = 0.0F;        ///< sum / count; NaN where there are none
  float reciprocal = 0.0F;  ///< 1 / count, 0 where there are none: the gradient's scale for a mean
};

/// Cross-entropy over a vocabulary: loss = log(sum of exp(logits)) - logits[target], one a row, without a wider copy of
/// the logits. A target that is neither ignored nor in the vocabulary gives the loss NaN.
struct CrossEntropy {
  Dtype type = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  std::int64_t stride = 0;                ///< elements between rows
  void* logits = nullptr;                 ///< [rows, vocabulary]
  const std::int64_t* targets = nullptr;  ///< [rows]
  std::int64_t ignored = -100;            ///< rows with this target have loss 0 and gradient 0
  float* losses = nullptr;                ///< [rows]
  /// Overwrites the logits by (softmax - onehot) scale, scale = the product of the factors given below; the columns
  /// from `vocabulary` to `padded` (at most `stride`), which fill up a row, by 0.
  bool gradient = false;
  std::int64_t padded = 0;
  float scale = 1.0F;
  const float* device_scales[2] = {nullptr, nullptr};  ///< e.g. LossSum::reciprocal and a loss scale; null = 1
};

/// The gradient of a table of embeddings: dtable[id] = the sum of dy over the places that hold it.
struct EmbeddingBackward {
  Dtype type = Dtype::bf16;
  std::int64_t count = 0;  ///< below 2^31
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;        ///< below 2^31
  const std::int64_t* ids = nullptr;  ///< [count]; places whose id isn't in the vocabulary are left out
  const void* dy = nullptr;           ///< [count, width]
  void* dtable = nullptr;             ///< [vocabulary, width]
  bool accumulate = false;            ///< adds to `dtable` (only rows with an id are touched) instead
  void* scratch = nullptr;            ///< embedding_scratch(count, width) bytes, aligned to 256
};

}  // namespace deepspeed::device
