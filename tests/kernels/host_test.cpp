// SPDX-License-Identifier: Apache-2.0
#include "kernels/host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/threads.h"

namespace deepspeed::kernels {
namespace {

using base::Dtype;

constexpr Dtype types[] = {Dtype::f32, Dtype::f16, Dtype::bf16};  // in the order of Element
constexpr float inf = std::numeric_limits<float>::infinity();
const float nan = std::nanf("");

// --- plain references: values by definition, rounding by search ------------------------------------------------------

double value_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

float value_of_bfloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Bits of the magnitude in a 16-bit format nearest to x, ties to even; `value` grows with the bits up to `largest`, the
// largest finite one, and half a step above that lies infinity.
template <class Value>
std::uint16_t nearest(float x, std::uint16_t largest, Value value) {
  const double magnitude = std::fabs(static_cast<double>(x));
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  std::uint16_t low = 0, high = largest;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value(middle) <= magnitude ? low : high) = middle;
  }
  if (value(high) <= magnitude) low = high;
  const auto above = static_cast<std::uint16_t>(low + 1);
  const double step =
      low == largest ? value(low) - value(static_cast<std::uint16_t>(low - 1)) : value(above) - value(low);
  const double rest = magnitude - value(low);
  const bool up = rest > step / 2 || (rest == step / 2 && (low & 1));
  return static_cast<std::uint16_t>(sign | (up ? above : low));
}

std::uint16_t reference_half(float x) {
  return nearest(x, 0x7bff, value_of_half);
}
std::uint16_t reference_bfloat(float x) {
  return nearest(x, 0x7f7f, [](std::uint16_t b) { return static_cast<double>(value_of_bfloat(b)); });
}

/// x as it reads after being stored in `type`.
float stored(Dtype type, float x) {
  if (type == Dtype::f32 || std::isnan(x)) return x;
  return type == Dtype::f16 ? static_cast<float>(value_of_half(reference_half(x)))
                            : value_of_bfloat(reference_bfloat(x));
}

/// Kokkos can start once in a process, so one Threads serves all tests.
int concurrency_at_start = 0;
class WithThreads : public testing::Environment {
  void SetUp() override {
    threads_ = std::make_unique<Threads>();
    concurrency_at_start = concurrency();
  }
  void TearDown() override {
    threads_.reset();
    EXPECT_EQ(concurrency(), 1);
    const Threads too_late;
    EXPECT_EQ(concurrency(), 1);
  }
  std::unique_ptr<Threads> threads_;
};
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new WithThreads);

/// A buffer whose start lies `skew` elements past an aligned address.
struct Memory {
  explicit Memory(Dtype element = Dtype::f32, std::int64_t n = 0, std::int64_t skew = 0)
      : type(element),
        numel(n),
        offset(skew),
        bytes(static_cast<std::size_t>(n + skew) * base::size_of(element) + 64) {}
  Buffer buffer() { return {bytes.data() + static_cast<std::size_t>(offset) * base::size_of(type), numel, type}; }
  float get(std::int64_t i) {
    const auto* at = static_cast<const char*>(buffer().data) + static_cast<std::size_t>(i) * base::size_of(type);
    if (type == Dtype::f32) return read<float>(at);
    const auto bits = read<std::uint16_t>(at);
    return type == Dtype::f16 ? static_cast<float>(value_of_half(bits)) : value_of_bfloat(bits);
  }
  void set(std::int64_t i, float x) {
    auto* at = static_cast<char*>(buffer().data) + static_cast<std::size_t>(i) * base::size_of(type);
    if (type == Dtype::f32) {
      std::memcpy(at, &x, 4);
    } else {
      std::uint16_t bits = 0x7fff;
      if (!std::isnan(x)) bits = type == Dtype::f16 ? reference_half(x) : reference_bfloat(x);
      std::memcpy(at, &bits, 2);
    }
  }
  template <class T>
  static T read(const void* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  Dtype type;
  std::int64_t numel, offset;
  std::vector<char> bytes;
};

Memory random_memory(Dtype type, std::int64_t n, unsigned seed, std::int64_t skew = 0, bool specials = false) {
  Memory m(type, n, skew);
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 6);
  for (std::int64_t i = 0; i < n; ++i) m.set(i, std::ldexp(normal(engine), exponent(engine)));
  if (specials) {
    const float values[] = {inf, -inf, nan, 0.0f, -0.0f, 1e-41f, 3e38f, -1e-7f};
    for (std::int64_t i = 0; i < n; i += 7) m.set(i, values[static_cast<std::size_t>(i / 7) % 8]);
  }
  return m;
}

