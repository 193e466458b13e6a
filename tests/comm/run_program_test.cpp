// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "support/child.h"

namespace deepspeed::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int status;
  std::string text;  // stdout and stderr
  double seconds;
};

/// Runs a job, under mpirun unless `ranks` is 0.
Outcome job(int ranks, const std::string& scenario, const std::vector<std::string>& environment = {},
            const std::string& binding = "none") {
  testing_support::Start start;
  if (ranks > 0) {
    start.command = {DS_MPIRUN, "--oversubscribe", "--bind-to", binding, "-q", "-n", std::to_string(ranks)};
  }
  start.command.insert(start.command.end(), {DS_COMM_JOB, scenario});
  start.environment = environment;
  const testing_support::Outcome outcome = testing_support::run(start);
  return {outcome.status, outcome.text(), outcome.seconds};
}

/// Seconds that a job may take: these, on a machine with time to spare; more where already a job that does nothing is
/// slow.
double within(double seconds) {
  return std::max(seconds, 12 * job(3, "fine").seconds);
}

TEST(RunProgram, EndsWell) {
  const Outcome outcome = job(2, "fine");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 0 of 2\n"), HasSubstr("rank 1 of 2\n")));
}

TEST(RunProgram, ARankOnTooFewCoresIsToldOnce) {
  const auto cores = std::thread::hardware_concurrency();
  if (cores < 2) GTEST_SKIP() << "one core";
  const Outcome outcome = job(1, "preempted", {}, "hwthread");
  EXPECT_EQ(outcome.status, 75);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("warning: a rank is bound to 1 of the"),
                                  HasSubstr("`mpirun --bind-to none`"), HasSubstr("--map-by slot:PE=")));
  EXPECT_EQ(job(2, "preempted").text, "");
}

TEST(RunProgram, WorksWithoutALauncher) {
  Outcome outcome = job(0, "fine");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.text, HasSubstr("rank 0 of 1\n"));
  outcome = job(0, "config");
  EXPECT_EQ(outcome.status, 3);
  EXPECT_EQ(outcome.text, "comm_job: error: zero_optimization.stage: 7 is not a stage; use 0, 1, 2 or 3\n");
}

TEST(RunProgram, AForeignLauncherIsRefused) {
  const Outcome outcome = job(0, "fine", {"PMI_SIZE=4", "PMI_RANK=1"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.text, AllOf(StartsWith("comm_job: error: "), HasSubstr("one of 4 processes (PMI_SIZE=4)")));
}

TEST(RunProgram, AnErrorOfAllRanksIsToldOnce) {
  for (const int ranks : {1, 2, 4}) {
    const Outcome outcome = job(ranks, "config");
    EXPECT_EQ(outcome.status, 3);
    EXPECT_EQ(outcome.text, "comm_job: error: zero_optimization.stage: 7 is not a stage; use 0, 1, 2 or 3\n");
  }
}

TEST(RunProgram, MemoryThatRanOutIsToldOnceWhereverItShowed) {
  const Outcome outcome = job(2, "no_memory");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(StartsWith("comm_job: error: out of host memory: "), HasSubstr("ds_train --plan")));
}

TEST(RunProgram, AnErrorOfSomeRanksNamesThem) {
  const Outcome outcome = job(4, "most");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_EQ(outcome.text, "comm_job: error: ranks 1-3: no tokens\n");
}

TEST(RunProgram, TheBodysCodeComesThrough) {
  const Outcome outcome = job(3, "preempted");
  EXPECT_EQ(outcome.status, 75);
  EXPECT_EQ(outcome.text, "");
}

TEST(RunProgram, OneRankFailsWhileOthersWait) {
  Outcome outcome = job(4, "one_of_waiting");
  EXPECT_EQ(outcome.status, 6);
  EXPECT_THAT(outcome.text, AllOf(StartsWith("comm_job: error: rank 3 ("),
                                  testing::EndsWith("): /data/x: No space left on device\n")));
  EXPECT_LT(outcome.seconds, within(5));
  outcome = job(2, "first_of_waiting");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.text, AllOf(StartsWith("comm_job: error: rank 0 ("), testing::EndsWith("): a bug\n")));
  EXPECT_LT(outcome.seconds, within(5));
  outcome = job(2, "one_while_others_compute");
  EXPECT_EQ(outcome.status, 5);
  EXPECT_THAT(outcome.text, testing::EndsWith("): tag 5: damaged\n"));
  EXPECT_LT(outcome.seconds, within(5));
}

TEST(RunProgram, MemoryStandsUntilCollectivesAreThrough) {
  Outcome outcome = job(3, "one_with_memory_under_way");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_THAT(outcome.text, AllOf(StartsWith("comm_job: error: rank 2 ("), testing::EndsWith("): half a batch\n")));
  outcome = job(2, "all_with_memory_under_way");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_THAT(outcome.text, HasSubstr("comm_job: error: half a batch\n"));
  EXPECT_THAT(outcome.text, HasSubstr("settled\n"));
  EXPECT_THAT(outcome.text, testing::Not(HasSubstr("still under way")));
}

TEST(RunProgram, ARankThatLeavesEarlyIsAFailure) {
  const Outcome outcome = job(3, "leaves_early");
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.text, AllOf(StartsWith("comm_job: error: ranks 0-1: all_reduce #2 on group 'world': "),
                                  HasSubstr("rank 2 has ended")));
  EXPECT_LT(outcome.seconds, within(12));
}

TEST(RunProgram, ALateRankIsNoFailure) {
  const Outcome outcome = job(2, "slow_rank");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.text, "");
}

TEST(RunProgram, AKilledRankEndsTheJob) {
  const Outcome outcome = job(3, "killed");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, within(5));
}

TEST(RunProgram, AHangIsToldWithTheCollective) {
  const Outcome outcome = job(3, "timeout", {"DS_COMM_TIMEOUT=1"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.text,
              AllOf(StartsWith("comm_job: error: ranks 0-1: all_reduce #2 on group 'world': not done after 1 s"),
                    HasSubstr("no word from rank 2")));
  EXPECT_LT(outcome.seconds, within(8));
}

TEST(RunProgram, DifferentCollectivesAreFound) {
  const Outcome outcome = job(2, "mismatch", {"DS_COMM_CHECK=1"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("the ranks don't call the same collective"),
                                  HasSubstr("all_reduce #2 fp32[1] sum"), HasSubstr("barrier #2")));
}

TEST(RunProgram, ABadTimeoutIsRefused) {
  const Outcome outcome = job(0, "fine", {"DS_COMM_TIMEOUT=soon"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.text, HasSubstr("DS_COMM_TIMEOUT: 'soon'"));
}

TEST(RunProgram, AbortEndsAllRanks) {
  const Outcome outcome = job(3, "abort");
  EXPECT_EQ(outcome.status, 9);
  EXPECT_LT(outcome.seconds, within(5));
}

}  // namespace
}  // namespace deepspeed::comm
