// SPDX-License-Identifier: Apache-2.0
#include "comm/ending.h"

#include <gtest/gtest.h>

namespace deepspeed::comm {
namespace {

TEST(Ending, RankListsAreShort) {
  EXPECT_EQ(list_ranks({}), "");
  EXPECT_EQ(list_ranks({4}), "4");
  EXPECT_EQ(list_ranks({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(Ending, NothingFailed) {
  EXPECT_EQ(judge("p", {{0, "a", 0, ""}, {1, "a", 0, ""}}, 2).text, "");
  EXPECT_EQ(judge("p", {{1, "a", 0, ""}, {0, "a", 75, ""}}, 2).code, 75);
}

TEST(Ending, EqualMessagesBecomeOne) {
  const Verdict all = judge("p", {{1, "b", 3, "bad key"}, {0, "a", 3, "bad key"}}, 2);
  EXPECT_EQ(all.code, 3);
  EXPECT_EQ(all.text, "p: error: bad key\n");
  const Verdict some = judge("p", {{0, "a", 4, "x"}, {1, "b", 0, ""}, {2, "b", 4, "x"}}, 3);
  EXPECT_EQ(some.text, "p: error: ranks 0, 2: x\n");
  const Verdict one = judge("p", {{2, "node7", 6, "x"}}, 4);
  EXPECT_EQ(one.text, "p: error: rank 2 (node7): x\n");
  const Verdict alone = judge("p", {{0, "a", 6, "x"}}, 1);
  EXPECT_EQ(alone.text, "p: error: x\n");
}

TEST(Ending, LostCollectivesAreNoCause) {
  const Verdict verdict = judge("p", {{0, "a", 7, "all_reduce: lost"}, {1, "b", 6, "disk full"}}, 3);
  EXPECT_EQ(verdict.code, 6);
  EXPECT_EQ(verdict.text, "p: error: rank 1 (b): disk full\n");
  const Verdict hang = judge("p", {{0, "a", 7, "all_reduce: lost"}, {2, "b", 7, "all_reduce: lost"}}, 4);
  EXPECT_EQ(hang.code, 7);
  EXPECT_EQ(hang.text, "p: error: ranks 0, 2: all_reduce: lost\np: error: no word from ranks 1, 3\n");
}

TEST(Ending, ManyMessagesAreCut) {
  std::vector<Ending> endings;
  for (int r = 0; r < 8; ++r) endings.push_back({r, "h", 6, "file " + std::to_string(r)});
  const std::string text = judge("p", endings, 8).text;
  EXPECT_NE(text.find("rank 4 (h): file 4\n"), std::string::npos);
  EXPECT_EQ(text.find("file 5"), std::string::npos);
  EXPECT_NE(text.find("and 3 other messages\n"), std::string::npos);
}

}  // namespace
}  // namespace deepspeed::comm
