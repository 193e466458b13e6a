// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/support.h"

namespace deepspeed::config {
namespace {

using testing::HasSubstr;

TEST(Config, IssueExample) {
  const Config config = parse(R"({
    "model": {"type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 256, "vocab_size": 256},
    "data": {"train": "corpus.txt", "validation": 0.05, "format": "auto", "tokenizer": "bytes", "sequence_length": 256,
             "shuffle": true},
    "training": {"steps": 500, "seed": 1234, "output": "runs/demo", "save_every": 100, "keep_last": 3,
                 "evaluate_every": 50, "resume": "auto", "export": null},
    "train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "zero_optimization": {"stage": 0}})",
                              2);
  EXPECT_EQ(config.get<std::int64_t>("train_micro_batch_size_per_gpu"), 8);
  EXPECT_EQ(config.get<double>("optimizer.params.lr"), 3e-4);
  EXPECT_EQ(config.get<std::vector<double>>("optimizer.params.betas"), (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(config.get<std::vector<std::string>>("data.train"), std::vector<std::string>{"corpus.txt"});
  EXPECT_EQ(config.get<nlohmann::json>("model").at("n_layer"), 4);
  EXPECT_EQ(config.find<std::string>("training.export"), std::nullopt);
  EXPECT_FALSE(config.given("training.export"));
  EXPECT_TRUE(config.given("training.steps"));
  EXPECT_FALSE(config.given("gradient_clipping"));
  EXPECT_EQ(config.get<double>("gradient_clipping"), 1.0);
  EXPECT_EQ(nlohmann::json::parse(config.text()), config.resolved());
  EXPECT_EQ(parse(config.text(), 2).resolved(), config.resolved());
}

TEST(Config, UnknownKeyNamesTheNearest) {
  EXPECT_THAT(refusal(R"({"train_batch_size": 8, "zero_optimisation": {}})"),
              HasSubstr("ds.json:1: zero_optimisation: unknown key (Extra inputs are not permitted); did you mean "
                        "zero_optimization?"));
}

TEST(Supported, RefusesWhatIsTurnedOnAndOnlyThat) {
  EXPECT_EQ(unsupported(R"({"train_batch_size": 8})"), "");
  EXPECT_EQ(unsupported(R"({"train_batch_size": 8, "torch_autocast": {"enabled": false, "dtype": "bf16"}})"), "");
  EXPECT_THAT(unsupported(R"({"train_batch_size": 8, "torch_autocast": {"enabled": true}})"),
              HasSubstr("torch_autocast.enabled: true is not supported in this version"));
  EXPECT_THAT(unsupported(R"({"train_batch_size": 8, "optimizer": {"type": "lamb"}})"),
              HasSubstr("optimizer.type: \"Lamb\" is not supported in this version"));
}

}  // namespace
}  // namespace deepspeed::config
