// SPDX-License-Identifier: Apache-2.0
// ds_train --plan: before a job is queued, and beside what the run then counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Plan, TellsWhatEachStageTakesAndWhatFits) {
  const Workspace work;
  json config = tiny_config();
  config.erase("train_batch_size");
  config["train_micro_batch_size_per_gpu"] = 2;
  const Outcome text = work.run(0, DS_TRAIN, {config.dump(), "--plan", "--ranks", "1", "4", "--memory", "80GB"});
  EXPECT_EQ(text.status, 0) << text;
  EXPECT_THAT(text.out, AllOf(HasSubstr("1 rank x micro batch"), HasSubstr("4 ranks x micro batch"),
                              HasSubstr("fits in 80.0GB a rank: zero_optimization.stage 0, with")));
  const Outcome tight = work.run(0, DS_TRAIN, {config.dump(), "--plan", "--memory", "1kB"});
  EXPECT_THAT(tight.out, HasSubstr("nothing above fits in 1.00kB a rank"));
  const Outcome wrong = work.run(0, DS_TRAIN, {config.dump(), "--plan", "--memory", "lots"});
  EXPECT_EQ(wrong.status, 2) << wrong;
  EXPECT_THAT(wrong.err, HasSubstr("'lots' is no amount of memory"));
  const Outcome refused = work.run(0, DS_TRAIN, {config.dump(), "--plan", "--set", "model.n_head=7"});
  EXPECT_EQ(refused.status, 3) << refused;
  EXPECT_THAT(work.names(), ElementsAre("text.txt"));
}

// Weights and optimizer states are known to the byte; what is on its way, and activations, from above.
TEST(Plan, AgreesWithWhatTheRunCounts) {
  for (const int stage : {0, 1, 2, 3}) {
    const Workspace work;
    json config = tiny_config();
    config["zero_optimization"] = {{"stage", stage}, {"stage3_param_persistence_threshold", 0}};
    config["bf16"]["enabled"] = true;
    const Outcome asked = work.run(0, DS_TRAIN, {config.dump(), "--plan", "--ranks", "2", "--json"});
    ASSERT_EQ(asked.status, 0) << asked;
    const json plan = json::parse(asked.out).at("plans").at(0);
    const json& bytes = plan.at("stages").at(static_cast<std::size_t>(stage)).at("bytes");
    EXPECT_TRUE(plan.at("stages").at(static_cast<std::size_t>(stage)).at("configured"));
    const Outcome run = work.run(2, DS_TRAIN, {config.dump(), "--set", "training.steps=3"});
    ASSERT_EQ(run.status, 0) << run;
    json most = json::object();
    for (const json& line : work.metrics()) {
      if (!line.contains("memory")) continue;
      for (const auto& [name, value] : line.at("memory").items())
        most[name] = std::max(most.value(name, 0.0), value.get<double>());
    }
    SCOPED_TRACE(testing::Message() << "stage " << stage << " planned " << bytes << " counted " << most);
    for (const char* exact : {"parameters", "optimizer"}) {
      EXPECT_NEAR(bytes.at(exact).get<double>(), most.at(exact).get<double>(), 0.03 * most.at(exact).get<double>());
    }
    EXPECT_GE(bytes.at("gathered").get<double>() * 1.03, most.at("gathered").get<double>());
    // Local sums are counted as gradients or as buckets, by what they wait for.
    const auto moving = [](const json& of) {
      return of.at("gradients").get<double>() + of.at("buckets").get<double>();
    };
    EXPECT_GE(moving(bytes) * 1.03, moving(most));
    EXPECT_GE(bytes.at("activations").get<double>() * 1.15, most.at("activations").get<double>());
    EXPECT_LE(bytes.at("activations").get<double>() * 0.7, most.at("activations").get<double>());
  }
}

}  // namespace
}  // namespace deepspeed::train
