// SPDX-License-Identifier: Apache-2.0
// Every file of a checkpoint, missing, cut, lengthened or with one bit turned at many places, is refused by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/sample.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace deepspeed::checkpoint {
namespace {

namespace fs = std::filesystem;
using sample::refusal;
using sample::Spec;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

const std::vector<Spec> specs = {{"model/w", {90, 100}, base::Dtype::f32},
                                 {"model/b", {11}, base::Dtype::bf16},
                                 {"optimizer/exp_avg/w", {90, 100}, base::Dtype::f32}};

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    sample::save_whole(folder.path(), "global_step5", specs, 5);
    sample::save_whole(folder.path(), "global_step10", specs, 10);
    for (const auto& entry : fs::directory_iterator(folder / "global_step10")) files.push_back(entry.path());
    ASSERT_EQ(files.size(), 3U);
  }
  /// With `bytes` in the place of `file` the checkpoint is refused by name, and the good one is offered.
  void expect_refused(const fs::path& file, const std::string& bytes) {
    io::write_file_atomically(file, bytes);
    EXPECT_THAT(refusal([&] { Reader(folder.path(), "global_step10"); }),
                AllOf(HasSubstr(file.string()), HasSubstr("newest good checkpoint"), HasSubstr("global_step5")));
    // Without reading the data first: either at once or when it is read.
    EXPECT_THAT(refusal([&] {
                  const Reader reader(folder.path(), "global_step10", Verify::lazy);
                  sample::all_read_back(reader, specs, 10);
                }),
                HasSubstr(file.string()));
  }
  TemporaryFolder folder;
  std::vector<fs::path> files;
};

TEST_F(Damage, AnyBitOfAnyFile) {
  std::mt19937 random(11);
  for (const fs::path& file : files) {
    const std::string good = io::read_whole_file(file);
    std::vector<std::size_t> places = {
        0, 1, 13, 14, 20, 45, 46, 47, 48, 49, good.size() / 2, good.size() - 2, good.size() - 1};
    for (int i = 0; i < 40; ++i) places.push_back(random() % good.size());
    for (const std::size_t place : places) {
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << (random() % 8)));
      SCOPED_TRACE(place);
      expect_refused(file, bad);
    }
    io::write_file_atomically(file, good);
  }
  EXPECT_TRUE(sample::all_read_back(Reader(folder.path(), "global_step10"), specs, 10));
}

TEST_F(Damage, AnyFileCutOrLengthened) {
  std::mt19937 random(12);
  for (const fs::path& file : files) {
    const std::string good = io::read_whole_file(file);
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{47}, random() % good.size(), good.size() - 1}) {
      SCOPED_TRACE(size);
      expect_refused(file, good.substr(0, size));
    }
    expect_refused(file, good + '\0');
    io::write_file_atomically(file, good);
  }
}

TEST_F(Damage, AnyFileMissing) {
  for (const fs::path& file : files) {
    const std::string good = io::read_whole_file(file);
    fs::remove(file);
    EXPECT_THAT(refusal([&] { Reader(folder.path(), "global_step10"); }),
                AllOf(HasSubstr(file.string()), HasSubstr("No such file"), HasSubstr("global_step5")));
    EXPECT_EQ(newest_good(folder.path()), "global_step5");
    testing::internal::CaptureStderr();
    EXPECT_EQ(Reader::open_newest(*comm::self_group(), folder.path())->tag(), "global_step5");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(file.string()));
    io::write_file_atomically(file, good);
  }
}

TEST_F(Damage, FilesOfTwoCheckpointsMixed) {
  for (const fs::path& file : files) {
    const std::string good = io::read_whole_file(file);
    if (file.filename() != "manifest.json")
      expect_refused(file, io::read_whole_file(folder / "global_step5" / file.filename().string()));
    io::write_file_atomically(file, good);
  }
}

TEST_F(Damage, NothingGoodIsSaid) {
  for (const char* tag : {"global_step5", "global_step10"}) fs::remove(folder / tag / "manifest.json");
  EXPECT_THAT(refusal([&] { Reader(folder.path(), "global_step10"); }), HasSubstr("no other good checkpoint"));
  EXPECT_EQ(newest_good(folder.path()), std::nullopt);
  EXPECT_THAT(refusal([&] { Reader::open_newest(*comm::self_group(), folder.path()); }),
              AllOf(HasSubstr("holds no good checkpoint"), HasSubstr("manifest.json")));
}

}  // namespace
}  // namespace deepspeed::checkpoint
