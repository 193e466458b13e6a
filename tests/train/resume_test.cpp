// SPDX-License-Identifier: Apache-2.0
// A run that is stopped and started again is the same run: its numbers and its model are those of one that was never
// stopped, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/checkpoint.h"
#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Equal metrics and exported weights.
void expect_same_run(const Workspace& work, const std::string& a, const std::string& b) {
  EXPECT_EQ(lasting(work.metrics(a)), lasting(work.metrics(b)));
  const std::string model = work.read(a + "-model/model.safetensors");
  EXPECT_GT(model.size(), 1000U);
  EXPECT_TRUE(model == work.read(b + "-model/model.safetensors")) << "the weights differ";
}

std::vector<std::string> into(const std::string& output, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--output", output, "--export", output + "-model"});
  return more;
}

/// With all that a place in the run decides: the samples' order, dropout, the rate, accumulation.
json whole_config() {
  json config = tiny_config();
  config["model"]["resid_pdrop"] = 0.1;
  config["train_micro_batch_size_per_gpu"] = 2;
  config["training"]["evaluate_every"] = 5;
  return config;
}

TEST(Resume, StepsInTwoRunsAreThoseOfOne) {
  const Workspace work;
  for (const int ranks : {1, 2}) {
    const std::string n = std::to_string(ranks);
    Outcome run = work.train(ranks, whole_config(), into("whole" + n));
    ASSERT_EQ(run.status, 0) << run;
    run = work.train(ranks, whole_config(), into("parts" + n, {"--steps", "7"}));
    ASSERT_EQ(run.status, 0) << run;
    // The end of the first part was evaluated, as the end of any run is.
    std::vector<json> lines = work.metrics("parts" + n);
    EXPECT_EQ(lines.back().at("step"), 7);
    EXPECT_TRUE(lines.back().contains("validation_loss"));
    run = work.train(ranks, whole_config(), into("parts" + n));
    ASSERT_EQ(run.status, 0) << run;
    EXPECT_THAT(run.err, HasSubstr("checkpoint global_step7 of step 7"));
    EXPECT_EQ(count(run.err, "done: 13 steps"), 1);
    std::vector<json> parts = work.metrics("parts" + n);
    std::erase_if(parts, [](const json& line) { return line.at("step") == 7 && line.contains("validation_loss"); });
    EXPECT_EQ(lasting(parts), lasting(work.metrics("whole" + n)));
    EXPECT_TRUE(work.read("parts" + n + "-model/model.safetensors") ==
                work.read("whole" + n + "-model/model.safetensors"));
  }
}

TEST(Resume, StoppedBySignalAndStartedAgain) {
  const Workspace work;
  json config = whole_config();
  config["train_batch_size"] = 64;  // steps long enough to be met
  config["zero_optimization"]["stage"] = 3;
  Outcome run = work.train(2, config, into("whole"));
  ASSERT_EQ(run.status, 0) << run;
  Child job(work.training(2, config, into("parts")));
  ASSERT_TRUE(eventually([&] { return work.last_step("parts") >= 6; }));
  job.signal(SIGUSR1);  // mpirun hands it on to the ranks
  run = job.wait();
  ASSERT_EQ(run.status, 75) << run;
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("stopping after this step"), HasSubstr(" of 20 by SIGUSR1; run the same command")));
  EXPECT_FALSE(work.has("parts-model"));
  const std::int64_t stopped = work.last_step("parts");
  EXPECT_THAT(work.names("parts/checkpoints"), testing::Contains("global_step" + std::to_string(stopped)));
  run = work.train(2, config, into("parts"));
  ASSERT_EQ(run.status, 0) << run;
  EXPECT_EQ(count(run.err, "done: " + std::to_string(20 - stopped) + " steps"), 1);
  expect_same_run(work, "whole", "parts");
}