/// Equal bits, but NaNs are all alike: which operand's payload survives is the compiler's choice.
void expect_same(Memory& a, Memory& b, const std::string& what) {
  ASSERT_EQ(a.numel, b.numel);
  for (std::int64_t i = 0; i < a.numel; ++i) {
    const float x = a.get(i), y = b.get(i);
    if (std::isnan(x) && std::isnan(y)) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(x), std::bit_cast<std::uint32_t>(y))
        << what << " at " << i << ": " << x << " and " << y;
  }
}

const std::int64_t sizes[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 1023, 1025, 2049};

// --- casts -----------------------------------------------------------------------------------------------------------

TEST(Cast, EveryHalfAndBfloatWidensExactly) {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(bits.size());
  for (const Loops* loops : usable_loops()) {
    for (const Element type : {f16, bf16}) {
      loops->cast[f32][type](wide.data(), bits.data(), 65536);
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const double wanted = type == f16 ? value_of_half(bits[i]) : static_cast<double>(value_of_bfloat(bits[i]));
        if (std::isnan(wanted)) {
          ASSERT_TRUE(std::isnan(wide[i])) << loops->name << " " << i;
        } else {
          ASSERT_EQ(wide[i], wanted) << loops->name << " " << i;
          ASSERT_EQ(std::signbit(wide[i]), std::signbit(wanted)) << loops->name << " " << i;
        }
      }
      // and back: every value is its own nearest
      std::vector<std::uint16_t> back(65536);
      loops->cast[type][f32](back.data(), wide.data(), 65536);
      for (std::size_t i = 0; i < bits.size(); ++i) {
        if (std::isnan(wide[i])) continue;
        ASSERT_EQ(back[i], bits[i]) << loops->name;
      }
    }
  }
}

TEST(Cast, NarrowsToNearestEven) {
  std::vector<float> values{0.0f,       -0.0f,        inf,           -inf,     65504.0f,  65519.99f,       65520.0f,
                            -65520.0f,  1e30f,        3.4028235e38f, 0x1p-24f, 0x1p-25f,  0x1.000002p-25f, 0x1p-26f,
                            0x1p-14f,   0x1.ffcp-15f, 0x1.ffep-15f,  1e-45f,   0x1p-126f, 0x1.01p0f,       0x1.03p0f,
                            0x1.002p0f, 0x1.006p0f,   0x1.fffp3f,    0x1.ffp3f};
  std::mt19937 engine(3);
  while (values.size() < 60001) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
    if (!std::isnan(x)) values.push_back(x);
  }
  std::uniform_real_distribution<float> range(-26, 17);  // the half's own range, ties included
  for (int i = 0; i < 60000; ++i) {
    const float x = std::exp2(range(engine));
    values.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & (i % 2 ? 0xfffff000u : 0xffffffffu)));
  }
  std::vector<std::uint16_t> narrow(values.size());
  for (const Loops* loops : usable_loops()) {
    for (const Element type : {f16, bf16}) {
      loops->cast[type][f32](narrow.data(), values.data(), static_cast<std::int64_t>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t sign = std::signbit(values[i]) ? 0x8000 : 0;
        const std::uint16_t wanted = std::isinf(values[i])
                                         ? static_cast<std::uint16_t>(sign | (type == f16 ? 0x7c00 : 0x7f80))
                                         : (type == f16 ? reference_half(values[i]) : reference_bfloat(values[i]));
        ASSERT_EQ(narrow[i], wanted) << loops->name << ": " << values[i] << " to " << (type == f16 ? "fp16" : "bf16");
      }
    }
  }
}

