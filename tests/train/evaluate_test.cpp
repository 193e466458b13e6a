// SPDX-License-Identifier: Apache-2.0
// ds_train --evaluate and ds_generate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// One run, whose exported model all tests ask.
class Model : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    work_ = new Workspace;
    json config = tiny_config();
    config["training"]["export"] = "model";
    work_->write("config.json", config.dump());
    run_ = new Outcome(work_->run(2, DS_TRAIN, {"config.json"}));
  }
  static void TearDownTestSuite() {
    delete work_;
    delete run_;
  }
  void SetUp() override { ASSERT_EQ(run_->status, 0) << *run_; }

  static std::string final_loss() { return fmt_loss(work_->metrics().back().at("validation_loss").get<double>()); }
  static std::string fmt_loss(double loss) {
    char text[64];
    std::snprintf(text, sizeof text, "loss %.6f\n", loss);
    return text;
  }

  inline static Workspace* work_ = nullptr;
  inline static Outcome* run_ = nullptr;
};

TEST_F(Model, EvaluatesToTheRunsLastLoss) {
  const auto before = work_->names("run/checkpoints");
  const std::string log = work_->read("run/log.txt");
  // The run's own weights, as the same command would go on with.
  Outcome asked = work_->run(2, DS_TRAIN, {"config.json", "--evaluate"});
  EXPECT_EQ(asked.status, 0) << asked;
  EXPECT_THAT(asked.out, AllOf(StartsWith(final_loss()), HasSubstr("\nperplexity "), HasSubstr("\ntokens ")));
  EXPECT_THAT(asked.err, HasSubstr("evaluating: checkpoint global_step20 of step 20"));
  // The exported model, without the training data.
  const std::string text = work_->read("text.txt");
  work_->write("end.txt", text.substr(text.size() - text.size() / 10));
  json config = tiny_config();
  config["data"].erase("train");
  asked =
      work_->train(0, config, {"--evaluate", "--model", "model", "--validation", "end.txt", "--output", "elsewhere"});
  EXPECT_EQ(asked.status, 0) << asked;
  EXPECT_THAT(asked.out, StartsWith("loss "));
  EXPECT_NEAR(std::atof(asked.out.c_str() + 5), std::atof(final_loss().c_str() + 5), 0.02) << "cut a few bytes apart";
  EXPECT_THAT(asked.err, HasSubstr("evaluating: the model model"));
  EXPECT_FALSE(work_->has("elsewhere")) << "an evaluation writes nothing";
  EXPECT_EQ(work_->names("run/checkpoints"), before);
  EXPECT_EQ(work_->read("run/log.txt"), log);
}

TEST_F(Model, EvaluatingNeedsSomethingToEvaluate) {
  json config = tiny_config();
  config["data"].erase("train");
  config["data"].erase("validation");
  Outcome asked = work_->train(2, config, {"--evaluate"});
  EXPECT_EQ(asked.status, 3) << asked;
  EXPECT_THAT(asked.err, HasSubstr("data.validation: nothing to evaluate on"));
  asked = work_->train(0, tiny_config(), {"--evaluate", "--output", "nowhere"});
  EXPECT_EQ(asked.status, 0) << asked;
  EXPECT_THAT(asked.err, HasSubstr("no checkpoint in nowhere/checkpoints: a model that was never trained"));
}

TEST_F(Model, GoesOnFromAPrompt) {
  const std::vector<std::string> ask{"--model", "model", "--prompt", "many ranks", "--max_new_tokens", "20"};
  const Outcome first = work_->generate(ask);
  EXPECT_EQ(first.status, 0) << first;
  EXPECT_THAT(first.out, StartsWith("many ranks"));
  EXPECT_EQ(first.err, "");
  EXPECT_EQ(work_->generate(ask).out, first.out) << "the likeliest token is the same each time";
  const Outcome piped = work_->generate({"--model", "model", "--prompt", "-", "--max_new_tokens", "20"}, "many ranks");
  EXPECT_EQ(piped.out, first.out);
}

TEST_F(Model, GeneratorErrorsAreClear) {
  Outcome asked = work_->generate({"--model", "nowhere", "--prompt", "a"});
  EXPECT_EQ(asked.status, 4) << asked;
  EXPECT_THAT(asked.err, StartsWith("ds_generate: error: nowhere: is no folder"));
  asked = work_->generate({"--model", "run", "--prompt", "a"});
  EXPECT_EQ(asked.status, 4) << asked;
  EXPECT_THAT(asked.err, StartsWith("ds_generate: error: run"));
  asked = work_->generate({"--model", "model", "--prompt", ""});
  EXPECT_EQ(asked.status, 2) << asked;
  EXPECT_THAT(asked.err, HasSubstr("--prompt: the model needs at least one character"));
  asked = work_->generate({"--model", "model"});
  EXPECT_EQ(asked.status, 2) << asked;
  EXPECT_THAT(asked.err, HasSubstr("--prompt is required"));
  for (const Outcome& each : {asked}) EXPECT_EQ(each.out, "");
}

}  // namespace
}  // namespace deepspeed::train
