// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/handle.h"
#include "base/log.h"

namespace deepspeed::base {
namespace {

int destroyed = 0;
void destroy(int) {
  ++destroyed;
}
using Descriptor = Handle<int, destroy, -1>;

TEST(Handle, DestroysOnceAndMoves) {
  destroyed = 0;
  {
    Descriptor a(3);
    Descriptor b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT: the moved-from state is what is tested
    EXPECT_EQ(b.get(), 3);
    b = Descriptor(4);
    EXPECT_EQ(destroyed, 1);
  }
  EXPECT_EQ(destroyed, 2);
}

TEST(Dtype, NamesRoundTrip) {
  for (const Dtype type : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i64, Dtype::i32, Dtype::i16,
                           Dtype::i8, Dtype::u8, Dtype::boolean}) {
    Dtype back{};
    ASSERT_TRUE(parse_dtype(name_of(type), back));
    EXPECT_EQ(back, type);
    EXPECT_GT(size_of(type), 0U);
  }
  Dtype type{};
  EXPECT_TRUE(parse_dtype("torch.bfloat16", type));
  EXPECT_EQ(type, Dtype::bf16);
  EXPECT_FALSE(parse_dtype("fp8", type));
}

TEST(Error, CarriesItsExitCode) {
  const ConfigError error("train_batch_size: must be positive");
  EXPECT_EQ(error.code(), ExitCode::config);
  EXPECT_STREQ(error.what(), "train_batch_size: must be positive");
  EXPECT_EQ(system_error("file.txt", 2), "file.txt: No such file or directory");
}

TEST(Log, RefusesAnUnknownLevel) {
  EXPECT_EQ(log::parse_level("Warning"), log::Level::warning);
  EXPECT_THROW(log::parse_level("loud"), ConfigError);
}

}  // namespace
}  // namespace deepspeed::base