TEST(Cast, NanStaysNan) {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu}) {
    const float x = std::bit_cast<float>(bits);
    for (const Loops* loops : usable_loops()) {
      std::uint16_t half = 0, bfloat = 0;
      loops->cast[f16][f32](&half, &x, 1);
      loops->cast[bf16][f32](&bfloat, &x, 1);
      EXPECT_TRUE(std::isnan(value_of_half(half))) << loops->name;
      EXPECT_TRUE(std::isnan(value_of_bfloat(bfloat))) << loops->name;
    }
  }
}

TEST(Cast, CopiesOtherTypesAndRefusesToConvertThem) {
  std::vector<std::int64_t> from(70001, 7), to(70001);
  from[70000] = -3;
  cast({to.data(), 70001, Dtype::i64}, {from.data(), 70001, Dtype::i64});
  EXPECT_EQ(from, to);
  std::vector<float> wide(70001);
  EXPECT_THROW(cast({wide.data(), 70001, Dtype::f32}, {from.data(), 70001, Dtype::i64}), std::invalid_argument);
  EXPECT_THROW(cast({wide.data(), 70000, Dtype::f32}, {wide.data(), 70001, Dtype::f32}), std::invalid_argument);
  zero({to.data(), 70001, Dtype::i64});
  EXPECT_EQ(std::count(to.begin(), to.end(), 0), 70001);
}

// --- the same bits from every instruction set, size and alignment ----------------------------------------------------

struct UpdateCase {
  Rule rule;
  UpdateStep step;
};

std::vector<UpdateCase> update_cases() {
  UpdateStep s;
  s.gradient_scale = 0.37f;
  s.beta1 = 0.9f;
  s.alpha1 = 0.1f;
  s.beta2 = 0.999f;
  s.alpha2 = 0.001f;
  s.eps = 1e-8f;
  s.root_scale = 3.1f;
  s.l2 = 0.1f;
  s.decay = -1e-3f;
  s.negative_rate = -0.013f;
  std::vector<UpdateCase> cases;
  for (int r = 0; r < rule_count; ++r) cases.push_back({static_cast<Rule>(r), s});
  return cases;
}