// C05
TEST(Resume, EveryScheduleGoesOn) {
  const Workspace work;
  const std::vector<std::pair<std::string, json>> schedules{
      {"WarmupLR", {{"warmup_num_steps", 6}, {"warmup_max_lr", 0.01}}},
      {"WarmupDecayLR", {{"warmup_num_steps", 2}, {"total_num_steps", 8}}},
      {"WarmupCosineLR", {{"warmup_num_steps", 2}, {"total_num_steps", 8}}},
      {"OneCycle", {{"cycle_min_lr", 0.001}, {"cycle_max_lr", 0.01}, {"cycle_first_step_size", 5}}},
      {"LRRangeTest", {{"lr_range_test_step_size", 3}}}};
  for (const auto& [type, params] : schedules) {
    json config = tiny_config();
    config["scheduler"] = {{"type", type}, {"params", params}};
    config["training"].update({{"steps", 8}, {"save_every", 4}});
    config["data"]["validation"] = nullptr;
    Outcome run = work.train(0, config, into(type));
    ASSERT_EQ(run.status, 0) << run;
    run = work.train(0, config, into(type + "-on", {"--resume", type + "/checkpoints/global_step4"}));
    ASSERT_EQ(run.status, 0) << run;
    const std::vector<json> whole = lasting(work.metrics(type)), on = lasting(work.metrics(type + "-on"));
    ASSERT_EQ(whole.size(), 8U);
    EXPECT_EQ(std::vector<json>(whole.begin() + 4, whole.end()), on) << type;
    EXPECT_NE(whole[3].at("lr"), whole[4].at("lr")) << type << ": a rate that stands still shows nothing";
    EXPECT_TRUE(work.read(type + "-model/model.safetensors") == work.read(type + "-on-model/model.safetensors"))
        << type;
  }
}

/// Names, types, shapes and bytes of all tensors, and the state record without what may differ.
struct Contents {
  std::vector<std::pair<std::string, std::vector<char>>> tensors;
  json state;
};

Contents contents_of(const std::filesystem::path& checkpoint) {
  const checkpoint::Reader reader(checkpoint.parent_path(), checkpoint.filename().string());
  Contents all{{}, reader.state()};
  for (const checkpoint::TensorInfo& info : reader.tensors()) {
    std::vector<char> bytes(static_cast<std::size_t>(info.numel) * base::size_of(info.type));
    reader.read(info.name, 0, {bytes.data(), info.numel, info.type});
    all.tensors.emplace_back(info.name, std::move(bytes));
  }
  return all;
}

// C18
TEST(Resume, LoadedAndSavedWithNoStepBetween) {
  const Workspace work;
  for (const int ranks : {1, 2}) {
    const std::string n = std::to_string(ranks);
    json config = tiny_config();
    config["bf16"]["enabled"] = true;
    config["data"]["validation"] = nullptr;
    config["training"].update({{"steps", 10}, {"save_every", 5}});
    Outcome run = work.train(ranks, config, into("whole" + n));
    ASSERT_EQ(run.status, 0) << run;
    run = work.train(ranks, config,
                     into("copy" + n, {"--steps", "5", "--resume", "whole" + n + "/checkpoints/global_step5"}));
    ASSERT_EQ(run.status, 0) << run;
    EXPECT_THAT(run.err, HasSubstr("step 5 of 5: nothing left to train"));
    const Contents a = contents_of(work / ("whole" + n + "/checkpoints/global_step5"));
    const Contents b = contents_of(work / ("copy" + n + "/checkpoints/global_step5"));
    EXPECT_EQ(a.state, b.state);
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    std::vector<std::string> kinds;
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
      EXPECT_EQ(a.tensors[i].first, b.tensors[i].first);
      EXPECT_TRUE(a.tensors[i].second == b.tensors[i].second) << a.tensors[i].first;
      const std::string kind = a.tensors[i].first.substr(0, a.tensors[i].first.rfind('/'));
      if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
    }
    EXPECT_THAT(kinds,
                testing::UnorderedElementsAre("model", "optimizer/fp32", "optimizer/exp_avg", "optimizer/exp_avg_sq"));
    run = work.train(ranks, config, into("copy" + n));
    ASSERT_EQ(run.status, 0) << run;
    EXPECT_TRUE(work.read("copy" + n + "-model/model.safetensors") ==
                work.read("whole" + n + "-model/model.safetensors"));
  }
}

// The stages of ZeRO place the same numbers in other ways: one run, whatever the stage that begins it or goes on with
// it. (With accumulation, stages 2 and 3 add the ranks' gradients micro batch by micro batch, and round otherwise.)
TEST(Resume, EveryStageGoesOnFromEveryOther) {
  const Workspace work;
  json config = whole_config();
  config.erase("train_micro_batch_size_per_gpu");
  config["training"].update({{"steps", 6}, {"save_every", 3}});
  Outcome run = work.train(2, config, into("whole"));
  ASSERT_EQ(run.status, 0) << run;
  for (const int stage : {1, 2, 3}) {
    config["zero_optimization"]["stage"] = stage;
    const std::string part = "stage" + std::to_string(stage);
    run = work.train(2, config, into(part, {"--steps", "3"}));
    ASSERT_EQ(run.status, 0) << run;
    config["zero_optimization"]["stage"] = (stage + 1) % 4;
    run = work.train(2, config, into(part));
    ASSERT_EQ(run.status, 0) << run;
    std::vector<json> lines = lasting(work.metrics(part));
    std::erase_if(lines, [](const json& line) { return line.at("step") == 3 && line.contains("validation_loss"); });
    EXPECT_EQ(lines, lasting(work.metrics("whole"))) << part;
    EXPECT_TRUE(work.read(part + "-model/model.safetensors") == work.read("whole-model/model.safetensors")) << part;
  }
}

