// SPDX-License-Identifier: Apache-2.0
// What one rank can't hold, and more ranks than cores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A GPT-2 in bf16 with 16 bytes of states a parameter, of which one layer and a bit is whole at stage 3.
json deep_config(std::int64_t layers, std::int64_t width, int stage) {
  json config = tiny_config();
  config["model"].update({{"n_layer", layers}, {"n_embd", width}, {"n_positions", 16}});
  config["data"].erase("validation");
  config["training"].update({{"steps", 2}, {"activation_checkpointing", true}});
  config.erase("train_batch_size");
  config.update({{"train_micro_batch_size_per_gpu", 1},
                 {"bf16", {{"enabled", true}}},
                 {"data_types", {{"grad_accum_dtype", "bf16"}}}});
  const std::int64_t layer = 12 * width * width;
  config["zero_optimization"] = {{"stage", stage},
                                 {"stage3_param_persistence_threshold", 10000},
                                 {"stage3_max_live_parameters", 2 * layer},
                                 {"stage3_prefetch_bucket_size", layer},
                                 {"stage3_max_reuse_distance", 0}};
  return config;
}

std::int64_t parameters_of(const json& model) {
  const auto get = [&](const char* key) { return model.at(key).get<std::int64_t>(); };
  const std::int64_t width = get("n_embd");
  return get("n_layer") * (12 * width + 13) * width + (get("vocab_size") + get("n_positions") + 2) * width;
}

/// Every rank may have so much memory of its own (what it maps and writes; ulimit -v would count what it reserves).
Outcome train_within(const Workspace& work, std::int64_t bytes, int ranks, const json& config) {
  Start start = work.start(
      ranks, "sh", {"-c", "ulimit -d \"$0\" && exec \"$@\"", std::to_string(bytes / 1024), DS_TRAIN, config.dump()});
  start.environment = {"DS_ACCELERATOR=cpu"};
  start.limit = 240;
  return testing_support::run(start);
}

void expect_out_of_memory(const Outcome& run) {
  EXPECT_EQ(run.status, 1) << run;
  EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("out of host memory: "), HasSubstr("zero_optimization.stage"),
                             HasSubstr("ds_train --plan"), Not(HasSubstr("frame #"))));
}

TEST(Scale, MemoryThatRunsOutIsOneLine) {
  const Workspace work;
  for (const int ranks : {0, 2}) expect_out_of_memory(train_within(work, 400 << 20, ranks, deep_config(12, 512, 0)));
}

// The states are 4 times what a rank may have, so 8 ranks fill half of theirs with them.
TEST(ScaleCampaign, AModelThatOneRankCantHold) {
  const Workspace work;
  json config = deep_config(80, 384, 3);
  const std::int64_t limit = 16 * parameters_of(config.at("model")) / 4;
  const Outcome run = train_within(work, limit, 8, config);
  ASSERT_EQ(run.status, 0) << run;
  const std::vector<json> steps = work.metrics();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_NEAR(steps[0].at("loss").get<double>(), 5.55, 0.3);  // ln 256 of the vocabulary
  EXPECT_NE(steps[0].at("loss"), steps[1].at("loss"));
  for (const json& step : steps) EXPECT_EQ(step.at("skipped"), false);
  config["zero_optimization"]["stage"] = 0;
  expect_out_of_memory(train_within(work, limit, 8, config));
}

/// Losses of fp32 training at stage 3, each rank one row of the batch, beside those of one rank with all rows.
void expect_as_one_rank(int ranks, int steps) {
  const Workspace work;
  json config = tiny_config();
  config["train_batch_size"] = ranks;
  config["training"]["steps"] = steps;
  config["zero_optimization"] = {{"stage", 3}, {"stage3_param_persistence_threshold", 0}};
  ASSERT_EQ(work.train(0, config, {"--output", "one"}).status, 0);
  Start start = work.training(ranks, config, {"--output", "many"});
  start.limit = 300;
  const Outcome run = testing_support::run(start);
  ASSERT_EQ(run.status, 0) << run;
  EXPECT_EQ(count(run.err, "error"), 0) << run;
  const std::vector<json> one = work.metrics("one"), many = work.metrics("many");
  ASSERT_EQ(one.size(), static_cast<std::size_t>(steps + 1));  // and an evaluation
  ASSERT_EQ(many.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    const char* key = one[i].contains("loss") ? "loss" : "validation_loss";
    EXPECT_NEAR(many[i].at(key).get<double>(), one[i].at(key).get<double>(), 1e-5) << one[i] << " and " << many[i];
  }
}

TEST(Scale, ManyMoreRanksThanCores) {
  expect_as_one_rank(24, 3);
}

TEST(ScaleCampaign, SixtyFourRanks) {
  expect_as_one_rank(64, 5);
}

}  // namespace
}  // namespace deepspeed::train