TEST(Variants, GiveTheSameBits) {
  const auto all = usable_loops();
  const Loops& first = *all.front();
  for (const Loops* other : all.subspan(1)) {
    for (const std::int64_t n : sizes) {
      const std::int64_t skew = n % 5;
      for (int y = 0; y < element_count; ++y) {
        for (int x = 0; x < element_count; ++x) {
          auto from = random_memory(types[x], n, 1, skew, true);
          for (const int kernel : {0, 1, 2}) {
            auto one = random_memory(types[y], n, 2, skew, true), two = one;
            for (const auto& [loops, memory] : {std::pair{&first, &one}, std::pair{other, &two}}) {
              void* to = memory->buffer().data;
              if (kernel == 0) loops->cast[y][x](to, from.buffer().data, n);
              if (kernel == 1) loops->add[y][x](to, from.buffer().data, n);
              if (kernel == 2) loops->add_scaled[y][x](to, from.buffer().data, 0.3f, n);
            }
            expect_same(one, two, std::string(other->name) + " kernel " + std::to_string(kernel));
          }
        }
        auto one = random_memory(types[y], n, 2, skew, true), two = one;
        first.scale[y](one.buffer().data, 0.7f, n);
        other->scale[y](two.buffer().data, 0.7f, n);
        expect_same(one, two, "scale");
        auto slope = random_memory(types[y], n, 3, skew, true);
        for (const bool backward : {false, true}) {
          for (const auto& [loops, memory] : {std::pair{&first, &one}, std::pair{other, &two}}) {
            void* to = memory->buffer().data;
            void* x = slope.buffer().data;
            if (backward) loops->gelu_tanh_backward[y](to, x, random_memory(types[y], n, 4, skew).buffer().data, n);
            if (!backward) loops->gelu_tanh[y](to, x, n);
          }
          expect_same(one, two, "gelu_tanh");
        }
        auto finite = random_memory(types[y], n, 5, skew);
        EXPECT_EQ(first.sum_squares[y](finite.buffer().data, n), other->sum_squares[y](finite.buffer().data, n));
      }
      for (const auto& [rule, step] : update_cases()) {
        for (const bool specials : {false, true}) {
          Memory a[4], b[4];
          for (unsigned k = 0; k < 4; ++k) {
            a[k] = random_memory(Dtype::f32, n, 10 + k, skew + k, specials);
            if (k == 3) {
              for (std::int64_t i = 0; i < n; ++i) a[k].set(i, std::fabs(a[k].get(i)));
            }
            b[k] = a[k];
          }
          const auto run = [&, rule = rule, step = step](const Loops& loops, Memory* m) {
            const auto at = [&](int k) { return static_cast<float*>(m[k].buffer().data); };
            loops.update[rule](at(0), at(1), at(2), at(3), step, n);
          };
          run(first, a);
          run(*other, b);
          for (int k = 0; k < 4; ++k) expect_same(a[k], b[k], std::string(other->name) + " rule");
        }
      }
    }
  }
}

TEST(Update, CuttingAndThreadsChangeNoBit) {
  const std::int64_t n = 3 * chunk_size + 12345;
  for (const auto& [rule, step] : update_cases()) {
    for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
      auto master = random_memory(Dtype::f32, n, 1);
      auto gradient = random_memory(type, n, 2);
      Memory states[2] = {random_memory(Dtype::f32, n, 3), random_memory(Dtype::f32, n, 4)};
      for (std::int64_t i = 0; i < n; ++i) {
        for (auto& s : states) s.set(i, std::fabs(s.get(i)));
      }
      Memory working(type, n);
      auto master_cut = master;
      Memory states_cut[2] = {states[0], states[1]};
      Memory working_cut(type, n);

      const auto run = [&, rule = rule, step = step](Memory& p, Memory* s, Memory& w, std::int64_t begin,
                                                     std::int64_t end) {
        const auto part = [&](Memory& m) {
          Buffer b = m.buffer();
          return Buffer{static_cast<char*>(b.data) + static_cast<std::size_t>(begin) * base::size_of(b.type),
                        end - begin, b.type};
        };
        const Buffer parts[] = {part(s[0]), part(s[1])};
        update(rule,
               {part(p), part(gradient), std::span(parts).first(static_cast<std::size_t>(states_of(rule))), part(w)},
               step);
      };
      run(master, states, working, 0, n);
      std::thread other([&] {  // not the owner of Kokkos: the raw loop
        std::int64_t begin = 0;
        for (const std::int64_t end : {std::int64_t{1}, std::int64_t{1500}, chunk_size + 3, n}) {
          run(master_cut, states_cut, working_cut, begin, end);
          begin = end;
        }
      });
      other.join();
      expect_same(master, master_cut, "weights");
      expect_same(states[0], states_cut[0], "state 0");
      expect_same(states[1], states_cut[1], "state 1");
      expect_same(working, working_cut, "working copy");
      Memory wanted(type, n);
      cast(wanted.buffer(), master.buffer());
      expect_same(working, wanted, "the working copy is the rounded master");
    }
  }
}

// --- values against plain references ---------------------------------------------------------------------------------