// C15
TEST(Resume, AnotherNumberOfRanksGoesOn) {
  const Workspace work;
  json config = tiny_config();
  config["zero_optimization"]["stage"] = 2;
  config["training"].update({{"steps", 10}, {"save_every", 5}});
  Outcome run = work.train(2, config, {"--output", "whole"});
  ASSERT_EQ(run.status, 0) << run;
  const std::vector<json> whole = work.metrics("whole");
  for (const int ranks : {1, 4}) {
    const std::string output = "on" + std::to_string(ranks);
    run = work.train(ranks, config, {"--output", output, "--resume", "whole/checkpoints/global_step5"});
    ASSERT_EQ(run.status, 0) << run;
    const std::vector<json> on = work.metrics(output);
    ASSERT_EQ(on.size(), 6U);
    for (std::size_t i = 0; i < on.size(); ++i) {
      EXPECT_EQ(on[i].at("step"), whole[i + 5].at("step"));
      for (const char* key : {"loss", "lr", "grad_norm", "validation_loss"}) {
        if (!on[i].contains(key)) continue;
        EXPECT_NEAR(on[i].at(key).get<double>(), whole[i + 5].at(key).get<double>(), 1e-4) << key << on[i];
      }
    }
  }
}

TEST(Resume, ACompleteRunHasNothingLeft) {
  const Workspace work;
  Outcome run = work.train(0, tiny_config(), {"--steps", "2"});
  ASSERT_EQ(run.status, 0) << run;
  const std::string metrics = work.read("run/metrics.jsonl");
  run = work.train(0, tiny_config(), {"--steps", "2", "--export", "model"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("step 2 of 2: nothing left to train"), HasSubstr("validation loss")));
  EXPECT_EQ(work.read("run/metrics.jsonl"), metrics);
  EXPECT_TRUE(work.has("model/model.safetensors"));
}

TEST(Resume, NeverDoesNotMixTwoRuns) {
  const Workspace work;
  ASSERT_EQ(work.train(0, tiny_config(), {"--steps", "2"}).status, 0);
  const std::string config = work.read("run/config.json"), log = work.read("run/log.txt");
  const Outcome run = work.train(2, tiny_config(), {"--resume", "never"});
  EXPECT_EQ(run.status, 3);
  EXPECT_THAT(run.err, AllOf(testing::StartsWith("ds_train: error: training.resume: run/checkpoints holds checkpoints"),
                             HasSubstr("--resume auto"), HasSubstr("--output")));
  EXPECT_EQ(count(run.err, "\n"), 1) << run;
  EXPECT_EQ(work.read("run/config.json"), config) << "nothing is written";
  EXPECT_EQ(work.read("run/log.txt"), log);
}

TEST(Resume, AnEarlierTagGoesBack) {
  const Workspace work;
  json config = tiny_config();
  config["training"].update({{"steps", 4}, {"save_every", 1}, {"keep_last", 0}});
  ASSERT_EQ(work.train(0, config).status, 0);
  const std::vector<json> first = lasting(work.metrics());
  const Outcome run = work.train(0, config, {"--resume", "global_step2"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(count(run.err, "done: 2 steps"), 1) << run;
  EXPECT_EQ(lasting(work.metrics()), first) << "steps 3 and 4 are in the file once";
}

TEST(Resume, AnotherModelDoesNotFit) {
  const Workspace work;
  ASSERT_EQ(work.train(0, tiny_config(), {"--steps", "2"}).status, 0);
  const std::string config = work.read("run/config.json");
  const Outcome run = work.train(2, tiny_config(), {"--set", "model.n_embd=32"});
  EXPECT_EQ(run.status, 5) << run;
  EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("checkpoint global_step2: tensor '"), HasSubstr("the model wants [")));
  EXPECT_EQ(work.read("run/config.json"), config) << "nothing is written";
}

}  // namespace
}  // namespace deepspeed::train
