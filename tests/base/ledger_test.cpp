// SPDX-License-Identifier: Apache-2.0
#include "base/ledger.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace deepspeed::base::ledger {
namespace {

TEST(Ledger, CountsByCategoryWithPeaks) {
  const std::int64_t before = current(Category::buckets);
  reset_peaks();
  {
    const Charge a(Category::buckets, 100);
    Charge b(Category::buckets, 50);
    EXPECT_EQ(current(Category::buckets), before + 150);
    Charge c(std::move(b));
    b = Charge(Category::gradients, 7);
    EXPECT_EQ(current(Category::buckets), before + 150);
  }
  EXPECT_EQ(current(Category::buckets), before);
  EXPECT_EQ(peak(Category::buckets), before + 150);
  EXPECT_GE(peak_total(), current_total() + 157);
  reset_peaks();
  EXPECT_EQ(peak(Category::buckets), before);
  EXPECT_EQ(peak_total(), current_total());
}

TEST(Ledger, ScopesNestAndBelongToAThread) {
  EXPECT_EQ(category(), Category::other);
  {
    const Scope outer(Category::activations);
    std::thread([] { EXPECT_EQ(category(), Category::other); }).join();
    {
      const Scope inner(Category::optimizer);
      EXPECT_EQ(category(), Category::optimizer);
    }
    EXPECT_EQ(category(), Category::activations);
  }
  EXPECT_EQ(category(), Category::other);
}

TEST(Ledger, AnyThreadCharges) {
  const std::int64_t before = current(Category::communication);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 10000; ++i) const Charge one(Category::communication, 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(current(Category::communication), before);
  EXPECT_LE(peak(Category::communication), before + 12);
}

TEST(Ledger, EveryCategoryHasItsName) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < categories; ++i) names.emplace(name_of(static_cast<Category>(i)));
  EXPECT_EQ(names.size(), categories);
}

}  // namespace
}  // namespace deepspeed::base::ledger