TEST(Update, AdamAgainstDoubleArithmetic) {
  const std::int64_t n = 1003;
  for (const bool decoupled : {false, true}) {
    auto p = random_memory(Dtype::f32, n, 1), g = random_memory(Dtype::f32, n, 2);
    Memory m(Dtype::f32, n), v(Dtype::f32, n);
    std::vector<double> dp(n), dm(n), dv(n);
    for (std::size_t i = 0; i < dp.size(); ++i) dp[i] = p.get(static_cast<std::int64_t>(i));
    const double lr = 0.01, b1 = 0.9, b2 = 0.999, eps = 1e-8, wd = 0.1, scale = 0.5;
    for (int t = 1; t <= 5; ++t) {
      UpdateStep s;
      s.gradient_scale = static_cast<float>(scale);
      s.beta1 = static_cast<float>(b1);
      s.alpha1 = static_cast<float>(1 - b1);
      s.beta2 = static_cast<float>(b2);
      s.alpha2 = static_cast<float>(1 - b2);
      s.eps = static_cast<float>(eps);
      s.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(b2, t)));
      s.l2 = static_cast<float>(wd);
      s.decay = static_cast<float>(-lr * wd);
      s.negative_rate = static_cast<float>(-lr / (1 - std::pow(b1, t)));
      const Buffer states[] = {m.buffer(), v.buffer()};
      update(decoupled ? adamw : adam, {p.buffer(), g.buffer(), states, {}}, s);
      for (std::size_t i = 0; i < dp.size(); ++i) {
        double grad = scale * g.get(static_cast<std::int64_t>(i));
        if (!decoupled) grad += wd * dp[i];
        dm[i] = b1 * dm[i] + (1 - b1) * grad;
        dv[i] = b2 * dv[i] + (1 - b2) * grad * grad;
        if (decoupled) dp[i] *= 1 - lr * wd;
        dp[i] -= lr * (dm[i] / (1 - std::pow(b1, t))) / (std::sqrt(dv[i] / (1 - std::pow(b2, t))) + eps);
      }
    }
    for (std::size_t i = 0; i < dp.size(); ++i) {
      ASSERT_NEAR(p.get(static_cast<std::int64_t>(i)), dp[i], 2e-6 * std::max(1.0, std::fabs(dp[i])));
    }
  }
}

TEST(Update, SixteenBitTypesAreWidenedAndRoundedOnce) {
  // The mixed case must equal: widen everything, update in fp32, round what is 16-bit.
  const std::int64_t n = 2 * chunk_size + 77;
  UpdateStep step = update_cases()[adamw].step;
  for (const Dtype type : {Dtype::f16, Dtype::bf16}) {
    Memory narrow[4], wide[4];
    for (unsigned k = 0; k < 4; ++k) {
      narrow[k] = random_memory(type, n, 20 + k, 1);
      if (k == 3) {
        for (std::int64_t i = 0; i < n; ++i) narrow[k].set(i, std::fabs(narrow[k].get(i)));
      }
      wide[k] = Memory(Dtype::f32, n);
      cast(wide[k].buffer(), narrow[k].buffer());
    }
    const Buffer narrow_states[] = {narrow[2].buffer(), narrow[3].buffer()};
    const Buffer wide_states[] = {wide[2].buffer(), wide[3].buffer()};
    update(adamw, {narrow[0].buffer(), narrow[1].buffer(), narrow_states, {}}, step);
    update(adamw, {wide[0].buffer(), wide[1].buffer(), wide_states, {}}, step);
    for (int k = 0; k < 4; ++k) {
      Memory rounded(type, n);
      cast(rounded.buffer(), wide[k].buffer());
      expect_same(narrow[k], rounded, "buffer " + std::to_string(k));
    }
  }
}

