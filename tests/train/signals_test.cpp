// SPDX-License-Identifier: Apache-2.0
// Stop requests at the moments that matter, and ranks that die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/checkpoint.h"
#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Steps of some tens of milliseconds, and enough of them that no test sees their end.
json long_config() {
  json config = tiny_config();
  config["training"]["steps"] = 100000;
  config["train_batch_size"] = 32;
  config["train_micro_batch_size_per_gpu"] = 2;
  return config;
}

/// An evaluation of a second or more after each step.
json evaluating_config(const Workspace& work) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += work.read("text.txt");
  work.write("long.txt", text);
  json config = tiny_config();
  config["data"].update({{"validation", "long.txt"}, {"sequence_length", 8}});
  config["train_batch_size"] = 4;
  config["train_micro_batch_size_per_gpu"] = 1;
  config["training"].update({{"steps", 2}, {"evaluate_every", 1}});
  return config;
}

/// The job and all its ranks have ended.
void expect_nothing_left(const std::vector<pid_t>& processes) {
  EXPECT_TRUE(eventually([&] { return std::none_of(processes.begin(), processes.end(), is_running); }, 10));
}

TEST(Signals, DuringAnEvaluation) {
  const Workspace work;
  const json config = evaluating_config(work);
  Outcome run = work.train(2, config, {"--output", "whole"});
  ASSERT_EQ(run.status, 0) << run;
  Child job(work.training(2, config));
  ASSERT_TRUE(eventually([&] { return work.last_step() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  job.signal(SIGUSR1);
  run = job.wait();
  EXPECT_EQ(run.status, 75) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("stopped at step 1 of 2 by SIGUSR1"), Not(HasSubstr("validation loss"))));
  run = work.train(2, config);
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_EQ(lasting(work.metrics()), lasting(work.metrics("whole")))
      << "the evaluation that was cut off is made up for";
}

TEST(Signals, BeforeTheFirstStep) {
  const Workspace work;
  Child job(work.training(2, long_config()));
  ASSERT_TRUE(eventually([&] { return job.err().find("model: ") != std::string::npos; })) << job.err();
  job.signal(SIGUSR1);
  const Outcome run = job.wait();
  EXPECT_EQ(run.status, 75) << run;
  EXPECT_THAT(run.err, HasSubstr("by SIGUSR1; run the same command again to go on"));
  EXPECT_GE(work.last_step(), 1);
  EXPECT_EQ(checkpoint::newest_good(work / "run/checkpoints"), "global_step" + std::to_string(work.last_step()));
}

TEST(Signals, TermOfOneRankIsAStopOfAll) {
  const Workspace work;
  Child job(work.training(2, long_config()));
  ASSERT_TRUE(eventually([&] { return work.last_step() >= 1; })) << job.err();
  const std::vector<pid_t> ranks = job.descendants("ds_train");
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(ranks[1], SIGTERM);
  const Outcome run = job.wait();
  EXPECT_EQ(run.status, 75) << run;
  EXPECT_THAT(run.err, HasSubstr("stopped at step "));
  EXPECT_EQ(checkpoint::newest_good(work / "run/checkpoints"), "global_step" + std::to_string(work.last_step()));
  expect_nothing_left(ranks);
}

TEST(Signals, TermOfMpirunNamesTheLastGoodCheckpoint) {
  const Workspace work;
  json config = long_config();
  config["training"]["save_every"] = 2;
  Child job(work.training(2, config));
  ASSERT_TRUE(eventually([&] {
    return work.has("run/checkpoints/global_step2") && work.has("run/checkpoints/latest");
  })) << job.err();
  std::vector<pid_t> all = job.descendants();
  job.signal(SIGTERM);
  Outcome run = job.wait();
  EXPECT_NE(run.status, 0) << run;
  EXPECT_LT(run.seconds, 50) << run;
  EXPECT_THAT(run.err, HasSubstr("the last good checkpoint is run/checkpoints/global_step"));
  expect_nothing_left(all);
  // Whatever its name says is a checkpoint is a whole one.
  for (const std::string& tag : checkpoint::list_tags(work / "run/checkpoints"))
    EXPECT_NO_THROW(checkpoint::Reader(work / "run/checkpoints", tag)) << tag;
  const std::string last = checkpoint::latest_tag(work / "run/checkpoints");
  run = work.train(2, config, {"--steps", std::to_string(std::stoi(last.substr(11)) + 1)});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("checkpoint " + last));
}

TEST(Signals, ASecondOneEndsAtOnce) {
  const Workspace work;
  json config = long_config();
  config["train_batch_size"] = 20000;  // a step of many seconds
  for (const int second : {SIGUSR1, SIGTERM}) {
    Child job(work.training(0, config));
    ASSERT_TRUE(eventually([&] { return job.err().find("beginning: ") != std::string::npos; })) << job.err();
    job.signal(SIGUSR1);
    ASSERT_TRUE(eventually([&] { return job.err().find("a second signal stops at once") != std::string::npos; }, 5))
        << job.err();
    const auto begin = std::chrono::steady_clock::now();
    job.signal(second);
    const Outcome run = job.wait();
    EXPECT_EQ(run.status, 128 + second) << run;
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 2);
  }
  EXPECT_THAT(checkpoint::list_tags(work / "run/checkpoints"), testing::IsEmpty());
}

TEST(Signals, AKilledRankEndsTheJob) {
  const Workspace work;
  Child job(work.training(2, long_config()));
  ASSERT_TRUE(eventually([&] { return work.last_step() >= 1; })) << job.err();
  const std::vector<pid_t> ranks = job.descendants("ds_train");
  ASSERT_EQ(ranks.size(), 2U);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(ranks[1], SIGKILL);
  const Outcome run = job.wait();
  EXPECT_FALSE(run.late);
  EXPECT_NE(run.status, 0) << run;
  EXPECT_NE(run.status, 75) << run;
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 10);
  expect_nothing_left(ranks);
}

}  // namespace
}  // namespace deepspeed::train
