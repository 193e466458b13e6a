// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sample.h"
#include "checkpoint/tags.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "support/temporary_folder.h"

namespace deepspeed::checkpoint {
namespace {

namespace fs = std::filesystem;
using sample::refusal;
using sample::Spec;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using testing_support::TemporaryFolder;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

const std::vector<Spec> two = {{"model/w", {6, 5}, base::Dtype::f32},
                               {"optimizer/exp_avg/w", {6, 5}, base::Dtype::f32}};

TEST(Checkpoint, EveryKindOfTensorRoundTrips) {
  TemporaryFolder folder;
  const auto specs = sample::all_kinds();
  sample::save_whole(folder.path(), "global_step1", specs, 7);
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("global_step1", "latest", ".lock"));
  EXPECT_THAT(names_in(folder / "global_step1"), UnorderedElementsAre("manifest.json", "mp_rank_00_model_states.h5",
                                                                      "zero_pp_rank_0_mp_rank_00_optim_states.h5"));
  for (const Verify verify : {Verify::full, Verify::lazy})
    EXPECT_TRUE(sample::all_read_back(Reader(folder.path(), "global_step1", verify), specs, 7));
}

TEST(Checkpoint, AnyRangeReads) {
  TemporaryFolder folder;
  // Larger than a chunk, so that ranges cross chunks, and in columns, so that they cross slices.
  const Spec wide{"model/wide", {1500, 1001}, base::Dtype::f32};
  sample::Held held;
  for (std::int64_t row = 0; row < 1500; ++row) {
    held.add(wide, row * 1001, 300, 1);
    held.add(wide, row * 1001 + 300, 701, 1);
  }
  std::mt19937 random(3);
  std::shuffle(held.slices.begin(), held.slices.end(), random);
  save(*comm::self_group(), {folder.path(), "t"}, held.slices, nullptr);
  for (const Verify verify : {Verify::full, Verify::lazy}) {
    const Reader reader(folder.path(), "t", verify);
    const std::int64_t total = 1500 * 1001;
    for (int i = 0; i < 200; ++i) {
      const auto offset = static_cast<std::int64_t>(random() % static_cast<unsigned>(total));
      const auto most = std::min<std::int64_t>(total - offset, i % 2 == 0 ? 3000 : total);
      ASSERT_TRUE(sample::reads_back(reader, wide, offset,
                                     static_cast<std::int64_t>(random() % static_cast<unsigned>(most + 1)), 1));
    }
    EXPECT_TRUE(sample::reads_back(reader, wide, total, 0, 1));
  }
}

TEST(Checkpoint, ReadRefusesWhatIsntThere) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "t", two, 1);
  const Reader reader(folder.path(), "t");
  float out[30];
  EXPECT_EQ(reader.find("model/x"), nullptr);
  EXPECT_THAT(refusal([&] {
                reader.read("model/x", 0, {out, 1, base::Dtype::f32});
              }),
              HasSubstr("no tensor 'model/x'"));
  EXPECT_THAT(refusal([&] {
                reader.read("model/w", 0, {out, 1, base::Dtype::bf16});
              }),
              HasSubstr("stored as fp32, not bf16"));
  for (const auto& [offset, count] :
       {std::pair{-1L, 1L}, {30L, 1L}, {0L, 31L}, {29L, 2L}, {0L, -1L}, {std::numeric_limits<std::int64_t>::max(), 2L}})
    EXPECT_THAT(refusal([&] {
                  reader.read("model/w", offset, {out, count, base::Dtype::f32});
                }),
                HasSubstr("has 30 elements"));
}