TEST(Update, RefusesWhatDoesNotFit) {
  std::vector<float> a(8), b(7);
  std::vector<std::int32_t> integers(8);
  const Buffer p{a.data(), 8, Dtype::f32};
  EXPECT_THROW(update(sgd, {p, {b.data(), 7, Dtype::f32}, {}, {}}, {}), std::invalid_argument);
  EXPECT_THROW(update(adam, {p, p, {}, {}}, {}), std::invalid_argument);
  EXPECT_THROW(update(sgd, {p, {integers.data(), 8, Dtype::i32}, {}, {}}, {}), std::invalid_argument);
}

TEST(Accumulate, PlainBfloatStopsGrowingWhereFloatDoesNot) {
  // 512 gradients of 1: bf16 holds no odd integer above 256.
  const std::int64_t n = 1000;
  Memory ones(Dtype::bf16, n), narrow(Dtype::bf16, n), wide(Dtype::f32, n);
  for (std::int64_t i = 0; i < n; ++i) ones.set(i, 1);
  for (int micro = 0; micro < 512; ++micro) {
    accumulate(narrow.buffer(), ones.buffer());
    accumulate(wide.buffer(), ones.buffer());
  }
  scale(narrow.buffer(), 1.0f / 512);
  scale(wide.buffer(), 1.0f / 512);
  for (std::int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(narrow.get(i), 0.5f);
    ASSERT_EQ(wide.get(i), 1.0f);
  }
}

TEST(Accumulate, EveryPairOfTypes) {
  for (const std::int64_t n : {std::int64_t{17}, chunk_size + 5}) {
    for (const Dtype y : types) {
      for (const Dtype x : types) {
        for (const float a : {1.0f, -0.25f, 0.3f}) {
          auto to = random_memory(y, n, 1, 1), before = to, from = random_memory(x, n, 2, 3);
          accumulate(to.buffer(), from.buffer(), a);
          for (std::int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(to.get(i), stored(y, std::fma(a, from.get(i), before.get(i)))) << i;
          }
        }
      }
    }
  }
}

TEST(OrderedSum, AddsInOrderInFloat) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1023}, 2 * chunk_size + 1027}) {
    for (const Dtype type : types) {
      for (const Dtype out_type : types) {
        for (const float factor : {1.0f, 1.0f / 3}) {
          std::vector<Memory> inputs;
          std::vector<const void*> pointers;
          for (unsigned k = 0; k < 5; ++k) inputs.push_back(random_memory(type, n, 30 + k, k));
          for (auto& input : inputs) pointers.push_back(input.buffer().data);
          Memory out(out_type, n, 1);
          ordered_sum(out.buffer(), pointers, type, factor);
          for (std::int64_t i = 0; i < n; ++i) {
            float sum = inputs[0].get(i);
            for (std::size_t k = 1; k < inputs.size(); ++k) sum += inputs[k].get(i);
            ASSERT_EQ(out.get(i), stored(out_type, factor == 1 ? sum : sum * factor)) << i;
          }
        }
      }
    }
  }
}

TEST(OrderedSum, MayAddIntoItsFirstInput) {
  auto a = random_memory(Dtype::f32, 3000, 1), b = random_memory(Dtype::f32, 3000, 2), before = a;
  const void* inputs[] = {a.buffer().data, b.buffer().data};
  ordered_sum(a.buffer(), inputs, Dtype::f32);
  for (std::int64_t i = 0; i < 3000; ++i) ASSERT_EQ(a.get(i), before.get(i) + b.get(i));
  EXPECT_THROW(ordered_sum(a.buffer(), {}, Dtype::f32), std::invalid_argument);
}

