// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/sample.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace deepspeed::checkpoint {
namespace {

namespace fs = std::filesystem;
using sample::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

const std::vector<sample::Spec> tiny = {{"model/w", {5}, base::Dtype::f32}};

// C19: more than ten of anything is ordered by number, not by text.
TEST(Tags, OrderedByNumber) {
  EXPECT_TRUE(older("global_step9", "global_step10"));
  EXPECT_FALSE(older("global_step10", "global_step9"));
  EXPECT_TRUE(older("global_step99", "global_step100"));
  EXPECT_TRUE(older("step9", "step10"));
  EXPECT_TRUE(older("best", "global_step1"));
  EXPECT_TRUE(older("epoch2-step10", "epoch10-step10"));
  EXPECT_TRUE(older("global_step9", "global_step99999999999999999999999999"));
  std::vector<std::string> tags = {"s10", "s9", "s09", "best", "s1b", "s1", "s100", "a2", "s01", "t2", "s2"};
  std::sort(tags.begin(), tags.end(), older);
  EXPECT_THAT(tags, ElementsAre("best", "s01", "s1", "s1b", "a2", "s2", "t2", "s09", "s9", "s10", "s100"));
  for (const std::string& a : tags) {
    EXPECT_FALSE(older(a, a));
    for (const std::string& b : tags)
      for (const std::string& c : tags) EXPECT_TRUE(!older(a, b) || !older(b, c) || older(a, c)) << a << b << c;
  }
}

TEST(Tags, NewestIsStep10Not9) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "global_step10", tiny, 10);
  sample::save_whole(folder.path(), "global_step9", tiny, 9);
  EXPECT_EQ(newest_good(folder.path()), "global_step10");
  EXPECT_EQ(latest_tag(folder.path()), "global_step9");  // what was saved last
  EXPECT_THAT(list_tags(folder.path()), ElementsAre("global_step9", "global_step10"));
}

TEST(Tags, NamesThatAreNoTag) {
  TemporaryFolder folder;
  for (const std::string tag :
       {"", ".", "..", "a/b", "../x", "/x", "a\nb", ".hidden", "latest", "a.tmp-1", "a.old-1"}) {
    EXPECT_NE(problem_of_tag(tag), "") << tag;
    EXPECT_THAT(refusal([&] { sample::save_whole(folder.path(), tag, tiny, 1); }), HasSubstr("tag")) << tag;
    EXPECT_NE(refusal([&] { Reader(folder.path(), tag); }), "") << tag;
  }
  EXPECT_NE(problem_of_tag(std::string("a\0b", 3)), "");
  EXPECT_NE(problem_of_tag(std::string(201, 'a')), "");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(problem_of_tag("global_step10"), "");
  EXPECT_EQ(problem_of_tag("épreuve 1.5 (best)"), "");
}

/// C16's folder.
class Latest : public testing::Test {
 protected:
  void SetUp() override {
    sample::save_whole(path, "global_step5", tiny, 5);
    sample::save_whole(path, "global_step10", tiny, 10);
  }
  void write(const std::string& text) const { io::write_file_atomically(path / "latest", text); }
  std::string by_latest() const {
    return refusal([&] { latest_tag(path); });
  }
  std::string resumed() const {
    const auto reader = Reader::open_newest(*comm::self_group(), path);
    return reader ? reader->tag() : "fresh";
  }
  testing::Matcher<std::string> tells(const std::string& problem) const {
    return AllOf(HasSubstr((path / "latest").string()), HasSubstr(problem), HasSubstr("global_step5, global_step10"));
  }
  TemporaryFolder folder;
  fs::path path = folder / "checkpoints";
};

TEST_F(Latest, HoldsTheTagAndNothingElse) {
  EXPECT_EQ(io::read_whole_file(path / "latest"), "global_step10");
  EXPECT_EQ(latest_tag(path), "global_step10");
  EXPECT_EQ(resumed(), "global_step10");
}

TEST_F(Latest, WhiteSpaceAroundDoesntCount) {
  for (const char* text : {"global_step10\r\n ", "\n\tglobal_step10", "global_step10\n"}) {
    write(text);
    EXPECT_EQ(latest_tag(path), "global_step10");
  }
}

TEST_F(Latest, ThatIsMissingEmptyOrWrongIsAnErrorWithTheTags) {
  fs::remove(path / "latest");
  EXPECT_THAT(by_latest(), tells("no such file"));
  write("");
  EXPECT_THAT(by_latest(), tells("is empty"));
  write(" \r\n");
  EXPECT_THAT(by_latest(), tells("only white space"));
  write("global_step15");
  EXPECT_THAT(by_latest(), tells("names 'global_step15', which isn't there"));
  for (const char* text :
       {"../other", "/etc", "global_step10/..", "..", ".", "global_step5 global_step10/x", "latest"}) {
    write(text);
    EXPECT_THAT(by_latest(), tells("but a tag")) << text;
  }
  fs::create_directory(folder / "other");
  write(std::string(1 << 20, 'x'));
  EXPECT_THAT(by_latest(), tells("at most"));
  fs::remove(path / "latest");
  fs::create_directory(path / "latest");
  EXPECT_THAT(by_latest(), tells("Is a directory"));
  EXPECT_THAT(refusal([&] { latest_tag(folder / "none"); }), HasSubstr("no such folder"));
}

TEST_F(Latest, ResumeIfThereIsOneTakesTheNewestGoodAndSaysWhy) {
  for (const char* text : {"", "global_step15", "../other"}) {
    write(text);
    testing::internal::CaptureStderr();
    EXPECT_EQ(resumed(), "global_step10");
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("latest"), HasSubstr("Going on from global_step10")));
  }
  write("global_step5");  // somebody went back on purpose
  EXPECT_EQ(resumed(), "global_step5");
}

TEST_F(Latest, AnExplicitTagNeedsNone) {
  fs::remove(path / "latest");
  EXPECT_TRUE(sample::all_read_back(Reader(path, "global_step5"), tiny, 5));
  EXPECT_THAT(refusal([&] { Reader(path, "global_step7"); }),
              AllOf(HasSubstr("global_step7"), HasSubstr("no such checkpoint"), HasSubstr("global_step10")));
}

TEST_F(Latest, FreshStartOnlyWhereNothingIs) {
  const auto group = comm::self_group();
  EXPECT_FALSE(Reader::open_newest(*group, folder / "none"));
  fs::create_directory(folder / "empty");
  EXPECT_FALSE(Reader::open_newest(*group, folder / "empty"));
  fs::create_directory(folder / "empty/global_step1.tmp-77-1");  // a first save that was killed
  io::write_file_atomically(folder / "empty/.lock", "");
  EXPECT_FALSE(Reader::open_newest(*group, folder / "empty"));
  for (const char* name : {"a/latest", "b/unknown", "c/global_step1/x"}) {
    fs::create_directories((folder / name).parent_path());
    io::write_file_atomically(folder / name, "global_step1");
    EXPECT_THAT(refusal([&] {
                  Reader::open_newest(*group, (folder / name).parent_path().parent_path() == folder.path()
                                                  ? (folder / name).parent_path()
                                                  : (folder / name).parent_path().parent_path());
                }),
                HasSubstr("holds no good checkpoint"))
        << name;
  }
}

}  // namespace
}  // namespace deepspeed::checkpoint
