// SPDX-License-Identifier: Apache-2.0
// The plug-in's kernels beside a plain device copy, which is the most that memory gives. Needs a GPU.
//   device_kernels [MILLIONS OF ELEMENTS]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "device/device.h"

namespace {

namespace device = deepspeed::device;
using deepspeed::base::Dtype;

// Milliseconds of one run: the best of several, after one to warm up. `times` runs follow one another, so that what a
// launch costs the host doesn't count.
template <class Run>
float best_ms(Run&& run, int times = 1) {
  const device::Table& gpu = device::table();
  const device::EventHandle begin(gpu.event_create(true));
  const device::EventHandle end(gpu.event_create(true));
  float best = 1e30F;
  for (int round = 0; round < 11; ++round) {
    gpu.event_record(begin.get(), nullptr);
    for (int time = 0; time < times; ++time) run();
    gpu.event_record(end.get(), nullptr);
    gpu.event_synchronize(end.get());
    if (round > 0) best = std::min(best, gpu.event_elapsed_ms(begin.get(), end.get()));
  }
  return best / static_cast<float>(times);
}

void report(const char* what, float ms, double bytes) {
  std::printf("%-52s %9.3f ms %8.0f GB/s\n", what, static_cast<double>(ms), bytes / static_cast<double>(ms) * 1e-6);
}

// The layers of GPT-2 124M (32 x 1024 tokens, vocabulary 50257 padded to 50304) and of Llama 1.3B (8 x 2048), in bf16.
class Layers {
 public:
  Layers() {
    for (void*& memory : memory_) memory = take(std::size_t{32768} * 3072 * 2, 0x3c);
    scratch_ = static_cast<float*>(take(device::norm_backward_scratch(8192) * 4, 0));
    floats_ = static_cast<float*>(take(32768 * 4, 0x3c));
    more_floats_ = static_cast<float*>(take(32768 * 64 * 4, 0x3c));
  }
  ~Layers() {
    for (void* memory : taken_) gpu_.release(memory);
  }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  void norms(std::int64_t rows, std::int64_t width) {
    const auto n = static_cast<double>(rows * width) * 2;
    const auto bytes = static_cast<std::size_t>(rows * width) * 2;
    // What lasts microseconds starts and ends slowly, a copy too.
    show("copy", rows, width, 2 * n, [&] { gpu_.copy(memory_[2], memory_[0], bytes, nullptr); });
    device::NormForward f;
    f.rows = rows;
    f.width = width;
    f.x = memory_[0];
    f.weight = f.bias = memory_[1];
    f.y = memory_[2];
    f.mean = f.rstd = floats_;
    show("layer_norm_forward", rows, width, 2 * n, [&] { gpu_.layer_norm_forward(f, nullptr); });
    show("rms_norm_forward", rows, width, 2 * n, [&] { gpu_.rms_norm_forward(f, nullptr); });
    f.residual = memory_[3];
    f.sum = memory_[4];
    show("layer_norm_forward + residual", rows, width, 4 * n, [&] { gpu_.layer_norm_forward(f, nullptr); });
    device::NormBackward b;
    b.rows = rows;
    b.width = width;
    b.dy = memory_[0];
    b.x = memory_[1];
    b.weight = memory_[2];
    b.mean = b.rstd = floats_;
    b.dx = memory_[3];
    b.dweight = b.dbias = memory_[5];
    b.scratch = scratch_;
    show("layer_norm_backward", rows, width, 3 * n, [&] { gpu_.layer_norm_backward(b, nullptr); });
    b.residual = memory_[4];
    show("layer_norm_backward + residual", rows, width, 4 * n, [&] { gpu_.layer_norm_backward(b, nullptr); });
    show("rms_norm_backward + residual", rows, width, 4 * n, [&] { gpu_.rms_norm_backward(b, nullptr); });
  }

  void activations(std::int64_t rows, std::int64_t width) {
    const auto n = static_cast<double>(rows * width) * 2;
    const device::GeluForward forward{Dtype::bf16, rows, width, memory_[0], memory_[5], memory_[1]};
    device::GeluBackward backward{Dtype::bf16, rows, width, memory_[0], memory_[1], memory_[5], memory_[2]};
    show("gelu_forward", rows, width, 2 * n, [&] { gpu_.gelu_forward(forward, nullptr); });
    show("gelu_backward", rows, width, 3 * n, [&] { gpu_.gelu_backward(backward, nullptr); });
    backward.dbias = memory_[6];
    backward.scratch = scratch_;
    show("gelu_backward + dbias", rows, width, 3 * n, [&] { gpu_.gelu_backward(backward, nullptr); });
    const device::SwigluForward swiglu{Dtype::bf16, rows, width, width, memory_[0], memory_[1], memory_[2]};
    const device::SwigluBackward back{Dtype::bf16, rows,       width,      width,     memory_[0],
                                      memory_[1],  memory_[2], memory_[3], memory_[4]};
    show("swiglu_forward", rows, width, 3 * n, [&] { gpu_.swiglu_forward(swiglu, nullptr); });
    show("swiglu_backward", rows, width, 5 * n, [&] { gpu_.swiglu_backward(back, nullptr); });
  }

