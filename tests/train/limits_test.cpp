// SPDX-License-Identifier: Apache-2.0
// What ends a run: epochs, time, numbers that aren't finite, too little data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A text of exactly `samples` samples of 16 tokens.
std::string text_of(const Workspace& work, int samples) {
  return work.read("text.txt").substr(0, static_cast<std::size_t>(16 * samples + 1));
}

// C12: the samples of an epoch run on into the next. 10 micro batches, accumulation 4, 2 epochs: 5 steps.
TEST(Limits, EpochsCountSamples) {
  const Workspace work;
  work.write("ten.txt", text_of(work, 10));
  json config = tiny_config();
  config["data"] = {{"train", "ten.txt"}, {"sequence_length", 16}};
  config["training"].erase("steps");
  config["training"].update({{"epochs", 2}});
  config.erase("train_batch_size");
  config.update({{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", 4}});
  Outcome run = work.train(0, config, {"--output", "whole"});
  EXPECT_EQ(run.status, 0) << run;
  ASSERT_EQ(work.metrics("whole").size(), 5U);
  EXPECT_EQ(work.metrics("whole").back().at("tokens"), 2 * 10 * 16);
  // Stopped past the first epoch's last whole step, it leaves out none and takes none twice.
  run = work.train(0, config, {"--output", "parts", "--steps", "3"});
  EXPECT_EQ(run.status, 0) << run;
  run = work.train(0, config, {"--output", "parts"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(lasting(work.metrics("parts")), lasting(work.metrics("whole")));
  // On 2 ranks a step takes 8 samples, so 20 samples are 3 steps, of which the last goes on into a third epoch.
  run = work.train(2, config, {"--output", "two"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(work.metrics("two").size(), 3U);
  // The first limit ends it.
  run = work.train(0, config, {"--output", "both", "--steps", "100", "--set", "training.epochs=1"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(work.metrics("both").size(), 3U);
}

// C25
TEST(Limits, TheLastPartialBatch) {
  const Workspace work;
  json config = tiny_config();
  config["data"] = {{"train", "few.txt"}, {"sequence_length", 16}};
  config["training"].erase("steps");
  config.erase("train_batch_size");
  config["train_micro_batch_size_per_gpu"] = 4;
  struct Case {
    int samples, ranks;
    bool drop;
    std::size_t steps;  // 0: refused
  };
  int number = 0;
  for (const Case& c : {Case{10, 0, false, 3}, Case{10, 0, true, 2}, Case{10, 2, false, 2}, Case{11, 2, true, 1},
                        Case{3, 0, false, 1}, Case{3, 0, true, 0}, Case{3, 2, true, 0}}) {
    const std::string output = "run" + std::to_string(number++);
    work.write("few.txt", text_of(work, c.samples));
    config["dataloader_drop_last"] = c.drop;
    const Outcome run = work.train(c.ranks, config, {"--output", output});
    if (c.steps > 0) {
      EXPECT_EQ(run.status, 0) << run;
      EXPECT_EQ(work.metrics(output).size(), c.steps) << output;
    } else {
      EXPECT_EQ(run.status, 4) << run;
      EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
      EXPECT_THAT(run.err, HasSubstr("dataloader_drop_last"));
      EXPECT_FALSE(work.has(output));
    }
  }
}

// A rank without a row of the last evaluation batch still takes part in gathering the weights.
TEST(Limits, AnEvaluationThatDoesNotReachAllRanks) {
  const Workspace work;
  work.write("one.txt", text_of(work, 1));
  json config = tiny_config();
  config["data"] = {{"train", "text.txt"}, {"validation", "one.txt"}, {"sequence_length", 16}};
  config["training"]["steps"] = 2;
  std::vector<json> losses;
  for (const int stage : {0, 3}) {
    config["zero_optimization"]["stage"] = stage;
    const std::string output = "run" + std::to_string(stage);
    const Outcome run = work.train(2, config, {"--output", output});
    ASSERT_EQ(run.status, 0) << run;
    losses.push_back(work.metrics(output).back().at("validation_loss"));
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(Limits, Time) {
  const Workspace work;
  json config = tiny_config();
  config["training"].erase("steps");
  config["training"]["time_limit"] = 0.5;
  const Outcome run = work.train(2, config);
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("training.time_limit: ended at step "), HasSubstr("validation loss")));
  const std::int64_t step = work.last_step();
  EXPECT_GT(step, 0);
  EXPECT_TRUE(work.has("run/checkpoints/global_step" + std::to_string(step)));
  const Outcome bad = work.train(0, config, {"--set", "training.time_limit=soon", "--output", "bad"});
  EXPECT_EQ(bad.status, 3) << bad;
  EXPECT_THAT(bad.err, HasSubstr("training.time_limit: wants seconds or \"HH:MM:SS\", got \"soon\""));
  EXPECT_FALSE(work.has("bad"));
}

TEST(Limits, GradientsThatAreNotFinite) {
  const Workspace work;
  json config = tiny_config();
  config["optimizer"]["params"]["lr"] = 1e38;
  config.erase("scheduler");
  config["training"]["save_every"] = 1;
  const Outcome run = work.train(2, config);
  EXPECT_EQ(run.status, 8) << run;
  EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("NaN or Inf"), HasSubstr("step ")));
  // Skipped, if that is asked for: the weights are beyond help here, but the run goes on and tells so at each step.
  config["training"]["on_nan"] = "skip";
  const Outcome skipping = work.train(2, config, {"--output", "skipping", "--steps", "4"});
  EXPECT_EQ(skipping.status, 0) << skipping;
  const std::vector<json> lines = work.metrics("skipping");
  ASSERT_GE(lines.size(), 4U);
  EXPECT_EQ(lines[0].at("skipped"), false);
  EXPECT_EQ(lines[3].at("skipped"), true);
  EXPECT_TRUE(lines[3].at("loss").is_null()) << "JSON has no NaN";
}

}  // namespace
}  // namespace deepspeed::train
