// SPDX-License-Identifier: Apache-2.0
// kill -9 at random moments while checkpoints are saved: every restart finds a good one. DS_KILL_SECONDS (default 6)
// says for how long it is tried.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "support/temporary_folder.h"

namespace deepspeed::checkpoint {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

pid_t start(const std::filesystem::path& folder, std::uint64_t first) {
  const std::string step = std::to_string(first);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(DS_CHECKPOINT_SAVER, DS_CHECKPOINT_SAVER, folder.c_str(), step.c_str(), nullptr);
    ::_exit(4);
  }
  return child;
}

TEST(Kill, AnyMomentLeavesAGoodCheckpoint) {
  const char* seconds = std::getenv("DS_KILL_SECONDS");
  const auto end = steady_clock::now() + std::chrono::seconds(seconds == nullptr ? 6 : std::atoi(seconds));
  testing_support::TemporaryFolder folder;
  std::mt19937 random(std::random_device{}());
  std::uint64_t newest = 0;
  int kills = 0, with_checkpoint = 0;
  for (; steady_clock::now() < end; ++kills) {
    const pid_t child = start(folder.path(), newest + 1);
    ASSERT_GT(child, 0);
    std::this_thread::sleep_for(microseconds(10000 + random() % 120000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    // The program ends by itself only where what it found couldn't be resumed from.
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status) << " after " << kills << " kills";
    const auto tag = newest_good(folder.path());
    if (!tag) {
      ASSERT_EQ(newest, 0U) << "a good checkpoint is lost";
      continue;
    }
    ++with_checkpoint;
    const auto step = std::stoull(tag->substr(std::string("global_step").size()));
    ASSERT_GE(step, newest) << "a newer checkpoint is lost";
    newest = step;
  }
  EXPECT_GT(with_checkpoint, 5) << "the test killed too early to mean anything";
  RecordProperty("kills", kills);
  std::printf("%d kills, %llu checkpoints\n", kills, static_cast<unsigned long long>(newest));
}

}  // namespace
}  // namespace deepspeed::checkpoint
