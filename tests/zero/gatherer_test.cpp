// SPDX-License-Identifier: Apache-2.0
#include "zero/gatherer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "zero/gathered_parameters.h"
#include "zero/process.h"

namespace deepspeed::zero {
namespace {

/// `count` rows of one parameter of `numel` elements, all of value row + 1 on rank 0.
struct Rows {
  std::vector<at::Tensor> parameters;
  std::vector<std::shared_ptr<Row>> rows;
  std::unique_ptr<Gatherer> gatherer;

  Rows(int count, std::int64_t numel, const Gatherer::Settings& settings, base::Dtype type = base::Dtype::f32) {
    std::vector<Row*> pointers;
    for (int i = 0; i < count; ++i) {
      parameters.push_back(at::full({numel}, world()->rank() == 0 ? i + 1.0 : -1.0));
      rows.push_back(std::make_shared<Row>(std::vector<NamedParameter>{{"p" + std::to_string(i), parameters.back()}},
                                           world(), Holding{type, true, false, false},
                                           Arena(base::ledger::Category::gathered)));
      pointers.push_back(rows.back().get());
    }
    gatherer = std::make_unique<Gatherer>(*world(), pointers, settings);
  }
  /// Uses a row, for as long as `work` takes, and says whether its values are there.
  bool use(int row, const std::function<void()>& work = {}) {
    Row* one[] = {rows[static_cast<std::size_t>(row)].get()};
    gatherer->use(one);
    const at::Tensor& p = parameters[static_cast<std::size_t>(row)];
    const bool right = at::equal(p, at::full({p.numel()}, row + 1.0));
    if (work) work();
    gatherer->done(one);
    return right;
  }
  bool is_here(int row) const { return rows[static_cast<std::size_t>(row)]->state() != Row::State::absent; }
};

TEST(GathererRanks, WithoutAnOrderNothingIsAheadAndNothingIsKept) {
  Rows r(3, 10, {.prefetch = 100, .max_live = 100, .reuse_distance = 100});
  r.gatherer->begin_pass();
  for (const int row : {0, 1, 2, 2, 1, 0}) {
    EXPECT_TRUE(r.use(row));
    EXPECT_EQ(r.gatherer->live(), 0);
  }
  EXPECT_EQ(r.gatherer->gathers(), 6);
  EXPECT_EQ(r.gatherer->ahead(), 0);
  EXPECT_EQ(r.gatherer->peak_live(), 10);
}

TEST(GathererRanks, TheOrderOfTheLastPassIsFetchedAhead) {
  Rows r(4, 10, {.prefetch = 10, .max_live = 1000, .reuse_distance = 1});
  for (int pass = 0; pass < 3; ++pass) {
    r.gatherer->begin_pass();
    for (const int row : {0, 1, 2, 3, 3, 2, 1, 0}) {
      EXPECT_TRUE(r.use(row, [] {  // long enough for the ranks to agree
        world()->barrier().wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }));
    }
    r.gatherer->finish();
    EXPECT_EQ(r.gatherer->live(), 0);
  }
  // The first pass records; in each of the two others the last row stays for its second use, and all gathers but the
  // first can be under way before their row is used.
  EXPECT_EQ(r.gatherer->gathers(), 8 + 7 + 7);
  EXPECT_EQ(r.gatherer->ahead(), 6 + 6);
  EXPECT_LE(r.gatherer->peak_live(), 20);
}

TEST(GathererRanks, WhatIsUsedAgainSoonStays) {
  Rows r(3, 10, {.max_live = 1000, .reuse_distance = 15});
  for (int pass = 0; pass < 2; ++pass) {
    r.gatherer->begin_pass();
    for (const int row : {0, 1, 2, 2, 1, 0}) {
      EXPECT_TRUE(r.use(row));
      if (pass == 0) continue;
      // 2's next use is at once; 1's after one row of 10 twice, which is too far.
      if (row != 2) {
        EXPECT_FALSE(r.is_here(row));
      }
    }
    r.gatherer->finish();
  }
  EXPECT_EQ(r.gatherer->gathers(), 6 + 5);
}

TEST(GathererRanks, NeverMoreThanTheLimitIsLive) {
  for (const std::int64_t limit : {10, 25, 40}) {
    Rows r(6, 10, {.prefetch = 1000, .max_live = limit, .reuse_distance = 1000});
    for (int pass = 0; pass < 4; ++pass) {
      r.gatherer->begin_pass();
      for (const int row : {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0}) EXPECT_TRUE(r.use(row));
      r.gatherer->finish();
    }
    EXPECT_LE(r.gatherer->peak_live(), limit);
  }
}

TEST(GathererRanks, AnotherOrderIsRecordedAnew) {
  Rows r(4, 10, {.prefetch = 20, .max_live = 1000, .reuse_distance = 30});
  std::mt19937 random(3);  // the same on every rank
  for (int pass = 0; pass < 12; ++pass) {
    r.gatherer->begin_pass();
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(r.use(static_cast<int>(random() % 4)));
    if (pass % 3 == 2) r.gatherer->finish();
  }
}

// Each rank runs rows of its own choice, as often as it likes, with what others need in between.
TEST(GathererRanks, RanksMayDiffer) {
  Rows r(5, 12, {.prefetch = 24, .max_live = 48, .reuse_distance = 100});
  std::mt19937 random(static_cast<unsigned>(17 + world()->rank()));
  for (int step = 0; step < 10; ++step) {
    const int passes = 1 + static_cast<int>(random() % 3);
    for (int pass = 0; pass < passes; ++pass) {
      r.gatherer->begin_pass();
      const int uses = static_cast<int>(random() % 9);
      for (int i = 0; i < uses; ++i) {
        EXPECT_TRUE(r.use(static_cast<int>(random() % 5)));
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      }
    }
    // A reduction that some ranks wait for early and some late.
    double one = 1;
    comm::Work sum = world()->all_reduce({&one, 1, base::Dtype::f64});
    if (random() % 2 == 0) r.gatherer->wait(sum);
    if (random() % 2 == 0) {
      EXPECT_TRUE(r.use(static_cast<int>(random() % 5)));
    }
    r.gatherer->wait(sum);
    EXPECT_EQ(one, world()->size());
    r.gatherer->finish();
    EXPECT_EQ(r.gatherer->live(), 0);
  }
}

TEST(GatheredParametersRanks, ShowWholeValuesAndNest) {
  Rows r(2, 9, {});
  {
    const GatheredParameters outer({r.parameters[0], r.parameters[1], at::zeros({3})});
    EXPECT_TRUE(at::equal(r.parameters[1], at::full({9}, 2.0)));
    {
      const GatheredParameters inner({r.parameters[1]});
      EXPECT_TRUE(at::equal(r.parameters[1], at::full({9}, 2.0)));
    }
    EXPECT_TRUE(at::equal(r.parameters[1], at::full({9}, 2.0)));
    EXPECT_TRUE(r.use(1));
    EXPECT_TRUE(r.is_here(1));
  }
  EXPECT_FALSE(r.is_here(0));
  EXPECT_FALSE(r.is_here(1));
  const GatheredParameters off({r.parameters[0]}, std::nullopt, false);
  EXPECT_FALSE(r.is_here(0));
}

TEST(GatheredParametersRanks, TheModifiersChangesBecomeEverybodys) {
  const int last = world()->size() - 1;
  Rows r(1, 7, {}, base::Dtype::bf16);
  bool told = false;
  r.rows[0]->on_change = [&] { told = true; };
  {
    GatheredParameters whole({r.parameters[0]}, last);
    if (world()->rank() == last) r.parameters[0].copy_(at::arange(7));
    whole.close();
  }
  EXPECT_TRUE(told);
  EXPECT_FALSE(r.is_here(0));
  const GatheredParameters whole({r.parameters[0]});
  EXPECT_TRUE(at::equal(r.parameters[0].to(at::kFloat), at::arange(7).to(at::kFloat)));
}

TEST(GatheredParametersRanks, ChangesWithoutAModifierAreRefused) {
  Rows r(1, 7, {});
  GatheredParameters whole({r.parameters[0]});
  r.parameters[0].fill_(5);
  EXPECT_THROW(whole.close(), std::runtime_error);
  EXPECT_FALSE(r.is_here(0));
  EXPECT_TRUE(r.use(0));  // as before
  EXPECT_THROW(GatheredParameters({r.parameters[0]}, world()->size()), std::invalid_argument);
}

TEST(GatheredParametersRanks, AnExceptionInsideChangesNothing) {
  Rows r(1, 7, {});
  try {
    const GatheredParameters whole({r.parameters[0]}, 0);
    r.parameters[0].fill_(5);
    throw std::runtime_error("inside");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "inside");
  }
  EXPECT_FALSE(r.is_here(0));
  EXPECT_TRUE(r.use(0));
}

}  // namespace
}  // namespace deepspeed::zero
