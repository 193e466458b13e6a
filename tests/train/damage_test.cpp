// SPDX-License-Identifier: Apache-2.0
// Checkpoints that aren't what they should be (C16), and a disk that fills (C17).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "checkpoint/checkpoint.h"
#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Checkpoints of steps 5 and 10.
class Damage : public testing::Test {
 protected:
  Damage() {
    config_["training"].update({{"steps", 10}, {"save_every", 5}, {"keep_last", 0}});
    config_["data"]["validation"] = nullptr;
    const Outcome run = work_.train(0, config_);
    EXPECT_EQ(run.status, 0) << run;
  }

  /// Runs on to step 12 and expects to be refused with code 5, these parts in the one message, and nothing written.
  void expect_refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts, int ranks = 0) {
    std::vector<std::string> all{"--steps", "12"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto before = work_.names("run/checkpoints");
    const std::string metrics = work_.read("run/metrics.jsonl");
    const Outcome run = work_.train(ranks, config_, all);
    EXPECT_EQ(run.status, 5) << run;
    EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
    for (const std::string& part : parts) EXPECT_THAT(run.err, HasSubstr(part));
    EXPECT_EQ(work_.names("run/checkpoints"), before);
    EXPECT_EQ(work_.read("run/metrics.jsonl"), metrics);
  }

  void corrupt(const std::string& tag) {
    for (const std::string& name : work_.names("run/checkpoints/" + tag)) {
      if (name.find("model_states") == std::string::npos) continue;
      const std::string path = "run/checkpoints/" + tag + "/" + name;
      std::string bytes = work_.read(path);
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      work_.write(path, bytes);
    }
  }

  Workspace work_;
  json config_ = tiny_config();
};

TEST_F(Damage, LatestThatDoesNotNameACheckpoint) {
  const std::string latest = "run/checkpoints/latest";
  const std::string there = "the checkpoints there are global_step5, global_step10";
  work_.write(latest, "");
  expect_refused({"--resume", "latest"}, {latest, "is empty", there}, 2);
  work_.write(latest, "global_step15");
  expect_refused({"--resume", "latest"}, {latest, "global_step15", "isn't there", there});
  work_.write(latest, "../other");
  expect_refused({"--resume", "latest"}, {latest, "../other", there});
  std::filesystem::remove(work_ / latest);
  expect_refused({"--resume", "latest"}, {latest, "no such file", there});
  // A tag needs no `latest`.
  Outcome run = work_.train(0, config_, {"--resume", "global_step5", "--output", "run", "--steps", "6"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("checkpoint global_step5 of step 5"));
}

TEST_F(Damage, LatestWithWhiteSpaceAround) {
  work_.write("run/checkpoints/latest", "global_step10\r\n ");
  const Outcome run = work_.train(2, config_, {"--steps", "11"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("checkpoint global_step10 of step 10"));
}

TEST_F(Damage, WhatIsNotThere) {
  expect_refused({"--resume", "global_step15"},
                 {"run/checkpoints/global_step15", "there is no such checkpoint", "global_step10"});
  expect_refused({"--resume", "nowhere/checkpoints"}, {"nowhere/checkpoints", "there is no such folder"});
  // "If there is one": a fresh start where there is nothing, which it says.
  const Outcome run = work_.train(0, config_, {"--output", "other", "--steps", "2"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("no checkpoint in other/checkpoints: a fresh start"));
}

TEST_F(Damage, ADamagedOneIsNamedAndTheNewestGoodTaken) {
  corrupt("global_step10");
  expect_refused({"--resume", "global_step10"}, {"global_step10", "model_states", "global_step5"}, 2);
  const Outcome run = work_.train(2, config_, {"--steps", "11"});
  EXPECT_EQ(run.status, 0) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("warning: "), HasSubstr("global_step10"),
                             HasSubstr("checkpoint global_step5 of step 5")));
  EXPECT_THAT(work_.read("run/log.txt"), HasSubstr("warning: ")) << "said before the log was open, and in it";
  std::int64_t step = 0;
  for (const json& line : work_.metrics()) EXPECT_EQ(line.at("step"), ++step);
  EXPECT_EQ(step, 11);
}

TEST_F(Damage, NothingGoodIsNoFreshStart) {
  corrupt("global_step5");
  corrupt("global_step10");
  expect_refused({}, {"run/checkpoints", "global_step10"}, 2);
}

/// A file system in memory of a few MiB; needs the right to mount.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& path) : path_(path) {
    std::filesystem::create_directories(path);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=16m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
};

TEST(FullDisk, TheLastGoodCheckpointStays) {
  const Workspace work;
  const SmallDisk disk(work / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a file system isn't allowed here";
  json config = tiny_config();
  config["model"].update({{"n_layer", 4}, {"n_embd", 128}});  // a checkpoint takes 10 MB
  config["data"]["validation"] = nullptr;
  config["training"].update({{"steps", 10}, {"save_every", 5}, {"output", "disk/run"}});
  config["train_batch_size"] = 2;
  Outcome run = work.train(2, config);
  EXPECT_TRUE(run.status == 5 || run.status == 6) << run;
  EXPECT_LT(run.seconds, 60);
  EXPECT_EQ(count(run.err, "ds_train: error: "), 1) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("disk/run/checkpoints"), HasSubstr("global_step10")));
  EXPECT_EQ(work.names("disk/run/checkpoints"), (std::vector<std::string>{".lock", "global_step5", "latest"}));
  EXPECT_EQ(checkpoint::latest_tag(work / "disk/run/checkpoints"), "global_step5");
  EXPECT_EQ(checkpoint::newest_good(work / "disk/run/checkpoints"), "global_step5");
  EXPECT_THAT(work.read("disk/run/log.txt"), HasSubstr("error:")) << "the log tells how the run ended";
  // A start with no room for a checkpoint says so before it trains.
  run = work.train(2, config);
  EXPECT_TRUE(run.status == 5 || run.status == 6) << run;
  EXPECT_EQ(work.last_step("disk/run"), 10) << "no step was trained";
}

}  // namespace
}  // namespace deepspeed::train
