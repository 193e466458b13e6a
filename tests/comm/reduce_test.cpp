// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "comm/floats.h"

namespace deepspeed::comm {
namespace {

using base::Dtype;

TEST(Reduce, EverySixteenBitValueWidensExactly) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  const Buffer out{wide.data(), 65536, Dtype::f32};
  for (const Dtype type : {Dtype::f16, Dtype::bf16}) {
    reduce_slices({all.data()}, type, out);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double truth = type == Dtype::f16 ? test::decode_half(all[i]) : test::decode_bfloat(all[i]);
      if (std::isnan(truth)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(static_cast<float>(truth))) << i;
      }
    }
  }
}

// Two 16-bit numbers have exact sums in fp32 only now and then; the truth rounds twice as the code does: to fp32, then
// to 16 bits.
TEST(Reduce, SixteenBitSumsAreRoundedOnce) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> a(200000);
  std::vector<std::uint16_t> b(a.size());
  for (auto& x : a) x = static_cast<std::uint16_t>(random());
  for (auto& x : b) x = static_cast<std::uint16_t>(random());
  // Near to and beyond the largest value, around the smallest ones, ties.
  a[0] = 0x7bff;
  b[0] = 0x4c00;
  a[1] = 0x7bff;
  b[1] = 0x4bff;
  a[2] = 0x0001;
  b[2] = 0x0001;
  a[3] = 0x0001;
  b[3] = 0x8001;
  for (const Dtype type : {Dtype::f16, Dtype::bf16}) {
    const bool half = type == Dtype::f16;
    std::vector<std::uint16_t> sum(a.size());
    reduce_slices({a.data(), b.data()}, type, {sum.data(), static_cast<std::int64_t>(sum.size()), type});
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto value = [half](std::uint16_t x) { return half ? test::decode_half(x) : test::decode_bfloat(x); };
      const double truth = static_cast<float>(static_cast<float>(value(a[i])) + static_cast<float>(value(b[i])));
      if (std::isnan(truth)) {
        ASSERT_TRUE(std::isnan(value(sum[i])));
      } else {
        ASSERT_EQ(sum[i], half ? test::encode_half(truth) : test::encode_bfloat(truth)) << a[i] << " + " << b[i];
      }
    }
  }
}

TEST(Reduce, OrderScaleAndAccumulation) {
  // 1e8 + 1 - 1e8 in fp32 depends on the order.
  const std::vector<float> a{1e8F, 1};
  const std::vector<float> b{1, 1e8F};
  const std::vector<float> c{-1e8F, -1e8F};
  std::vector<float> out{7, 7};
  reduce_slices({a.data(), b.data(), c.data()}, Dtype::f32, {out.data(), 2, Dtype::f32}, ReduceOp::sum, 0.5F, true);
  EXPECT_EQ(out[0], 7 + 0.5F * ((1e8F + 1) - 1e8F));
  reduce_slices({a.data(), c.data(), b.data()}, Dtype::f32, {out.data(), 2, Dtype::f32}, ReduceOp::sum, 2.0F);
  EXPECT_EQ(out[0], 2.0F);
  EXPECT_EQ(out[1], 2 * ((1 + -1e8F) + 1e8F));
  // In place.
  std::vector<float> x{1, 2};
  reduce_slices({a.data(), x.data()}, Dtype::f32, {x.data(), 2, Dtype::f32}, ReduceOp::max);
  EXPECT_EQ(x, (std::vector<float>{1e8F, 2}));
}

TEST(Reduce, IntegersWrapAndBooleansAreLogic) {
  const std::vector<std::int8_t> a{127, -128, 3};
  const std::vector<std::int8_t> b{1, -1, -4};
  std::vector<std::int8_t> out(3);
  reduce_slices({a.data(), b.data()}, Dtype::i8, {out.data(), 3, Dtype::i8});
  EXPECT_EQ(out, (std::vector<std::int8_t>{-128, 127, -1}));
  const std::vector<std::uint8_t> t{1, 0, 1};
  const std::vector<std::uint8_t> u{1, 0, 0};
  std::vector<std::uint8_t> logic(3);
  reduce_slices({t.data(), u.data()}, Dtype::boolean, {logic.data(), 3, Dtype::boolean});
  EXPECT_EQ(logic, (std::vector<std::uint8_t>{1, 0, 1}));
  reduce_slices({t.data(), u.data()}, Dtype::boolean, {logic.data(), 3, Dtype::boolean}, ReduceOp::min);
  EXPECT_EQ(logic, (std::vector<std::uint8_t>{1, 0, 0}));
}

}  // namespace
}  // namespace deepspeed::comm