TEST(SumSquares, IsExactEnoughAndSaysWhatIsNotFinite) {
  for (const Dtype type : types) {
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{77}, 3 * chunk_size + 4097}) {
      auto x = random_memory(type, n, 9, 3);
      long double wanted = 0;
      for (std::int64_t i = 0; i < n; ++i) wanted += static_cast<long double>(x.get(i)) * x.get(i);
      const double sum = sum_squares(x.buffer());
      EXPECT_NEAR(sum, static_cast<double>(wanted), 1e-13 * static_cast<double>(wanted));
      double serial = 0;
      std::thread([&] { serial = sum_squares(x.buffer()); }).join();
      EXPECT_EQ(sum, serial);
      if (n == 0) continue;
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
        for (const float bad : {inf, -inf, nan}) {
          const float good = x.get(at);
          x.set(at, bad);
          EXPECT_FALSE(std::isfinite(sum_squares(x.buffer())));
          x.set(at, good);
        }
      }
    }
  }
  Memory large(Dtype::f32, 100000);
  for (std::int64_t i = 0; i < 100000; ++i) large.set(i, 3.4e38f);
  EXPECT_TRUE(std::isfinite(sum_squares(large.buffer())));  // large isn't overflow
}

TEST(Gelu, FollowsTheFormulaToTheLastPlaces) {
  const double root = std::sqrt(2 / M_PI);
  std::vector<float> values{0.0f, -0.0f, 1e-30f, -1e-30f, 1e-41f, 3e38f, -3e38f, 1e5f, -1e5f, -9.99f, -10.01f, 10.01f};
  for (float x = -14; x < 14; x += 0.00037f) values.push_back(x);
  const auto n = static_cast<std::int64_t>(values.size());
  for (const Dtype type : types) {
    Memory x(type, n), y(type, n), dy(type, n), dx(type, n);
    for (std::int64_t i = 0; i < n; ++i) {
      x.set(i, values[static_cast<std::size_t>(i)]);
      dy.set(i, 1.5f);
    }
    gelu_tanh(y.buffer(), x.buffer());
    gelu_tanh_backward(dx.buffer(), dy.buffer(), x.buffer());
    const double half_step = type == Dtype::f32 ? 0 : (type == Dtype::f16 ? 0x1p-11 : 0x1p-8);
    const double smallest = type == Dtype::f16 ? 0x1p-24 : 1e-35;  // below, a result may be flushed to the nearest
    for (std::int64_t i = 0; i < n; ++i) {
      const double v = x.get(i);
      if (std::isinf(v)) continue;
      const double z = 2 * root * (v + 0.044715 * v * v * v);
      const double s = 1 / (1 + std::exp(-z));
      const double turned = std::fabs(v) > 1e3 ? 0 : v * 2 * root * (1 + 3 * 0.044715 * v * v) * s / (1 + std::exp(z));
      // Relative to the result: the tail, where 1 + tanh would have cancelled, is as right as the exponential's
      // argument.
      const double relative = half_step + (std::fabs(v) < 4 ? 4e-6 : 3e-5);
      ASSERT_NEAR(y.get(i), v * s, relative * std::fabs(v * s) + smallest) << v;
      ASSERT_NEAR(dx.get(i), 1.5 * (s + turned), (half_step + 2e-6) * 1.7) << v;
    }
  }
  Memory odd(Dtype::f32, 2), out(Dtype::f32, 2);
  odd.set(0, nan);
  odd.set(1, inf);
  gelu_tanh(out.buffer(), odd.buffer());
  EXPECT_TRUE(std::isnan(out.get(0)));
  EXPECT_EQ(out.get(1), inf);
  gelu_tanh_backward(out.buffer(), odd.buffer(), odd.buffer());
  EXPECT_TRUE(std::isnan(out.get(0)));
  EXPECT_THROW(gelu_tanh(Memory(Dtype::f32, 3).buffer(), Memory(Dtype::f32, 2).buffer()), std::invalid_argument);
}

TEST(Threads, OtherThreadsRunSerially) {
  {
    const Threads again;  // counts as the one that lives already
    EXPECT_GE(concurrency(), 1);
  }
  EXPECT_EQ(concurrency(), concurrency_at_start);
  int elsewhere = 0;
  std::thread([&] { elsewhere = concurrency(); }).join();
  EXPECT_EQ(elsewhere, 1);
}

}  // namespace
}  // namespace deepspeed::kernels
