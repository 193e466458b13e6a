// SPDX-License-Identifier: Apache-2.0
// Every function of the plug-in against a plain reference, where there is a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "gpu.h"

namespace deepspeed::device {
namespace {

TEST_F(Gpu, Describes) {
  ASSERT_EQ(table().device_count(), open().devices);
  for (int device = 0; device < open().devices; ++device) {
    const Info info = table().device_info(device);
    EXPECT_FALSE(info.name.empty());
    EXPECT_TRUE(std::regex_match(info.uuid, std::regex("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"))) << info.uuid;
    EXPECT_TRUE(has_code_for(own_places().architectures, info.major, info.minor));
    EXPECT_GT(info.multiprocessors, 0);
    const Memory memory = table().memory(device);
    EXPECT_GT(memory.free, 0U);
    EXPECT_LE(memory.free, memory.total);
    EXPECT_LE(memory.total, info.bytes);
    std::printf("GPU %d: %s, %s, compute capability %d.%d, %.1f GiB\n", device, info.name.c_str(), info.uuid.c_str(),
                info.major, info.minor, static_cast<double>(info.bytes) / (1U << 30U));
  }
  EXPECT_EQ(table().current_device(), 0);
}

TEST_F(Gpu, TooMuchMemoryIsNamed) {
  try {
    table().release(table().allocate(std::size_t{1} << 50U));
    FAIL() << "a petabyte was given";
  } catch (const base::DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("out of GPU memory"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(table().stream_synchronize(stream()));
}

TEST_F(Gpu, CopiesThroughPinnedMemoryInOrder) {
  constexpr std::size_t bytes = 8U << 20U;
  auto* host = static_cast<unsigned char*>(table().allocate_host(bytes));
  void* device = table().allocate(bytes);
  const StreamHandle other(table().stream_create(true));
  const EventHandle begin(table().event_create(true));
  const EventHandle filled(table().event_create(true));
  std::memset(host, 0, bytes);
  table().event_record(begin.get(), stream());
  table().fill(device, 0x5a, bytes, stream());
  table().event_record(filled.get(), stream());
  table().stream_wait(other.get(), filled.get());
  table().copy(host, device, bytes, other.get());
  table().stream_synchronize(other.get());
  EXPECT_TRUE(std::all_of(host, host + bytes, [](unsigned char c) { return c == 0x5a; }));
  table().event_synchronize(filled.get());
  EXPECT_TRUE(table().event_done(filled.get()));
  EXPECT_GE(table().event_elapsed_ms(begin.get(), filled.get()), 0.0F);
  table().release(device);
  table().release_host(host);
}

TEST_F(Gpu, TorchAnswers) {
  EXPECT_NO_THROW(table().torch_stream());
  table().torch_reset_peak(0);
  table().torch_empty_cache();
  const TorchMemory memory = table().torch_memory(0);
  EXPECT_LE(memory.allocated, memory.reserved);
}

// Adam as the host kernel does it, one element at a time.
void reference_adam(const AdamStep& s, float scale, std::vector<float>& p, const std::vector<float>& g,
                    std::vector<float>& m, std::vector<float>& v) {
  const double c1 = s.bias_correction ? 1.0 - std::pow(s.beta1, static_cast<double>(s.step)) : 1.0;
  const double c2 = s.bias_correction ? 1.0 - std::pow(s.beta2, static_cast<double>(s.step)) : 1.0;
  const auto beta1 = static_cast<float>(s.beta1);
  const auto beta2 = static_cast<float>(s.beta2);
  const auto alpha1 = static_cast<float>(1.0 - s.beta1);
  const auto alpha2 = static_cast<float>(1.0 - s.beta2);
  const auto l2 = static_cast<float>(s.weight_decay);
  const auto decay = static_cast<float>(-s.lr * s.weight_decay);
  const auto root_scale = static_cast<float>(1.0 / std::sqrt(c2));
  const auto negative_rate = static_cast<float>(-s.lr / c1);
  for (std::size_t i = 0; i < p.size(); ++i) {
    float x = g[i] * scale;
    if (!s.decoupled) x = std::fma(l2, p[i], x);
    m[i] = std::fma(alpha1, x, beta1 * m[i]);
    v[i] = std::fma(alpha2, x * x, beta2 * v[i]);
    const float direction = m[i] / std::fma(std::sqrt(v[i]), root_scale, static_cast<float>(s.eps));
    const float start = s.decoupled ? std::fma(decay, p[i], p[i]) : p[i];
    p[i] = std::fma(negative_rate, direction, start);
  }
}

struct AdamCase {
  Dtype gradient;
  Dtype working;
  bool decoupled;
  bool bias_correction;
};

class GpuAdam : public Gpu, public testing::WithParamInterface<AdamCase> {};

TEST_P(GpuAdam, EqualsTheReferenceInEveryBit) {
  const AdamCase& c = GetParam();
  // Around the sizes of a thread's, a block's and a launch's share; an odd shift spoils the alignment of some.
  std::vector<std::size_t> sizes{1, 3, 4, 5, 4095, 4096, 4097, 100003, 0, 257};
  for (std::size_t i = 0; i < 70; ++i) sizes.push_back(i + 1);

  struct Tensor {
    std::vector<float> p, g, m, v;
    OnDevice<float> dp, dm, dv;
    OnDevice<std::byte> dg, dw;
  };
  std::vector<Tensor> tensors;
  std::vector<AdamPiece> pieces;
  unsigned seed = 1;
  for (const std::size_t n : sizes) {
    auto p = normal(n, seed++, 0.02F);
    auto m = normal(n, seed++, 1e-3F);
    auto v = normal(n, seed++, 1e-3F);
    for (float& x : v) x *= x;
    const auto bytes = encode(normal(n, seed++, 10.0F), c.gradient);
    const std::size_t shift = seed % 3 == 0 ? 1 : 0;
    tensors.push_back({p, decode(bytes, c.gradient), m, v, OnDevice<float>(p, shift), OnDevice<float>(m),
                       OnDevice<float>(v, shift), OnDevice<std::byte>(bytes),
                       OnDevice<std::byte>(std::vector<std::byte>(n * base::size_of(c.working)))});
  }
  for (Tensor& t : tensors) {
    pieces.push_back(
        {t.dp.data(), t.dg.data(), t.dm.data(), t.dv.data(), t.dw.data(), static_cast<std::int64_t>(t.p.size())});
  }
  const OnDevice<float> factor({0.25F});
  const OnDevice<std::uint32_t> go({0U});
  AdamStep step;
  step.gradient_type = c.gradient;
  step.working_type = c.working;
  step.decoupled = c.decoupled;
  step.bias_correction = c.bias_correction;
  step.weight_decay = 0.1;
  step.gradient_scale = 0.37F;
  for (step.step = 1; step.step <= 3; ++step.step) {
    step.device_gradient_scale = step.step == 2 ? factor.data() : nullptr;
    step.skip = step.step == 3 ? go.data() : nullptr;
    table().adam(pieces.data(), pieces.size(), step, stream());
    const float scale = step.step == 2 ? step.gradient_scale * 0.25F : step.gradient_scale;
    for (Tensor& t : tensors) reference_adam(step, scale, t.p, t.g, t.m, t.v);
  }
  wait();
  for (const Tensor& t : tensors) {
    ASSERT_EQ(t.dp.values(), t.p) << "weights, " << t.p.size() << " elements";
    ASSERT_EQ(t.dm.values(), t.m);
    ASSERT_EQ(t.dv.values(), t.v);
    ASSERT_EQ(t.dw.values(), encode(t.p, c.working));
  }

  const OnDevice<std::uint32_t> stop({1U});
  step.skip = stop.data();
  table().adam(pieces.data(), pieces.size(), step, stream());
  wait();
  for (const Tensor& t : tensors) ASSERT_EQ(t.dp.values(), t.p);
}

INSTANTIATE_TEST_SUITE_P(
    Types, GpuAdam,
    testing::Values(AdamCase{Dtype::f32, Dtype::f32, true, true}, AdamCase{Dtype::f32, Dtype::bf16, true, true},
                    AdamCase{Dtype::bf16, Dtype::bf16, true, true}, AdamCase{Dtype::bf16, Dtype::f32, false, true},
                    AdamCase{Dtype::f16, Dtype::f16, true, false}, AdamCase{Dtype::f16, Dtype::bf16, false, false}));

TEST_F(Gpu, SumOfSquaresIsExactAndRepeats) {
  std::vector<OnDevice<std::byte>> memory;
  std::vector<ConstBuffer> pieces;
  long double expected = 0.0L;
  unsigned seed = 100;
  for (std::size_t i = 0; i < 300; ++i) {
    const Dtype type = floating.at(i % 3);
    const std::size_t n = i == 7 ? 3000001 : i * 13;
    const auto bytes = encode(normal(n, seed++), type);
    for (const float x : decode(bytes, type)) expected += static_cast<long double>(x) * x;
    const std::size_t shift = i % 5 == 0 ? base::size_of(type) : 0;
    memory.emplace_back(bytes, shift);
    pieces.emplace_back(memory.back().data(), static_cast<std::int64_t>(n), type);
  }
  const OnDevice<double> sum({-1.0});
  const OnDevice<double> scratch(std::vector<double>(norm_scratch, 7.0));
  const OnDevice<std::uint32_t> flag({9U});
  double first = 0.0;
  for (int round = 0; round < 2; ++round) {
    table().sum_of_squares(pieces.data(), pieces.size(), sum.data(), flag.data(), scratch.data(), stream());
    wait();
    EXPECT_NEAR(sum.values()[0], static_cast<double>(expected), static_cast<double>(expected) * 1e-13);
    EXPECT_EQ(flag.values()[0], 0U);
    if (round == 0) first = sum.values()[0];
    EXPECT_EQ(sum.values()[0], first);
  }
  table().sum_of_squares(nullptr, 0, sum.data(), flag.data(), scratch.data(), stream());
  wait();
  EXPECT_EQ(sum.values()[0], 0.0);
}

TEST_F(Gpu, SumOfSquaresSeesWhatIsNotFinite) {
  const OnDevice<double> sum({0.0});
  const OnDevice<double> scratch(std::vector<double>(norm_scratch, 0.0));
  const OnDevice<std::uint32_t> flag({0U});
  for (const Dtype type : floating) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t where : {std::size_t{0}, std::size_t{5000}, std::size_t{10006}}) {
        std::vector<float> values(10007, 1.0F);
        values[where] = bad;
        const OnDevice<std::byte> memory(encode(values, type));
        const ConstBuffer piece(memory.data(), static_cast<std::int64_t>(values.size()), type);
        table().sum_of_squares(&piece, 1, sum.data(), flag.data(), scratch.data(), stream());
        wait();
        EXPECT_EQ(flag.values()[0], 1U) << base::name_of(type) << " " << bad << " at " << where;
      }
    }
  }
  // The greatest finite numbers are finite.
  const OnDevice<float> great(std::vector<float>(1000, std::numeric_limits<float>::max()));
  const ConstBuffer piece(great.data(), 1000, Dtype::f32);
  table().sum_of_squares(&piece, 1, sum.data(), flag.data(), scratch.data(), stream());
  wait();
  EXPECT_EQ(flag.values()[0], 0U);
}

TEST_F(Gpu, CastRoundsToNearestEven) {
  std::vector<float> values = normal(20011, 5, 100.0F);
  const std::vector<float> edges{0.0F,        -0.0F,   1.0F,    65504.0F, 65519.9F,
                                 65520.0F,    1e30F,   6e-8F,   2.9e-8F,  3.1e-8F,
                                 1e-39F,      1e-45F,  3.4e38F, -3.4e38F, 1.00390625F,
                                 1.01171875F, 2049.0F, 2051.0F, 1.0e-41F, std::numeric_limits<float>::infinity()};
  values.insert(values.end(), edges.begin(), edges.end());
  for (const Dtype from : floating) {
    for (const Dtype to : floating) {
      for (const float scale : {1.0F, 0.125F, 3.0F}) {
        for (const std::size_t shift : {0, 1}) {
          const auto input = encode(values, from);
          std::vector<float> scaled = decode(input, from);
          for (float& x : scaled) x *= scale;
          const OnDevice<std::byte> in(input, shift * base::size_of(from));
          const OnDevice<std::byte> out(std::vector<std::byte>(values.size() * base::size_of(to)));
          const auto numel = static_cast<std::int64_t>(values.size());
          table().cast({in.data(), numel, from}, {out.data(), numel, to}, scale, stream());
          wait();
          EXPECT_EQ(out.values(), encode(scaled, to)) << base::name_of(from) << " to " << base::name_of(to);
        }
      }
    }
  }
}

TEST_F(Gpu, NcclOfOneRank) {
  const CommunicatorHandle comm(table().comm_create(table().nccl_id(), 0, 1));
  const auto values = normal(1003, 9);
  const OnDevice<float> in(values);
  const OnDevice<float> out(std::vector<float>(values.size()));
  const Buffer output{out.data(), 1003, Dtype::f32};
  const ConstBuffer input(in.data(), 1003, Dtype::f32);
  const auto clear = [&] { table().fill(out.data(), 0, output.bytes(), stream()); };
  clear();
  table().all_reduce(comm.get(), input, output, Reduction::sum, stream());
  wait();
  EXPECT_EQ(out.values(), values);
  clear();
  table().reduce_scatter(comm.get(), input, output, Reduction::max, stream());
  wait();
  EXPECT_EQ(out.values(), values);
  clear();
  table().all_gather(comm.get(), input, output, stream());
  wait();
  EXPECT_EQ(out.values(), values);
  table().broadcast(comm.get(), output, 0, stream());
  wait();
  EXPECT_EQ(out.values(), values);
  clear();
  table().group_begin();
  table().send(comm.get(), input, 0, stream());
  table().receive(comm.get(), output, 0, stream());
  table().group_end();
  wait();
  EXPECT_EQ(out.values(), values);
  EXPECT_EQ(table().comm_error(comm.get()), "");

  EXPECT_THROW(table().all_reduce(comm.get(), input, {out.data(), 5, Dtype::f32}, Reduction::sum, stream()),
               base::CommError);
  EXPECT_THROW(table().comm_create(table().nccl_id(), 3, 1), base::CommError);
  table().comm_abort(table().comm_create(table().nccl_id(), 0, 1));
}

TEST_F(Gpu, NcclOverAllGpusOfThisProcess) {
  const int size = open().devices;
  if (size < 2) GTEST_SKIP() << "needs 2 GPUs";
  const NcclId id = table().nccl_id();
  const auto expected = static_cast<float>(size * (size + 1) / 2);
  // A thread a rank: each call of comm_create waits for the others.
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      table().set_device(rank);
      const CommunicatorHandle comm(table().comm_create(id, rank, size));
      const StreamHandle stream(table().stream_create(false));
      const OnDevice<float> memory(std::vector<float>(1000, static_cast<float>(rank + 1)));
      const Buffer buffer{memory.data(), 1000, Dtype::f32};
      table().all_reduce(comm.get(), buffer, buffer, Reduction::sum, stream.get());
      table().stream_synchronize(stream.get());
      EXPECT_EQ(memory.values(), std::vector<float>(1000, expected)) << "rank " << rank;
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace deepspeed::device