TEST(Checkpoint, AFewThreadsMayReadAtOnce) {
  TemporaryFolder folder;
  const auto specs = sample::all_kinds();
  sample::save_whole(folder.path(), "t", specs, 1);
  const Reader reader(folder.path(), "t", Verify::lazy);
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { good += sample::all_read_back(reader, specs, 1) ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

TEST(Checkpoint, OtherToolsReadTheFilesByName) {
  TemporaryFolder folder;
  const auto specs = sample::all_kinds();
  sample::save_whole(folder.path(), "t", specs, 2);
  const io::Hdf5File model = io::Hdf5File::open(folder / "t/mp_rank_00_model_states.h5");
  const io::Hdf5File optimizer = io::Hdf5File::open(folder / "t/zero_pp_rank_0_mp_rank_00_optim_states.h5");
  EXPECT_EQ(model.datasets().size() + optimizer.datasets().size(), specs.size());
  for (const Spec& spec : specs) {
    const io::Hdf5File& file = spec.name.starts_with("model/") ? model : optimizer;
    EXPECT_EQ(file.type(spec.name), spec.type);
    EXPECT_EQ(file.shape(spec.name), spec.shape);
    EXPECT_EQ(file.integer_attribute(spec.name, "shape"), spec.shape);
    EXPECT_EQ(file.text_attribute(spec.name, "dtype"), base::name_of(spec.type));
    const std::vector<std::byte> expected = sample::bytes_of(spec, 0, sample::numel(spec.shape), 2);
    std::vector<std::byte> out(expected.size());
    file.read(spec.name, 0, {out.data(), sample::numel(spec.shape), spec.type});
    EXPECT_EQ(out, expected) << spec.name;
  }
}

TEST(Checkpoint, StateComesBackExactlyOrIsRefused) {
  TemporaryFolder folder;
  const nlohmann::json state = {{"lr", 0.1 + 0.2},      {"tiny", 5e-324},        {"big", 1.7976931348623157e308},
                                {"seed", ~0ULL},        {"negative", INT64_MIN}, {"text", "a\"\\\n\u20ac"},
                                {"list", {1, 2.5, {}}}, {"none", nullptr},       {"flag", true}};
  const auto group = comm::self_group();
  save(*group, {folder.path(), "t"}, {}, state);
  EXPECT_EQ(Reader(folder.path(), "t").state(), state);
  EXPECT_EQ(Reader(folder.path(), "t").state()["seed"].get<std::uint64_t>(), ~0ULL);
  for (const double bad : {double{INFINITY}, -double{INFINITY}, std::nan("")})
    EXPECT_THAT(refusal([&] {
                  save(*group, {folder.path(), "u"}, {}, {{"scaler", {{"scale", bad}}}});
                }),
                AllOf(HasSubstr("/scaler/scale"), HasSubstr("can't be written as JSON")));
  EXPECT_THAT(refusal([&] { save(*group, {folder.path(), "u"}, {}, {{"text", "\xff"}}); }), HasSubstr("UTF-8"));
  nlohmann::json deep = 1;
  for (int i = 0; i < 100; ++i) deep = nlohmann::json::array({deep});
  EXPECT_THAT(refusal([&] { save(*group, {folder.path(), "u"}, {}, deep); }), HasSubstr("levels deep"));
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("t", "latest", ".lock"));
}

TEST(Checkpoint, SlicesThatDontMakeATensorAreRefusedBeforeAnythingIsWritten) {
  TemporaryFolder folder;
  const fs::path path = folder / "c";
  float data[8] = {};
  const auto saved = [&](std::vector<Slice> slices) {
    return refusal([&] { save(*comm::self_group(), {path, "t"}, slices, nullptr); });
  };
  const auto part = [&](std::int64_t offset, std::int64_t count, std::vector<std::int64_t> shape = {8},
                        base::Dtype type = base::Dtype::f32) {
    return Slice{"model/w", std::move(shape), offset, {data, count, type}};
  };
  EXPECT_THAT(saved({part(0, 4)}), AllOf(HasSubstr("'model/w'"), HasSubstr("only 4 of 8"), HasSubstr("rank 0")));
  EXPECT_THAT(saved({part(0, 5), part(4, 4)}), HasSubstr("model/w"));
  EXPECT_THAT(saved({part(0, 8), part(0, 8)}), HasSubstr("model/w"));
  EXPECT_THAT(saved({part(0, 3), part(4, 4)}), HasSubstr("only 7 of 8"));
  EXPECT_THAT(saved({part(4, 5)}), HasSubstr("beyond its 8 elements"));
  EXPECT_THAT(saved({part(-1, 4)}), HasSubstr("beyond its 8 elements"));
  EXPECT_THAT(saved({part(0, 4), part(4, 4, {4, 2})}), HasSubstr("differ in dtype or shape"));
  EXPECT_THAT(saved({part(0, 4), part(4, 4, {8}, base::Dtype::i32)}), HasSubstr("differ in dtype or shape"));
  EXPECT_THAT(saved({part(0, 4, {-8})}), HasSubstr("can't have the shape [-8]"));
  EXPECT_THAT(saved({Slice{"model/w", {8}, 0, {nullptr, 8, base::Dtype::f32}}}), HasSubstr("has no data"));
  EXPECT_THAT(saved({Slice{"model//w", {8}, 0, {data, 8, base::Dtype::f32}}}), HasSubstr("'model//w'"));
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(saved({part(4, 4), part(0, 4)}), "");
}

TEST(Checkpoint, SavingATagAgainReplacesIt) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "t", two, 1);
  sample::save_whole(folder.path(), "t", sample::all_kinds(), 2);
  EXPECT_TRUE(sample::all_read_back(Reader(folder.path(), "t"), sample::all_kinds(), 2));
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("t", "latest", ".lock"));
  // A folder of that name which isn't a checkpoint is somebody's.
  fs::create_directory(folder / "mine");
  io::write_file_atomically(folder / "mine/thesis.txt", "x");
  EXPECT_THAT(refusal([&] { sample::save_whole(folder.path(), "mine", two, 1); }), HasSubstr("won't be replaced"));
  EXPECT_TRUE(fs::exists(folder / "mine/thesis.txt"));
}

