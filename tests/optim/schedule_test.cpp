// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "support/safetensors_lite.h"

namespace deepspeed::optim {
namespace {

using nlohmann::json;

const json& recorded() {
  static const json all = test::read_json(std::string(DS_TEST_DATA) + "/optim/lr_schedules.json");
  return all;
}

Schedule schedule_of(const json& c) {
  std::vector<GroupRates> base(c["groups"].get<std::size_t>(),
                               {c["base_lr"], std::pair<double, double>{c["betas"][0], c["betas"][1]}});
  return make_schedule(c["type"].get<std::string>(), c["params"], base);
}

void expect_rates(const Schedule& schedule, const json& lrs, const json& betas, const std::string& what) {
  ASSERT_EQ(schedule.rates().size(), lrs.size());
  for (std::size_t g = 0; g < lrs.size(); ++g) {
    const double lr = lrs[g];
    ASSERT_NEAR(schedule.lr(g), lr, 1e-12 * std::fabs(lr)) << what << " group " << g;
    ASSERT_TRUE(schedule.rates()[g].betas.has_value());
    ASSERT_NEAR(schedule.rates()[g].betas->first, betas[g][0].get<double>(), 1e-12) << what << " group " << g;
    ASSERT_NEAR(schedule.rates()[g].betas->second, betas[g][1].get<double>(), 1e-12) << what << " group " << g;
  }
}

TEST(Schedule, EveryRecordedTrace) {
  int cases = 0;
  for (const json& c : recorded()["cases"]) {
    const std::string what = c["type"].get<std::string>() + " " + c["params"].dump();
    Schedule schedule = schedule_of(c);
    expect_rates(schedule, c["lr_at_init"], c["betas_at_init"], what + " at the start");
    for (std::size_t s = 0; s < c["lr"].size(); ++s) {
      schedule.step();
      const json& betas = c["betas_trace"].is_null() ? c["betas_at_init"] : c["betas_trace"][s];
      expect_rates(schedule, c["lr"][s], betas, what + " step " + std::to_string(s));
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(schedule.state(), c["state_dict_end"]);
    ++cases;
  }
  EXPECT_EQ(cases, 50);
}

TEST(Schedule, EveryRecordedError) {
  int cases = 0;
  for (const json& c : recorded()["errors"]) {
    try {
      make_schedule(c["type"].get<std::string>(), c["params"], {{1e-3, std::pair{0.9, 0.999}}});
      ADD_FAILURE() << c.dump();
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("scheduler.params: " + c["error"].get<std::string>()));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 16);
}

TEST(Schedule, ResumesToTheLastBit) {
  for (const json& c : recorded()["cases"]) {
    for (const int stop : {0, 1, 10, 37}) {
      Schedule whole = schedule_of(c), before = schedule_of(c), after = schedule_of(c);
      for (int s = 0; s < stop; ++s) {
        whole.step();
        before.step();
      }
      after.load(json::parse(before.state().dump()));
      for (int s = stop; s < 60; ++s) {
        for (std::size_t g = 0; g < whole.rates().size(); ++g) {
          ASSERT_EQ(whole.lr(g), after.lr(g)) << c["type"] << " " << s;
          ASSERT_EQ(whole.rates()[g].betas, after.rates()[g].betas) << c["type"] << " " << s;
        }
        whole.step();
        after.step();
      }
    }
  }
  Schedule schedule = make_schedule("WarmupLR", nullptr, {{1e-3, {}}});
  EXPECT_THROW(schedule.load(json::object()), base::CheckpointError);
  EXPECT_THROW(schedule.load(json::array()), base::CheckpointError);
}

TEST(Schedule, ShortWarmups) {
  for (const char* type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    for (const char* curve : {"log", "linear"}) {
      const auto rates = [&](int warmup) {
        json params{{"warmup_num_steps", warmup}, {"warmup_type", curve}};
        if (std::string(type) != "WarmupLR") params["total_num_steps"] = 10;
        if (std::string(type) != "WarmupCosineLR") params["warmup_max_lr"] = 0.1;
        Schedule schedule = make_schedule(type, params, {{0.1, {}}});
        std::vector<double> result;
        for (int s = 0; s < 4; ++s) {
          schedule.step();
          result.push_back(schedule.lr());
          EXPECT_TRUE(std::isfinite(result.back()));
        }
        return result;
      };
      EXPECT_THROW(rates(0), base::ConfigError);
      EXPECT_EQ(rates(1), rates(2));
      EXPECT_EQ(rates(1)[0], 0);
      EXPECT_GT(rates(1)[2], 0.09);
    }
  }
}

TEST(Schedule, RatesThatOptimizerStepsUse) {
  // Three optimizer steps; the schedule moves after each.
  Schedule schedule = make_schedule(
      "WarmupLR", {{"warmup_min_lr", 0}, {"warmup_max_lr", 0.1}, {"warmup_num_steps", 10}, {"warmup_type", "linear"}},
      {{0.5, {}}});
  std::vector<double> used;
  for (int s = 0; s < 3; ++s) {
    used.push_back(schedule.lr());
    schedule.step();
  }
  EXPECT_THAT(used, testing::ElementsAre(0, 0, testing::DoubleNear(0.01, 1e-15)));
  EXPECT_NEAR(schedule.lr(), 0.02, 1e-15);
}

TEST(Schedule, WithoutBetasOneCycleLeavesMomentumAlone) {
  Schedule schedule = make_schedule("OneCycle", {{"cycle_min_lr", 0.1}, {"cycle_max_lr", 1}}, {{0.5, {}}});
  schedule.step();
  EXPECT_FALSE(schedule.rates()[0].betas.has_value());
}

TEST(Schedule, RefusesAnUnknownType) {
  try {
    make_schedule("CosineAnnealingLR", nullptr, {{0.5, {}}});
    ADD_FAILURE();
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("scheduler.type"), testing::HasSubstr("WarmupLR")));
  }
}

}  // namespace
}  // namespace deepspeed::optim
