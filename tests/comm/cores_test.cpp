// SPDX-License-Identifier: Apache-2.0
#include "comm/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace deepspeed::comm {
namespace {

TEST(Cores, AreFound) {
  const Cores cores = find_cores();
  EXPECT_GE(cores.allowed, 1);
  EXPECT_GE(cores.bound, 1);
  EXPECT_LE(cores.bound, cores.allowed);
}

TEST(Cores, ThreadsAreTheShare) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads_for({16, 16}, 1), 16);
  EXPECT_EQ(threads_for({16, 16}, 4), 4);
  EXPECT_EQ(threads_for({16, 16}, 5), 3);
  EXPECT_EQ(threads_for({2, 2}, 64), 1);
  EXPECT_EQ(threads_for({16, 1}, 2), 1);
  setenv("OMP_NUM_THREADS", "6,2", 1);
  EXPECT_EQ(threads_for({16, 1}, 2), 6);
  if (before == nullptr) {
    unsetenv("OMP_NUM_THREADS");
  } else {
    setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  }
}

TEST(Cores, AdviceOnlyWhereARankHasLessThanItsShare) {
  EXPECT_EQ(binding_advice({16, 16}, 2), "");
  EXPECT_EQ(binding_advice({16, 8}, 2), "");
  EXPECT_EQ(binding_advice({2, 1}, 2), "");
  EXPECT_EQ(binding_advice({2, 1}, 8), "");
  EXPECT_THAT(binding_advice({16, 1}, 2), testing::HasSubstr("bound to 1 of the 8 cores"));
}

}  // namespace
}  // namespace deepspeed::comm
