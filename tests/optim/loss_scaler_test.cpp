// SPDX-License-Identifier: Apache-2.0
#include "optim/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/safetensors_lite.h"

namespace deepspeed::optim {
namespace {

using nlohmann::json;

/// Walks [value, count] pairs.
class Runs {
 public:
  explicit Runs(const json& runs) : runs_(runs) {}
  double next() {
    if (used_ == runs_[at_][1].get<int>()) {
      ++at_;
      used_ = 0;
    }
    ++used_;
    return runs_[at_][0].get<double>();
  }

 private:
  const json& runs_;
  std::size_t at_ = 0;
  int used_ = 0;
};

TEST(LossScaler, EveryRecordedTrace) {
  const json recorded = test::read_json(std::string(DS_TEST_DATA) + "/optim/loss_scaler.json");
  std::size_t errors = 0;
  for (const json& t : recorded["traces"]) {
    DynamicScale rule;
    rule.initial = std::ldexp(1.0, t[0].get<int>());
    rule.window = t[1];
    rule.hysteresis = t[2];
    rule.minimum = t[3];
    rule.consecutive = t[4].get<int>() != 0;
    const std::string sequence = recorded["sequences"][t[5].get<std::string>()];
    Runs scales(recorded["runs"][t[6].get<std::size_t>()]), hysteresis(recorded["runs"][t[7].get<std::size_t>()]);
    LossScaler scaler(rule);
    for (std::size_t s = 0; s < sequence.size(); ++s) {
      if (!t[8].is_null() && t[8].get<std::size_t>() == s) {
        try {
          scaler.update(sequence[s] == '1');
          FAIL() << t.dump();
        } catch (const base::DivergedError& error) {
          EXPECT_EQ(error.what(), recorded["error"].get<std::string>());
        }
        ++errors;
        break;
      }
      scaler.update(sequence[s] == '1');
      ASSERT_EQ(scaler.scale(), scales.next()) << t.dump() << " at " << s;
      ASSERT_EQ(static_cast<double>(scaler.hysteresis()), hysteresis.next()) << t.dump() << " at " << s;
      if (s % 7 == 3) {  // a resume changes nothing
        LossScaler resumed(rule);
        resumed.load(json::parse(scaler.state().dump()));
        scaler = resumed;
      }
    }
  }
  EXPECT_EQ(recorded["traces"].size(), 1000u);
  EXPECT_EQ(errors, 342u);
}

std::vector<double> scales_of(LossScaler scaler, const std::string& sequence,
                              std::vector<std::string>* told = nullptr) {
  std::vector<double> scales;
  for (const char c : sequence) {
    const std::string message = scaler.update(c == 'O');
    if (told != nullptr) told->push_back(message);
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(LossScaler, SaysWhetherTheScaleOrTheHysteresisDropped) {
  std::vector<std::string> told;
  EXPECT_THAT(scales_of(LossScaler(DynamicScale{}), "OOO.O.", &told),
              testing::ElementsAre(65536, 32768, 16384, 16384, 8192, 8192));
  EXPECT_EQ(told[0],
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing "
            "hysteresis to 1");
  EXPECT_EQ(told[1], "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768");
  EXPECT_EQ(told[3], "");
  EXPECT_THAT(scales_of(LossScaler(DynamicScale{.consecutive = true}), "OOO.O.", &told),
              testing::ElementsAre(65536, 32768, 16384, 16384, 16384, 16384));
}

TEST(LossScaler, EndsAtTheMinimum) {
  LossScaler scaler(DynamicScale{.initial = 2, .hysteresis = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  try {
    scaler.update(true);
    ADD_FAILURE();
  } catch (const base::DivergedError& error) {
    EXPECT_EQ(error.code(), base::ExitCode::diverged);
    EXPECT_THAT(error.what(), testing::HasSubstr("already at minimum"));
  }
}

TEST(LossScaler, StaticScaleStays) {
  EXPECT_THAT(scales_of(LossScaler(128), "OO.O"), testing::Each(128));
  EXPECT_FALSE(LossScaler().dynamic());
  EXPECT_EQ(LossScaler().scale(), 1);
}

TEST(LossScaler, StateAcrossKinds) {
  LossScaler dynamic(DynamicScale{});
  dynamic.update(true);
  dynamic.update(true);
  LossScaler fixed(128);
  fixed.load(dynamic.state());
  EXPECT_EQ(fixed.scale(), 128);
  EXPECT_THROW(dynamic.load(json::object()), base::CheckpointError);
}

}  // namespace
}  // namespace deepspeed::optim
