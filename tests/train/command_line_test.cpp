// SPDX-License-Identifier: Apache-2.0
// The command line of ds_train, and how it refuses what it can't use: once for the job, with a documented exit code,
// and with nothing written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string base64(const std::string& text) {
  std::string coded;
  for (std::size_t i = 0; i < text.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) coded += i + k <= text.size() ? base64_digits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return coded;
}

/// Refused with this code, with one line that holds these parts, and nothing written.
void expect_refused(const Workspace& work, const Outcome& run, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(run.status, code) << run;
  EXPECT_THAT(run.err, StartsWith("ds_train: error: "));
  EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
  for (const std::string& part : parts) EXPECT_THAT(run.err, HasSubstr(part));
  EXPECT_EQ(run.out, "");
  EXPECT_FALSE(work.has("run")) << "a run that was refused writes nothing";
}

TEST(CommandLine, RefusedOnceForTheJob) {
  const Workspace work;
  for (const int ranks : {0, 2}) {
    expect_refused(work, work.train(ranks, tiny_config(), {"--stepz", "3"}), 2, {"--stepz", "ds_train --help"});
    expect_refused(work, work.train(ranks, tiny_config(), {"--profile=2-4"}), 2, {"--profile", "FIRST:LAST"});
    expect_refused(work, work.run(ranks, DS_TRAIN, {}), 2, {"ds_train config.json"});
    expect_refused(work, work.run(ranks, DS_TRAIN, {"nowhere.json"}), 3, {"nowhere.json", "no such file"});
    expect_refused(work, work.train(ranks, tiny_config(), {"--set", "trainng.steps=3"}), 3,
                   {"trainng", "did you mean training"});
    expect_refused(work, work.train(ranks, tiny_config(), {"--train", "nowhere.txt"}), 4,
                   {"nowhere.txt", "No such file"});
    expect_refused(work, work.train(ranks, tiny_config(), {"--model", "nowhere"}), 4, {"nowhere"});
  }
  json config = tiny_config();
  config["data"].erase("train");
  expect_refused(work, work.train(0, config), 3, {"data.train", "--train FILE"});
  config = tiny_config();
  config.erase("model");
  expect_refused(work, work.train(0, config), 3, {"model: ", "--model DIR"});
  work.write("empty.txt", "");
  expect_refused(work, work.train(2, tiny_config(), {"--train", "empty.txt"}), 4, {"empty.txt"});
}

