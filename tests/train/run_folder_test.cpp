// SPDX-License-Identifier: Apache-2.0
// What a run leaves, what it says, and that rank counts agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(RunFolder, HoldsWhatTheRunWas) {
  const Workspace work;
  json config = tiny_config();
  config["training"].update({{"save_every", 5}, {"keep_last", 2}, {"evaluate_every", 10}, {"export", "model"}});
  const Outcome run = work.train(2, config);
  ASSERT_EQ(run.status, 0) << run;
  EXPECT_EQ(run.out, "") << "results alone go to standard output";

  EXPECT_THAT(work.names("run"), ElementsAre("checkpoints", "config.json", "log.txt", "metrics.jsonl", "tensorboard"));
  EXPECT_THAT(work.names("run/checkpoints"), ElementsAre(".lock", "global_step15", "global_step20", "latest"))
      << "training.keep_last is 2";
  EXPECT_THAT(work.read("run/checkpoints/latest"), StartsWith("global_step20"));
  EXPECT_THAT(work.names("run/tensorboard"), ElementsAre(StartsWith("events.out.tfevents.")));
  EXPECT_THAT(work.names("model"), testing::IsSupersetOf({"config.json", "model.safetensors"}));

  const json keys = {"step",   "loss",         "lr",      "grad_norm",       "loss_scale",        "skipped",
                     "tokens", "tokens_per_s", "step_ms", "peak_host_bytes", "peak_device_bytes", "memory"};
  std::int64_t step = 0;
  std::vector<std::int64_t> evaluated;
  double first = 0, last = 0;
  for (const json& line : work.metrics()) {
    if (line.contains("validation_loss")) {
      evaluated.push_back(line.at("step"));
      EXPECT_NEAR(line.at("perplexity"), std::exp(line.at("validation_loss").get<double>()), 1e-3);
      continue;
    }
    EXPECT_EQ(line.at("step"), ++step);
    EXPECT_EQ(line.size(), keys.size()) << line;
    for (const json& key : keys) EXPECT_TRUE(line.contains(key)) << key << " of " << line;
    EXPECT_EQ(line.at("tokens"), step * 8 * 16);
    EXPECT_EQ(line.at("skipped"), false);
    const auto bytes = line.at("memory").get<std::map<std::string, std::int64_t>>();
    EXPECT_EQ(bytes.at("optimizer"), 2 * bytes.at("parameters")) << "Adam in fp32";
    EXPECT_GE(bytes.at("total"), bytes.at("optimizer") + bytes.at("parameters"));
    EXPECT_GT(bytes.at("activations"), 0);
    (step == 1 ? first : last) = line.at("loss");
  }
  EXPECT_EQ(step, 20);
  EXPECT_THAT(evaluated, ElementsAre(10, 20));
  EXPECT_LT(last, first - 0.2) << "it learns";

  // The resolved configuration is one itself, and resolves to itself.
  const Outcome again = work.run(0, DS_TRAIN, {"run/config.json", "--ranks", "2", "--print-config"});
  EXPECT_EQ(again.status, 0) << again;
  EXPECT_EQ(again.out, work.read("run/config.json"));

  // Each message once for the job, on the terminal and in the log.
  for (const char* part :
       {"model: ", "samples a step", "a fresh start", "saved run/checkpoints/global_step5 ", "step 10/20  loss ",
        "step 20: validation loss ", "exported a Hugging Face model to model", "done: 20 steps"}) {
    EXPECT_EQ(count(run.err, part), 1) << part << "\n" << run.err;
    EXPECT_EQ(count(work.read("run/log.txt"), part), 1) << part;
  }
}

TEST(RunFolder, RankCountsAgree) {
  const Workspace work;
  json config = tiny_config();
  config["training"]["evaluate_every"] = 10;
  std::vector<std::vector<json>> all;
  for (const int ranks : {0, 1, 2, 4}) {
    const std::string output = "run" + std::to_string(ranks);
    const Outcome run = work.train(ranks, config, {"--output", output});
    ASSERT_EQ(run.status, 0) << run;
    all.push_back(lasting(work.metrics(output)));
    ASSERT_EQ(all.back().size(), 22U);
  }
  EXPECT_EQ(all[0], all[1]) << "without a launcher a program is one rank";
  for (std::size_t other : {2, 3}) {
    for (std::size_t i = 0; i < all[1].size(); ++i) {
      for (const char* key : {"loss", "validation_loss", "lr"}) {
        if (!all[1][i].contains(key)) continue;
        EXPECT_NEAR(all[1][i].at(key).get<double>(), all[other][i].at(key).get<double>(), 1e-5) << all[other][i];
      }
    }
  }
}

TEST(RunFolder, CannotBeMade) {
  const Workspace work;
  work.write("file", "in the way");
  const Outcome run = work.train(2, tiny_config(), {"--output", "file/run"});
  EXPECT_EQ(run.status, 6) << run;
  EXPECT_THAT(run.err, HasSubstr("ds_train: error: training.output: file/run/checkpoints can't be made: "));
  EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
}

}  // namespace
}  // namespace deepspeed::train
