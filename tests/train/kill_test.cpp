// SPDX-License-Identifier: Apache-2.0
// kill -9 of the whole job while it saves after every step: each restart finds a good checkpoint and goes on.
// DS_TEST_SEED repeats a run of this test, DS_TEST_KILLS (5) says how often it kills.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "workspace.h"

namespace deepspeed::train {
namespace {

int number_of(const std::optional<std::string>& tag) {
  return tag ? std::atoi(tag->c_str() + std::string("global_step").size()) : 0;
}

TEST(Kill, EveryRestartGoesOn) {
  const char* given = std::getenv("DS_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}() % 1000000;
  const char* wanted = std::getenv("DS_TEST_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 5;
  std::printf("DS_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);

  const Workspace work;
  json config = tiny_config();
  config["training"].update({{"steps", 100000}, {"save_every", 1}, {"keep_last", 2}});
  config["data"]["validation"] = nullptr;
  config["scheduler"]["params"]["total_num_steps"] = 100000;
  const auto checkpoints = work / "run/checkpoints";
  int newest = 0;
  for (int i = 0; i < kills; ++i) {
    Child job(work.training(2, config));
    // Two checkpoints of its own, then any moment of the next few.
    ASSERT_TRUE(eventually([&] {
      return job.err().find("global_step" + std::to_string(newest + 2) + " in") != std::string::npos;
    })) << "kill "
        << i << "\n"
        << job.err();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100000));
    job.kill_all();
    const int good = number_of(checkpoint::latest_tag(checkpoints));
    ASSERT_GE(good, newest + 2) << "after kill " << i << " a checkpoint that was said to be saved is lost";
    if (i > 0) {
      EXPECT_EQ(count(job.err(), "checkpoint global_step" + std::to_string(newest) + " of"), 1) << job.err();
    }
    ASSERT_GE(number_of(checkpoint::newest_good(checkpoints)), good);
    newest = good;
  }
  const Outcome run = work.train(2, config, {"--steps", std::to_string(newest + 1)});
  ASSERT_EQ(run.status, 0) << run;
  // Killed and restarted or not, each step is in the record once, and nothing of the dead saves is left.
  std::int64_t step = 0;
  for (const json& line : work.metrics()) EXPECT_EQ(line.at("step"), ++step);
  EXPECT_EQ(step, newest + 1);
  for (const std::string& name : work.names("run/checkpoints"))
    EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
}

}  // namespace
}  // namespace deepspeed::train