// C01, on 2 ranks.
TEST(CommandLine, TheBatchTriple) {
  const Workspace work;
  json rest = tiny_config();
  rest.erase("train_batch_size");
  const auto with = [&rest](json batch) {
    json config = rest;
    config.update(batch);
    return config;
  };
  struct Good {
    json given;
    int micro, accumulation, global;
  };
  for (const Good& good :
       std::vector<Good>{{{{"train_batch_size", 16}}, 8, 1, 16},
                         {{{"train_micro_batch_size_per_gpu", 4}}, 4, 1, 8},
                         {{{"train_batch_size", 16}, {"gradient_accumulation_steps", 4}}, 2, 4, 16},
                         {{{"train_batch_size", 16}, {"train_micro_batch_size_per_gpu", 2}}, 2, 4, 16}}) {
    const Outcome shown = work.run(0, DS_TRAIN, {with(good.given).dump(), "--print-config", "--ranks", "2"});
    ASSERT_EQ(shown.status, 0) << shown;
    const json resolved = json::parse(shown.out);
    EXPECT_EQ(resolved.at("train_micro_batch_size_per_gpu"), good.micro) << good.given;
    EXPECT_EQ(resolved.at("gradient_accumulation_steps"), good.accumulation) << good.given;
    EXPECT_EQ(resolved.at("train_batch_size"), good.global) << good.given;
  }
  expect_refused(work, work.train(2, with({{"train_batch_size", 9}})), 3, {"train_batch_size", "9 != 4 * 1 * 2"});
  expect_refused(
      work,
      work.train(
          2,
          with({{"train_batch_size", 16}, {"train_micro_batch_size_per_gpu", 4}, {"gradient_accumulation_steps", 4}})),
      3, {"train_batch_size", "16 != 4 * 4 * 2"});
  expect_refused(work, work.train(2, with({{"gradient_accumulation_steps", 4}})), 3,
                 {"train_batch_size", "train_micro_batch_size_per_gpu"});
  expect_refused(work, work.train(2, with({{"train_batch_size", 2.5}})), 3, {"train_batch_size", "2.5"});
  // And what fits runs.
  const Outcome run = work.train(2, with({{"train_micro_batch_size_per_gpu", 4}}), {"--steps", "1"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("2 ranks x micro batch 4 x accumulation 1 = 8 samples a step"));
}

TEST(CommandLine, AnUntouchedDeepSpeedConfigRuns) {
  const Workspace work;
  json config = tiny_config();
  config["training"]["export"] = "model";
  ASSERT_EQ(work.train(0, config, {"--steps", "1"}).status, 0);
  work.write("ds_config.json", R"({
    "train_batch_size": 8,
    "steps_per_print": 2000,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR",
                  "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}},
    "gradient_clipping": 1.0, "prescale_gradients": false, "bf16": {"enabled": true},
    "wall_clock_breakdown": false, "zero_optimization": {"stage": 0, "allgather_bucket_size": 50000000}})");
  const std::vector<std::string> options{
      "--model", "model",    "--train", "text.txt", "--validation", "0.2",   "--steps",
      "4",       "--output", "tuned",   "--export", "tuned-model",  "--set", "training.evaluate_every=2"};
  std::vector<std::string> arguments{"ds_config.json"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  Outcome run = work.run(2, DS_TRAIN, arguments);
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(work.metrics("tuned").size(), 6U);
  EXPECT_TRUE(work.has("tuned-model/model.safetensors"));
  // DeepSpeed's own spelling of the option.
  arguments[0] = "--deepspeed_config=ds_config.json";
  arguments.push_back("--check");
  run = work.run(0, DS_TRAIN, arguments);
  EXPECT_EQ(run.status, 0) << run;
}

TEST(CommandLine, AConfigurationComesInManyWays) {
  const Workspace work;
  const std::string text = tiny_config().dump();
  work.write("config.json", text);
  const Outcome file = work.run(0, DS_TRAIN, {"config.json", "--print-config"});
  ASSERT_EQ(file.status, 0) << file;
  EXPECT_EQ(work.run(0, DS_TRAIN, {text, "--print-config"}).out, file.out);
  EXPECT_EQ(work.run(0, DS_TRAIN, {base64(text), "--print-config"}).out, file.out);
  EXPECT_EQ(work.run(0, DS_TRAIN, {"-", "--print-config"}, text).out, file.out);
  EXPECT_EQ(work.run(0, DS_TRAIN, {"-", "--print-config"}, file.out).out, file.out)
      << "what is printed is a configuration that prints the same";
  // HJSON: comments, names without quotes, commas left out.
  const Outcome human =
      work.run(0, DS_TRAIN, {"-", "--print-config"},
               "{\n  # a comment\n  train_batch_size: 8\n  optimizer: {type: Adam\n params: {lr: 0.5}}\n}\n");
  ASSERT_EQ(human.status, 0) << human;
  EXPECT_EQ(json::parse(human.out).at("train_batch_size"), 8);
  EXPECT_EQ(json::parse(human.out).at("optimizer").at("params").at("lr"), 0.5);
  // Standard input is read once and serves every rank.
  const Outcome run = work.run(2, DS_TRAIN, {"-", "--steps", "1"}, text);
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(work.last_step(), 1);
}

TEST(CommandLine, AsksAndAnswers) {
  const Workspace work;
  Outcome asked = work.run(0, DS_TRAIN, {"--version"});
  EXPECT_EQ(asked.status, 0);
  EXPECT_THAT(asked.out, AllOf(StartsWith("ds_train (deepspeed-mpi) "), HasSubstr(" git "), HasSubstr("back ends: ")));
  asked = work.run(0, DS_GENERATE, {"--version"});
  EXPECT_EQ(asked.status, 0);
  EXPECT_THAT(asked.out, StartsWith("ds_generate (deepspeed-mpi) "));
  asked = work.run(0, DS_TRAIN, {"--help"});
  EXPECT_EQ(asked.status, 0);
  EXPECT_THAT(asked.out, AllOf(HasSubstr("--deepspeed_config"), HasSubstr("Exit codes:"), HasSubstr("SIGUSR1")));
  asked = work.run(0, DS_TRAIN, {"--help-config", "training.save_every"});
  EXPECT_EQ(asked.status, 0);
  EXPECT_THAT(asked.out, AllOf(StartsWith("training.save_every\n"), HasSubstr("default: 0")));
  asked = work.run(0, DS_TRAIN, {"--help-config"});
  EXPECT_EQ(asked.status, 0);
  EXPECT_THAT(asked.out, AllOf(HasSubstr("zero_optimization"), HasSubstr("training")));
  asked = work.run(0, DS_TRAIN, {"--help-config", "training.save_evry"});
  EXPECT_EQ(asked.status, 3);
  EXPECT_THAT(asked.err, HasSubstr("training.save_every"));
  asked = work.run(0, DS_TRAIN, {"--print-schema"});
  EXPECT_EQ(asked.status, 0);
  const json schema = json::parse(asked.out);
  EXPECT_TRUE(schema.at("properties").contains("zero_optimization"));
  asked = work.run(0, DS_TRAIN, {tiny_config().dump(), "--check", "--ranks", "3"});
  EXPECT_EQ(asked.status, 3) << asked;
  EXPECT_THAT(asked.err, HasSubstr("8 != 2 * 1 * 3"));
  asked = work.run(0, DS_TRAIN, {tiny_config().dump(), "--check", "--set", "model.n_head=7"});
  EXPECT_EQ(asked.status, 3) << asked;
  EXPECT_THAT(asked.err, HasSubstr("model.n_head"));
  EXPECT_THAT(work.names(), ElementsAre("text.txt")) << "none of these writes anything";
}

TEST(CommandLine, ShippedConfigurationsAreGood) {
  const Workspace work;
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DS_SOURCE_DIR "/share/configs")) {
    if (entry.path().extension() != ".json") continue;
    const Outcome asked = work.run(0, DS_TRAIN, {entry.path().string(), "--check", "--ranks", "2"});
    EXPECT_EQ(asked.status, 0) << asked;
    EXPECT_THAT(asked.out, HasSubstr(": good for 2 ranks"));
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace deepspeed::train