TEST(Checkpoint, AReaderOfAReplacedOrRemovedOneSeesTheOldOrAnError) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "t", two, 1);
  const Reader before(folder.path(), "t");  // its files are open
  sample::save_whole(folder.path(), "t", two, 2);
  EXPECT_TRUE(sample::all_read_back(before, two, 1));
}

TEST(Checkpoint, WhereNamesCantBeExchangedThePreviousIsSetAside) {
  TemporaryFolder folder;
  for (const char* name : {"t", "fresh"}) {
    fs::create_directory(folder / name);
    io::write_file_atomically(folder / name / "f", name);
  }
  const auto earlier = io::replace_folder(folder / "fresh", folder / "t", folder / "t.old-1", false);
  ASSERT_TRUE(earlier);
  EXPECT_EQ(*earlier, folder / "t.old-1");
  EXPECT_EQ(io::read_whole_file(folder / "t/f"), "fresh");
  EXPECT_EQ(io::read_whole_file(folder / "t.old-1/f"), "t");
}

TEST(Checkpoint, ACutBetweenTheTwoRenamesStillLoadsAndIsMended) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "t5", two, 5);
  fs::rename(folder / "t5", folder / "t5.old-1");
  fs::create_directory(folder / "t5.tmp-1-1");
  EXPECT_EQ(latest_tag(folder.path()), "t5");
  EXPECT_TRUE(sample::all_read_back(Reader(folder.path(), "t5"), two, 5));
  EXPECT_EQ(newest_good(folder.path()), "t5");
  sample::save_whole(folder.path(), "t6", two, 6);
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("t5", "t6", "latest", ".lock"));
  EXPECT_TRUE(sample::all_read_back(Reader(folder.path(), "t5"), two, 5));
}

TEST(Checkpoint, KeepLastRemovesTheOldestOfTheSeries) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "best", two, 1);
  for (const int step : {8, 9, 10, 11})
    sample::save_whole(folder.path(), "global_step" + std::to_string(step), two, 1, 0);
  sample::save_whole(folder.path(), "global_step12", two, 1, 3);
  EXPECT_THAT(list_tags(folder.path()), ElementsAre("best", "global_step10", "global_step11", "global_step12"));
  // Damaged ones are neither counted nor removed; what `latest` names stays.
  fs::remove(folder / "global_step11/manifest.json");
  SaveOptions options{folder.path(), "global_step13"};
  options.save_latest = false;
  options.keep_last = 1;
  save(*comm::self_group(), options, {}, nullptr);
  EXPECT_THAT(list_tags(folder.path()), ElementsAre("best", "global_step11", "global_step12", "global_step13"));
  EXPECT_EQ(latest_tag(folder.path()), "global_step12");
}

TEST(Checkpoint, LeftoversOfDeadSavesAreRemoved) {
  TemporaryFolder folder;
  fs::create_directories(folder / "t.tmp-1-1");
  io::write_file_atomically(folder / "t.tmp-1-1/mp_rank_00_model_states.h5", "half");
  io::write_file_atomically(folder / ".latest.tmp-1-0", "");
  sample::save_whole(folder.path(), "u", two, 1);
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("u", "latest", ".lock"));
}

TEST(Checkpoint, EqualSavesGiveEqualFiles) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "a", sample::all_kinds(), 1);
  sample::save_whole(folder.path(), "b", sample::all_kinds(), 1);
  for (const char* name : {"mp_rank_00_model_states.h5", "zero_pp_rank_0_mp_rank_00_optim_states.h5"})
    EXPECT_EQ(io::read_whole_file(folder / "a" / name), io::read_whole_file(folder / "b" / name));
}

TEST(Checkpoint, CheckFolderTellsEarly) {
  TemporaryFolder folder;
  check_folder(folder / "new/checkpoints", 1000);
  EXPECT_TRUE(fs::is_empty(folder / "new/checkpoints"));
  EXPECT_THAT(refusal([&] { check_folder(folder.path(), std::uint64_t{1} << 60); }),
              AllOf(HasSubstr("a checkpoint needs 1.0 EiB"), HasSubstr("No space left on device")));
  io::write_file_atomically(folder / "file", "");
  EXPECT_THAT(refusal([&] { check_folder(folder / "file/x", 1); }), HasSubstr("Not a directory"));
}