  void sums(std::int64_t rows, std::int64_t width) {
    const device::ColumnSum sum{Dtype::bf16, rows, width, memory_[0], memory_[5], false, scratch_};
    show("column_sum", rows, width, static_cast<double>(rows * width) * 2, [&] { gpu_.column_sum(sum, nullptr); });
  }

  void rope(std::int64_t batch, std::int64_t positions, std::int64_t heads, std::int64_t head_dim) {
    device::Rope rope;
    rope.batch = batch;
    rope.positions = positions;
    rope.head_dim = head_dim;
    rope.q = {memory_[0], heads, positions * heads * head_dim, heads * head_dim, head_dim};
    rope.k = rope.q;
    rope.k.data = memory_[1];
    rope.cosine = rope.sine = more_floats_;
    const std::int64_t rows = batch * positions;
    show("rope, queries and keys", rows, heads * head_dim, static_cast<double>(rows * heads * head_dim) * 8,
         [&] { gpu_.rope(rope, nullptr); });
  }

  void cross_entropy(std::int64_t rows, std::int64_t vocabulary, std::int64_t stride) {
    device::CrossEntropy loss;
    loss.rows = rows;
    loss.vocabulary = vocabulary;
    loss.stride = loss.padded = stride;
    loss.logits = take(static_cast<std::size_t>(rows * stride) * 2, 0x3c);
    loss.targets = ids(rows, vocabulary);
    loss.losses = floats_;
    const auto n = static_cast<double>(rows * vocabulary) * 2;
    show("cross_entropy, loss alone", rows, vocabulary, n, [&] { gpu_.cross_entropy(loss, nullptr); });
    loss.gradient = true;
    show("cross_entropy, with gradient", rows, vocabulary, 2 * n, [&] { gpu_.cross_entropy(loss, nullptr); });
    auto* sum = static_cast<device::LossSum*>(take(sizeof(device::LossSum), 0));
    show("loss_sum", rows, 1, static_cast<double>(rows) * 12,
         [&] { gpu_.loss_sum(floats_, loss.targets, rows, -100, sum, nullptr); });
  }

  void embedding(std::int64_t count, std::int64_t width, std::int64_t vocabulary) {
    device::EmbeddingBackward e;
    e.count = count;
    e.width = width;
    e.vocabulary = vocabulary;
    e.dy = memory_[0];
    e.dtable = memory_[1];
    e.scratch = take(gpu_.embedding_scratch(count, width), 0);
    // Read once; written, or read and written, where there is an id.
    e.ids = ids(count, vocabulary);
    const auto n = static_cast<double>(count * width) * 2;
    show("embedding_backward, table written", count, width, n + static_cast<double>(vocabulary * width) * 2,
         [&] { gpu_.embedding_backward(e, nullptr); });
    e.accumulate = true;
    show("embedding_backward, added", count, width, 3 * n, [&] { gpu_.embedding_backward(e, nullptr); });
    e.ids = ids(count, 1);
    show("embedding_backward, one id", count, width, n, [&] { gpu_.embedding_backward(e, nullptr); });
  }

 private:
  void* take(std::size_t bytes, int byte) {
    taken_.push_back(gpu_.allocate(bytes));
    gpu_.fill(taken_.back(), byte, bytes, nullptr);
    return taken_.back();
  }
  const std::int64_t* ids(std::int64_t count, std::int64_t below) {
    std::vector<std::int64_t> host(static_cast<std::size_t>(count));
    std::uint32_t state = 1;
    for (std::int64_t& id : host) {
      state = state * 1664525U + 1013904223U;
      id = static_cast<std::int64_t>(state >> 8U) % below;
    }
    void* memory = take(host.size() * sizeof(std::int64_t), 0);
    gpu_.copy(memory, host.data(), host.size() * sizeof(std::int64_t), nullptr);
    gpu_.stream_synchronize(nullptr);
    return static_cast<const std::int64_t*>(memory);
  }
  template <class Run>
  void show(const char* what, std::int64_t rows, std::int64_t width, double bytes, Run&& run) {
    char name[128];
    std::snprintf(name, sizeof name, "%s, %lld x %lld", what, static_cast<long long>(rows),
                  static_cast<long long>(width));
    report(name, best_ms(run, 5), bytes);
  }

  const device::Table& gpu_ = device::table();
  std::vector<void*> taken_;
  std::array<void*, 7> memory_{};
  float* scratch_ = nullptr;
  float* floats_ = nullptr;
  float* more_floats_ = nullptr;
};

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

    for (void* pointer : fp32) gpu.release(pointer);
    for (void* pointer : fp16) gpu.release(pointer);
    Layers layers;
    layers.norms(32768, 768);
    layers.norms(8192, 1600);
    layers.norms(16384, 2048);
    layers.norms(16384, 4096);
    layers.activations(32768, 3072);
    layers.activations(16384, 5504);
    for (const std::int64_t width : {768, 2304, 3072}) layers.sums(32768, width);
    layers.sums(32, 1024 * 768);
    layers.rope(8, 2048, 16, 128);
    layers.cross_entropy(32768, 50257, 50304);
    layers.cross_entropy(16384, 32000, 32000);
    layers.embedding(32768, 768, 50257);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_kernels: %s\n", error.what());
    return 9;
  }
}
