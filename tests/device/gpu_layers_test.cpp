// SPDX-License-Identifier: Apache-2.0
// The kernels of a transformer's layers against plain references in double, where there is a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "gpu.h"

namespace deepspeed::device {
namespace {

// A tensor of some type on the device, and the values that it holds on the host. `shift` elements in front of it.
struct Tensor {
  Tensor(const std::vector<float>& numbers, Dtype of, std::size_t shift = 0)
      : type(of), values(decode(encode(numbers, of), of)), memory(encode(numbers, of), shift * base::size_of(of)) {}
  void* data() const { return memory.data(); }
  std::vector<float> now() const { return decode(memory.values(), type); }

  Dtype type;
  std::vector<float> values;
  OnDevice<std::byte> memory;
};

// Numbers between -2 and 2.
std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = seed * 2654435761U + 1U;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8U) / 4194304.0F - 2.0F;
  }
  return values;
}
std::vector<float> zeros(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count));
}

// `noise` is what arithmetic in fp32 may be off by; the rest is one rounding.
void expect_near(const std::vector<float>& got, const std::vector<double>& expected, Dtype type, double noise,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  const double half_unit = type == Dtype::f32 ? 1.2e-7 : type == Dtype::bf16 ? 1.0 / 256 : 1.0 / 2048;
  std::size_t wrong = 0;
  std::size_t at = 0;
  for (std::size_t i = got.size(); i-- > 0;) {
    const double limit = noise + half_unit * std::abs(expected[i]) + (type == Dtype::f16 ? 6e-8 : 0.0);
    if (std::abs(static_cast<double>(got[i]) - expected[i]) <= limit) continue;
    ++wrong;
    at = i;
  }
  EXPECT_EQ(wrong, 0U) << what << ": the first of them, " << at << " of " << got.size() << ", is " << got[at]
                       << " instead of " << expected[at];
}

struct Shape {
  std::int64_t rows;
  std::int64_t width;
};
constexpr Shape shapes[] = {{1, 1},    {1000, 1},    {3, 7},    {1000, 7}, {1000, 768}, {3, 1600},
                            {1, 2048}, {1000, 2048}, {3, 4096}, {9, 8192}, {3, 9000}};

std::string name(const char* what, Dtype type, Shape shape, std::size_t shift) {
  return std::string(what) + " " + std::string(base::name_of(type)) + " " + std::to_string(shape.rows) + " x " +
         std::to_string(shape.width) + (shift == 0 ? "" : " unaligned");
}