/// Runs `body` in a child process, so that limits and mounts don't stay; returns what it throws.
std::string in_child(const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string message;
    try {
      body();
    } catch (const std::exception& error) {
      message = error.what();
    }
    const ssize_t ignored = ::write(ends[1], message.data(), message.size());
    ::_exit(ignored < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  std::string message;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    message.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? message : "the child died: " + message;
}

/// What was there before a save that failed is whole, and nothing else is there.
void expect_untouched(const fs::path& folder, const std::vector<Spec>& specs) {
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("global_step5", "latest", ".lock"));
  EXPECT_EQ(latest_tag(folder), "global_step5");
  EXPECT_TRUE(sample::all_read_back(Reader(folder, "global_step5"), specs, 5));
}

const std::vector<Spec> ten_megabytes = {{"model/w", {1024, 1024}, base::Dtype::f32},
                                         {"optimizer/m", {1500, 1024}, base::Dtype::f32}};

// C17: the limit on a file's size fails a write at any moment, as a full disk does.
TEST(Checkpoint, AWriteThatFailsLeavesWhatWasThere) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "global_step5", ten_megabytes, 5);
  for (const rlim_t limit : {100UL, 3000UL, 70000UL, 2000000UL, 4300000UL}) {
    const std::string message = in_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit size{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &size);
      sample::save_whole(folder.path(), "global_step10", ten_megabytes, 10);
    });
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0"), HasSubstr(folder.path().string()), HasSubstr("File too large")))
        << limit;
    expect_untouched(folder.path(), ten_megabytes);
  }
}

TEST(Checkpoint, AFullDiskIsToldEarlyAndLate) {
  TemporaryFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=16m") != 0)
    GTEST_SKIP() << "a tmpfs can't be mounted here";
  // Unmounted however the test ends.
  const std::shared_ptr<void> mounted(nullptr, [&](void*) { ::umount(folder.path().c_str()); });
  sample::save_whole(folder.path(), "global_step5", ten_megabytes, 5);
  EXPECT_THAT(refusal([&] { sample::save_whole(folder.path(), "global_step10", ten_megabytes, 10); }),
              AllOf(HasSubstr("No space left on device"), HasSubstr("needs 10."), HasSubstr(folder.path().string())));
  expect_untouched(folder.path(), ten_megabytes);
  // Without the early look the write itself fails.
  sample::Held held;
  for (const Spec& spec : ten_megabytes) held.add(spec, 0, sample::numel(spec.shape), 10);
  SaveOptions options{folder.path(), "global_step10"};
  options.check_free_space = false;
  EXPECT_THAT(refusal([&] { save(*comm::self_group(), options, held.slices, nullptr); }),
              AllOf(HasSubstr("No space left on device"), HasSubstr("rank 0"), HasSubstr("global_step10")));
  expect_untouched(folder.path(), ten_megabytes);
}

TEST(Checkpoint, APlaceThatCantBeWritten) {
  TemporaryFolder folder;
  io::write_file_atomically(folder / "file", "");
  EXPECT_THAT(refusal([&] { sample::save_whole(folder / "file", "t", two, 1); }),
              AllOf(HasSubstr((folder / "file").string()), HasSubstr("Not a directory")));
  sample::save_whole(folder / "c", "global_step5", two, 5);
  ::chmod((folder / "c").c_str(), 0555);
  const std::string message = in_child([&] {
    if (::getuid() == 0 && ::setuid(65534) != 0) throw base::CheckpointError("setuid");
    ::chmod(folder.path().c_str(), 0755);
    sample::save_whole(folder / "c", "global_step10", two, 10);
  });
  ::chmod((folder / "c").c_str(), 0755);
  EXPECT_THAT(message, HasSubstr("Permission denied"));
  expect_untouched(folder / "c", two);
}

TEST(Checkpoint, TwoRunsInOneFolderAreRefused) {
  TemporaryFolder folder;
  sample::save_whole(folder.path(), "global_step5", two, 5);
  const io::Descriptor other(::open((folder / ".lock").c_str(), O_RDWR));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT(refusal([&] { sample::save_whole(folder.path(), "global_step6", two, 6); }),
              HasSubstr("another run is saving"));
  expect_untouched(folder.path(), two);
}

}  // namespace
}  // namespace deepspeed::checkpoint