// Calls `use` with every type, shape and, at the end, 1 for unaligned memory.
template <class Use>
void each_case(Use&& use) {
  for (const Dtype type : floating) {
    for (const Shape shape : shapes) {
      for (const std::size_t shift : {0, 1}) {
        use(type, shape, shift);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

class GpuLayers : public Gpu {
 protected:
  void norms(bool centered);
  OnDevice<float> scratch(std::size_t floats) const { return OnDevice<float>(std::vector<float>(floats, 3e33F)); }
};

void GpuLayers::norms(bool centered) {
  const auto forward = centered ? table().layer_norm_forward : table().rms_norm_forward;
  const auto backward = centered ? table().layer_norm_backward : table().rms_norm_backward;
  const OnDevice<float> work = scratch(norm_backward_scratch(9000));
  each_case([&](Dtype type, Shape shape, std::size_t shift) {
    const auto [rows, width] = shape;
    const auto n = static_cast<std::size_t>(rows * width);
    const auto w = static_cast<std::size_t>(width);
    const std::string what = name(centered ? "layer_norm" : "rms_norm", type, shape, shift);
    const Tensor x(numbers(rows * width, 1), type, shift);
    const Tensor other(numbers(rows * width, 2), type);
    const Tensor weight(numbers(width, 3), type, shift);
    const Tensor bias(numbers(width, 4), type, shift);
    const Tensor dy(numbers(rows * width, 5), type);
    for (const bool residual : {false, true}) {
      const Tensor y(zeros(rows * width), type, shift);
      const Tensor sum(zeros(rows * width), type, shift);
      const OnDevice<float> mean(zeros(rows));
      const OnDevice<float> rstd(zeros(rows));
      NormForward f;
      f.type = type;
      f.rows = rows;
      f.width = width;
      f.x = x.data();
      f.residual = residual ? other.data() : nullptr;
      f.sum = residual ? sum.data() : nullptr;
      f.weight = weight.data();
      f.bias = centered && !residual ? bias.data() : nullptr;
      f.y = y.data();
      f.mean = mean.data();
      f.rstd = rstd.data();
      forward(f, stream());
      wait();

      std::vector<float> input = x.values;
      if (residual) {
        for (std::size_t i = 0; i < n; ++i) input[i] += other.values[i];
        input = decode(encode(input, type), type);
        EXPECT_EQ(sum.now(), input) << what;
      }
      std::vector<double> ey(n);
      std::vector<double> edx(n);
      std::vector<double> emean(static_cast<std::size_t>(rows));
      std::vector<double> erstd(static_cast<std::size_t>(rows));
      std::vector<double> edweight(w);
      std::vector<double> edbias(w);
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
        const float* in = &input[r * w];
        double m = 0.0;
        for (std::size_t i = 0; i < w && centered; ++i) m += in[i] / static_cast<double>(width);
        double v = 0.0;
        for (std::size_t i = 0; i < w; ++i) v += (in[i] - m) * (in[i] - m) / static_cast<double>(width);
        const double s = 1.0 / std::sqrt(v + static_cast<double>(f.eps));
        emean[r] = m;
        erstd[r] = s;
        double plain = 0.0;
        double weighted = 0.0;
        for (std::size_t i = 0; i < w; ++i) {
          const double normal = (in[i] - m) * s;
          const double d = dy.values[r * w + i];
          ey[r * w + i] = normal * weight.values[i] + (f.bias != nullptr ? bias.values[i] : 0.0F);
          edweight[i] += d * normal;
          edbias[i] += d;
          plain += d * weight.values[i] / static_cast<double>(width);
          weighted += d * weight.values[i] * normal / static_cast<double>(width);
        }
        if (!centered) plain = 0.0;
        for (std::size_t i = 0; i < w; ++i) {
          const double normal = (in[i] - m) * s;
          edx[r * w + i] =
              s * (static_cast<double>(dy.values[r * w + i]) * weight.values[i] - plain - normal * weighted) +
              (residual ? other.values[r * w + i] : 0.0F);
        }
      }
      expect_near(y.now(), ey, type, 1e-5, what + " y");
      if (centered) expect_near(mean.values(), emean, Dtype::f32, 1e-6, what + " mean");
      expect_near(rstd.values(), erstd, Dtype::f32, 3e-6 * *std::max_element(erstd.begin(), erstd.end()),
                  what + " rstd");

      // In place where the memory isn't aligned.
      std::vector<std::vector<std::byte>> first;
      for (int round = 0; round < 2; ++round) {
        const Tensor gradient(dy.values, type, shift);
        const Tensor dx(zeros(rows * width), type, shift);
        const Tensor dweight(numbers(width, 6), type, shift);
        const Tensor dbias(numbers(width, 7), type);
        NormBackward b;
        b.type = type;
        b.rows = rows;
        b.width = width;
        b.dy = gradient.data();
        b.x = residual ? sum.data() : x.data();
        b.weight = weight.data();
        b.mean = mean.data();
        b.rstd = rstd.data();
        b.residual = residual ? other.data() : nullptr;
        b.dx = shift == 0 ? dx.data() : gradient.data();
        b.dweight = dweight.data();
        b.dbias = dbias.data();
        b.scratch = work.data();
        backward(b, stream());
        wait();
        const Tensor& out = shift == 0 ? dx : gradient;
        if (round == 0) {
          const double scale = *std::max_element(erstd.begin(), erstd.end());
          expect_near(out.now(), edx, type, 2e-6 * scale + 1e-5, what + " dx");
          expect_near(dweight.now(), edweight, type, 1e-3, what + " dweight");
          if (centered) expect_near(dbias.now(), edbias, type, 1e-3, what + " dbias");
          first = {out.memory.values(), dweight.memory.values(), dbias.memory.values()};
        } else {
          EXPECT_TRUE(first[0] == out.memory.values() && first[1] == dweight.memory.values() &&
                      first[2] == dbias.memory.values())
              << what << ": other bits the second time";
        }
      }
    }
  });
}

TEST_F(GpuLayers, LayerNorm) {
  norms(true);
}
TEST_F(GpuLayers, RmsNorm) {
  norms(false);
}

double reference_gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
double reference_gelu_derivative(double x) {
  const double t = std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

TEST_F(GpuLayers, Gelu) {
  const OnDevice<float> work = scratch(column_scratch);
  each_case([&](Dtype type, Shape shape, std::size_t shift) {
    const auto [rows, width] = shape;
    const std::string what = name("gelu", type, shape, shift);
    auto start = numbers(rows * width, 11);
    for (float& value : start) value *= 3.0F;
    const std::vector<float> far{0.0F, -0.0F, 15.0F, -15.0F, 6e4F, -6e4F, 100.0F, -100.0F};
    if (rows * width > 100) std::copy(far.begin(), far.end(), start.begin() + 50);
    const Tensor x(start, type, shift);
    const Tensor bias(numbers(width, 12), type);
    const Tensor dy(numbers(rows * width, 13), type);
    const Tensor y(zeros(rows * width), type);
    const Tensor dx(zeros(rows * width), type);
    const Tensor dbias(numbers(width, 14), type, shift);
    for (const bool biased : {true, false}) {
      const void* b = biased ? bias.data() : nullptr;
      table().gelu_forward({type, rows, width, x.data(), b, y.data()}, stream());
      table().gelu_backward(
          {type, rows, width, dy.data(), x.data(), b, dx.data(), biased ? dbias.data() : nullptr, work.data()},
          stream());
      wait();
      std::vector<double> ey(x.values.size());
      std::vector<double> edx(x.values.size());
      std::vector<double> edbias(bias.values.size());
      for (std::size_t i = 0; i < ey.size(); ++i) {
        const std::size_t column = i % bias.values.size();
        const double at = static_cast<double>(x.values[i]) + (biased ? bias.values[column] : 0.0F);
        ey[i] = reference_gelu(at);
        edx[i] = dy.values[i] * reference_gelu_derivative(at);
        edbias[column] += edx[i];
      }
      expect_near(y.now(), ey, type, 3e-6, what + " y");
      expect_near(dx.now(), edx, type, 5e-6, what + " dx");
      if (biased) expect_near(dbias.now(), edbias, type, 1e-3, what + " dbias");
    }
    const auto bits = dbias.memory.values();
    table().gelu_backward({type, rows, width, dy.data(), x.data(), bias.data(), dx.data(), dbias.data(), work.data()},
                          stream());
    wait();
    EXPECT_EQ(dbias.memory.values(), bits) << what;
  });
}

TEST_F(GpuLayers, ColumnSum) {
  const OnDevice<float> work = scratch(column_scratch);
  each_case([&](Dtype type, Shape shape, std::size_t shift) {
    const auto [rows, width] = shape;
    const std::string what = name("column_sum", type, shape, shift);
    const Tensor x(numbers(rows * width, 21), type, shift);
    const Tensor sums(numbers(width, 22), type, shift);
    std::vector<double> expected(sums.values.size());
    for (std::size_t i = 0; i < x.values.size(); ++i) expected[i % expected.size()] += x.values[i];
    table().column_sum({type, rows, width, x.data(), sums.data(), false, work.data()}, stream());
    wait();
    expect_near(sums.now(), expected, type, 2e-4, what);
    const std::vector<float> before = sums.now();
    table().column_sum({type, rows, width, x.data(), sums.data(), true, work.data()}, stream());
    wait();
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    expect_near(sums.now(), expected, type, 2e-4, what + ", added");
  });
  // Wide enough for one block to have all rows: the gradient of a table of positions.
  const Tensor x(numbers(5 * 600000, 23), Dtype::bf16);
  const Tensor sums(zeros(600000), Dtype::bf16);
  std::vector<double> expected(600000);
  for (std::size_t i = 0; i < x.values.size(); ++i) expected[i % expected.size()] += x.values[i];
  table().column_sum({Dtype::bf16, 5, 600000, x.data(), sums.data(), false, nullptr}, stream());
  wait();
  expect_near(sums.now(), expected, Dtype::bf16, 1e-5, "column_sum of a batch");
}

TEST_F(GpuLayers, Swiglu) {
  each_case([&](Dtype type, Shape shape, std::size_t shift) {
    const auto [rows, width] = shape;
    const std::string what = name("swiglu", type, shape, shift);
    const auto w = static_cast<std::size_t>(width);
    auto start = numbers(rows * 2 * width, 31);
    for (float& value : start) value *= 4.0F;
    if (rows * width > 100) start[50] = -100.0F;
    const Tensor both(start, type, shift);  // gate and up side by side
    const Tensor dy(numbers(rows * width, 32), type);
    const Tensor y(zeros(rows * width), type);
    void* up = static_cast<std::byte*>(both.data()) + w * base::size_of(type);
    std::vector<double> ey(dy.values.size());
    std::vector<double> expected(both.values.size());
    for (std::size_t i = 0; i < ey.size(); ++i) {
      const std::size_t at = i / w * 2 * w + i % w;
      const double g = both.values[at];
      const double u = both.values[at + w];
      const double s = 1.0 / (1.0 + std::exp(-g));
      ey[i] = g * s * u;
      expected[at] = dy.values[i] * u * s * (1.0 + g * (1.0 - s));
      expected[at + w] = dy.values[i] * g * s;
    }
    table().swiglu_forward({type, rows, width, 2 * width, both.data(), up, y.data()}, stream());
    table().swiglu_backward({type, rows, width, 2 * width, dy.data(), both.data(), up, both.data(), up}, stream());
    wait();
    expect_near(y.now(), ey, type, 2e-5, what + " y");
    expect_near(both.now(), expected, type, 2e-5, what + " gradients");
  });
}

TEST_F(GpuLayers, Rope) {
  struct Case {
    std::int64_t batch, positions, q_heads, k_heads, head_dim;
  };
  for (const Dtype type : floating) {
    for (const Case c : {Case{1, 1, 1, 0, 2}, Case{2, 5, 3, 1, 10}, Case{3, 33, 4, 4, 64}, Case{2, 7, 32, 8, 128}}) {
      for (const std::size_t shift : {0, 1}) {
        // Queries, keys and values side by side, as one product gives them.
        const std::int64_t heads = c.q_heads + 2 * c.k_heads;
        const std::int64_t half = c.head_dim / 2;
        const Tensor qkv(numbers(c.batch * c.positions * heads * c.head_dim, 41), type, shift);
        std::vector<float> cosine(static_cast<std::size_t>(c.positions * half));
        std::vector<float> sine(cosine.size());
        for (std::int64_t p = 0; p < c.positions; ++p) {
          for (std::int64_t i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
            cosine[static_cast<std::size_t>(p * half + i)] = static_cast<float>(std::cos(angle));
            sine[static_cast<std::size_t>(p * half + i)] = static_cast<float>(std::sin(angle));
          }
        }
        const OnDevice<float> cosines(cosine);
        const OnDevice<float> sines(sine);
        std::vector<double> expected(qkv.values.begin(), qkv.values.end());
        for (std::int64_t token = 0; token < c.batch * c.positions; ++token) {
          for (std::int64_t head = 0; head < c.q_heads + c.k_heads; ++head) {
            for (std::int64_t i = 0; i < half; ++i) {
              const auto at = static_cast<std::size_t>((token * heads + head) * c.head_dim + i);
              const auto angle = static_cast<std::size_t>(token % c.positions * half + i);
              const auto far = at + static_cast<std::size_t>(half);
              const double a = qkv.values[at];
              const double b = qkv.values[far];
              expected[at] = a * cosine[angle] - b * sine[angle];
              expected[far] = b * cosine[angle] + a * sine[angle];
            }
          }
        }
        Rope rope;
        rope.type = type;
        rope.batch = c.batch;
        rope.positions = c.positions;
        rope.head_dim = c.head_dim;
        rope.q = {qkv.data(), c.q_heads, c.positions * heads * c.head_dim, heads * c.head_dim, c.head_dim};
        rope.k = rope.q;
        rope.k.heads = c.k_heads;
        rope.k.data = static_cast<std::byte*>(qkv.data()) +
                      static_cast<std::size_t>(c.q_heads * c.head_dim) * base::size_of(type);
        rope.cosine = cosines.data();
        rope.sine = sines.data();
        const std::string what = name("rope", type, {c.positions, c.head_dim}, shift);
        table().rope(rope, stream());
        wait();
        expect_near(qkv.now(), expected, type, 1e-6, what);
        rope.backward = true;
        table().rope(rope, stream());
        wait();
        const double rounding = type == Dtype::f32 ? 1e-6 : type == Dtype::bf16 ? 0.02 : 0.003;
        expect_near(qkv.now(), {qkv.values.begin(), qkv.values.end()}, type, rounding, what + ", and back");
      }
    }
  }
  Rope odd;
  odd.head_dim = 3;
  EXPECT_THROW(table().rope(odd, stream()), base::DeviceError);
}

TEST_F(GpuLayers, CrossEntropy) {
  struct Case {
    std::int64_t rows, vocabulary, padded, stride;
  };
  for (const Dtype type : floating) {
    for (const Case c : {Case{1, 1, 1, 1}, Case{3, 7, 7, 7}, Case{40, 1000, 0, 1001}, Case{40, 257, 264, 272},
                         Case{9, 32000, 0, 32000}, Case{9, 50257, 50304, 50304}, Case{4, 130001, 0, 130001}}) {
      for (const std::size_t shift : {0, 1}) {
        const std::string what = name("cross_entropy", type, {c.rows, c.vocabulary}, shift);
        auto start = numbers(c.rows * c.stride, 51);
        for (std::size_t i = 0; i < start.size(); ++i) start[i] *= i % 97 == 5 ? 30.0F : 4.0F;
        if (c.vocabulary > 100) start[60] = start[61] = -std::numeric_limits<float>::infinity();
        const Tensor logits(start, type, shift);
        std::vector<std::int64_t> target(static_cast<std::size_t>(c.rows));
        for (std::size_t r = 0; r < target.size(); ++r) {
          target[r] = static_cast<std::int64_t>(r * 7919 + 100003) % c.vocabulary;
          if (r == 1) target[r] = -100;
          if (r == 2) target[r] = c.vocabulary - 1;
          if (r == 3) target[r] = 0;
        }
        const OnDevice<std::int64_t> targets(target);
        const OnDevice<float> losses(std::vector<float>(target.size(), 5.0F));
        const OnDevice<float> factor({0.5F});
        const OnDevice<LossSum> counted({LossSum{}});
        table().loss_sum(nullptr, targets.data(), c.rows, -100, counted.data(), stream());
        CrossEntropy loss;
        loss.type = type;
        loss.rows = c.rows;
        loss.vocabulary = c.vocabulary;
        loss.stride = c.stride;
        loss.logits = logits.data();
        loss.targets = targets.data();
        loss.losses = losses.data();
        table().cross_entropy(loss, stream());
        wait();
        EXPECT_EQ(logits.memory.values(), encode(logits.values, type)) << what;
        const std::vector<float> alone = losses.values();
        loss.gradient = true;
        loss.padded = c.padded;
        loss.scale = 64.0F;
        loss.device_scales[0] = factor.data();
        loss.device_scales[1] = &counted.data()->reciprocal;
        table().cross_entropy(loss, stream());
        wait();
        EXPECT_EQ(losses.values(), alone) << what;

        const double scale = 32.0 / static_cast<double>(c.rows - (c.rows > 1 ? 1 : 0));
        std::vector<double> expected(logits.values.begin(), logits.values.end());
        std::vector<double> elosses(target.size());
        for (std::size_t r = 0; r < target.size(); ++r) {
          const std::size_t row = r * static_cast<std::size_t>(c.stride);
          const auto columns = static_cast<std::size_t>(c.vocabulary);
          double greatest = -1e300;
          for (std::size_t i = 0; i < columns; ++i) greatest = std::max<double>(greatest, logits.values[row + i]);
          double sum = 0.0;
          for (std::size_t i = 0; i < columns; ++i) sum += std::exp(logits.values[row + i] - greatest);
          const bool ignored = target[r] == -100;
          for (std::size_t i = 0; i < columns; ++i) {
            expected[row + i] = ignored ? 0.0 : std::exp(logits.values[row + i] - greatest) / sum * scale;
          }
          for (std::size_t i = columns; i < static_cast<std::size_t>(c.padded); ++i) expected[row + i] = 0.0;
          if (ignored) continue;
          const std::size_t at = row + static_cast<std::size_t>(target[r]);
          expected[at] -= scale;
          elosses[r] = std::log(sum) + greatest - logits.values[at];
        }
        expect_near(alone, elosses, Dtype::f32, 2e-5, what + " losses");
        expect_near(logits.now(), expected, type, 1e-5 * scale, what + " gradient");
      }
    }
  }

  // A target out of the vocabulary is seen; nothing else is.
  const Tensor logits(numbers(300, 52), Dtype::bf16);
  const OnDevice<std::int64_t> targets({5, -1, 100});
  const OnDevice<float> losses(zeros(3));
  CrossEntropy loss;
  loss.rows = 3;
  loss.vocabulary = loss.stride = 100;
  loss.logits = logits.data();
  loss.targets = targets.data();
  loss.losses = losses.data();
  loss.gradient = true;
  table().cross_entropy(loss, stream());
  wait();
  EXPECT_TRUE(std::isfinite(losses.values()[0]));
  EXPECT_TRUE(std::isnan(losses.values()[1]));
  EXPECT_TRUE(std::isnan(losses.values()[2]));
  loss.padded = 101;
  EXPECT_THROW(table().cross_entropy(loss, stream()), base::DeviceError);
  loss.padded = 0;
  loss.type = Dtype::i64;
  EXPECT_THROW(table().cross_entropy(loss, stream()), base::DeviceError);
}

TEST_F(GpuLayers, LossSum) {
  for (const std::int64_t rows : {1, 3, 1000, 40001}) {
    auto losses = numbers(rows, 61);
    std::vector<std::int64_t> target(losses.size(), 4);
    double sum = 0.0;
    double count = 0.0;
    for (std::size_t r = 0; r < target.size(); ++r) {
      if (r % 7 == 2) {
        target[r] = -100;
        losses[r] = std::numeric_limits<float>::quiet_NaN();  // isn't looked at
      } else {
        sum += static_cast<double>(losses[r]);
        count += 1.0;
      }
    }
    const OnDevice<std::int64_t> targets(target);
    const OnDevice<float> values(losses);
    const OnDevice<LossSum> result({LossSum{}});
    table().loss_sum(values.data(), targets.data(), rows, -100, result.data(), stream());
    wait();
    const LossSum got = result.values()[0];
    EXPECT_NEAR(got.sum, sum, 1e-10 * count);
    EXPECT_EQ(got.count, count);
    EXPECT_EQ(got.mean, static_cast<float>(got.sum / count));
    EXPECT_EQ(got.reciprocal, static_cast<float>(1.0 / count));
  }
  const OnDevice<std::int64_t> targets({-100});
  const OnDevice<float> values({1.0F});
  const OnDevice<LossSum> result({LossSum{}});
  table().loss_sum(values.data(), targets.data(), 1, -100, result.data(), stream());
  wait();
  EXPECT_TRUE(std::isnan(result.values()[0].mean));
  EXPECT_EQ(result.values()[0].reciprocal, 0.0F);
}

TEST_F(GpuLayers, EmbeddingBackward) {
  struct Case {
    std::int64_t count, width, vocabulary;
    bool same;  // all places hold one id
  };
  for (const Dtype type : floating) {
    for (const Case c :
         {Case{1, 1, 1, false}, Case{3, 7, 5, false}, Case{1000, 768, 5003, false}, Case{5000, 64, 300, false},
          Case{5000, 7, 40, false}, Case{1000, 1600, 3, true}, Case{3000, 9, 2000, true}, Case{33, 4096, 10, true}}) {
      for (const std::size_t shift : {0, 1}) {
        const std::string what = name("embedding", type, {c.count, c.width}, shift);
        std::vector<std::int64_t> id(static_cast<std::size_t>(c.count));
        std::uint32_t state = 77;
        for (std::int64_t& each : id) {
          // Small ids are frequent; a few are out of the table.
          state = state * 1664525U + 1013904223U;
          const double u = static_cast<double>(state >> 8U) / 16777216.0;
          each = c.same ? c.vocabulary / 2 : static_cast<std::int64_t>(u * u * u * static_cast<double>(c.vocabulary));
        }
        if (c.count > 100) {
          id[40] = -1;
          id[41] = c.vocabulary;
          id[90] = std::int64_t{1} << 40U;
        }
        const OnDevice<std::int64_t> ids(id);
        const Tensor dy(numbers(c.count * c.width, 71), type, shift);
        const Tensor added(numbers(c.vocabulary * c.width, 72), type);
        const Tensor dtable(numbers(c.vocabulary * c.width, 73), type, shift);
        const OnDevice<std::byte> work(std::vector<std::byte>(table().embedding_scratch(c.count, c.width)));
        EmbeddingBackward e{type,      c.count,       c.width, c.vocabulary, ids.data(),
                            dy.data(), dtable.data(), false,   work.data()};
        table().embedding_backward(e, stream());
        e.dtable = added.data();
        e.accumulate = true;
        table().embedding_backward(e, stream());
        wait();
        std::vector<double> expected(dtable.values.size());
        for (std::size_t i = 0; i < id.size(); ++i) {
          if (id[i] < 0 || id[i] >= c.vocabulary) continue;
          for (std::size_t k = 0; k < static_cast<std::size_t>(c.width); ++k) {
            const auto width = static_cast<std::size_t>(c.width);
            expected[static_cast<std::size_t>(id[i]) * width + k] += dy.values[i * width + k];
          }
        }
        expect_near(dtable.now(), expected, type, 1e-3, what);
        const auto bits = dtable.memory.values();
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added.values[i];
        expect_near(added.now(), expected, type, 1e-3, what + ", added");
        e.dtable = dtable.data();
        e.accumulate = false;
        table().embedding_backward(e, stream());
        wait();
        EXPECT_TRUE(dtable.memory.values() == bits) << what << ": other bits the second time";
      }
    }
  }
}

}  // namespace
}  // namespace deepspeed::device
