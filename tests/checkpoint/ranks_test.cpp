// SPDX-License-Identifier: Apache-2.0
// What several ranks save, any number of ranks reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sample.h"
#include "comm/process.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace deepspeed::checkpoint {
namespace {

namespace fs = std::filesystem;
using sample::refusal;
using sample::Spec;
using testing::AllOf;
using testing::HasSubstr;

class CheckpointRanks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static int argc = 0;
    static char** argv = nullptr;
    process = std::make_unique<comm::Process>(&argc, &argv);
  }
  static void TearDownTestSuite() { process.reset(); }
  void SetUp() override {
    world = process->world();
    if (world->rank() == 0) own.emplace();
    path = world->broadcast_text(own ? own->path().string() : "", 0);
  }
  void TearDown() override { world->barrier().wait(); }

  static std::unique_ptr<comm::Process> process;
  std::shared_ptr<comm::Group> world;
  std::optional<testing_support::TemporaryFolder> own;
  fs::path path;
};
std::unique_ptr<comm::Process> CheckpointRanks::process;

TEST_F(CheckpointRanks, SavedOnAnyNumberReadOnAnyNumber) {
  const auto specs = sample::all_kinds();
  for (int savers = 1; savers <= world->size(); ++savers) {
    const std::string tag = "from" + std::to_string(savers);
    const auto group = world->split(world->rank() < savers ? 0 : 1, world->rank(), "savers");
    if (world->rank() < savers) {
      const sample::Held held = sample::deal(specs, group->rank(), savers, 3, static_cast<unsigned>(savers));
      save(*group, {path, tag}, held.slices, {{"version", 3}});
    }
    world->barrier().wait();
    for (int readers = 1; readers <= world->size(); ++readers) {
      const auto some = world->split(world->rank() < readers ? 0 : 1, world->rank(), "readers");
      if (world->rank() >= readers) continue;
      const Reader reader = Reader::open(*some, path, tag);
      EXPECT_EQ(reader.tensors().size(), specs.size());
      // Each reader takes an uneven share of every tensor, and rank 0 the whole besides.
      for (const Spec& spec : specs) {
        const std::int64_t total = sample::numel(spec.shape);
        const std::int64_t share = (total + readers - 1) / readers;
        const std::int64_t begin = std::min(total, share * some->rank());
        EXPECT_TRUE(sample::reads_back(reader, spec, begin, std::min(total, begin + share) - begin, 3)) << spec.name;
      }
      EXPECT_TRUE(some->rank() > 0 || sample::all_read_back(reader, specs, 3));
    }
  }
}

TEST_F(CheckpointRanks, FilesHaveDeepSpeedsNames) {
  const Spec w{"model/w", {101}, base::Dtype::f32}, m{"optimizer/m", {101}, base::Dtype::f32};
  const int ranks = world->size(), rank = world->rank();
  const std::int64_t begin = 101 * rank / ranks, end = 101 * (rank + 1) / ranks;
  // Replicated weights are rank 0's to save; states are sharded.
  sample::Held replicated, sharded;
  if (rank == 0) replicated.add(w, 0, 101, 1);
  replicated.add(m, begin, end - begin, 1);
  save(*world, {path, "zero1"}, replicated.slices, nullptr);
  sharded.add(w, begin, end - begin, 1);
  sharded.add(m, begin, end - begin, 1);
  save(*world, {path, "zero3"}, sharded.slices, nullptr);
  EXPECT_TRUE(fs::exists(path / "zero1/mp_rank_00_model_states.h5"));
  for (int r = 0; r < ranks; ++r) {
    const std::string begins = "zero_pp_rank_" + std::to_string(r) + "_mp_rank_00_";
    EXPECT_TRUE(fs::exists(path / "zero1" / (begins + "optim_states.h5")));
    EXPECT_FALSE(fs::exists(path / "zero1" / (begins + "model_states.h5")));
    EXPECT_TRUE(fs::exists(path / "zero3" / (begins + "optim_states.h5")));
    EXPECT_EQ(fs::exists(path / "zero3" / (begins + "model_states.h5")), ranks > 1);
  }
}

// C19: 12 shards of a row 0, 1, ..., 1199 come back in order, however many ranks hold them.
TEST_F(CheckpointRanks, TwelveShardsComeBackInOrder) {
  std::vector<float> row(1200);
  std::iota(row.begin(), row.end(), 0.0F);
  for (const char* tag : {"global_step10", "global_step9"}) {
    std::vector<Slice> slices;
    for (int shard = 11; shard >= 0; --shard)
      if (shard % world->size() == world->rank())
        slices.push_back({"model/row", {1200}, shard * 100, {row.data() + shard * 100, 100, base::Dtype::f32}});
    save(*world, {path, tag}, slices, nullptr);
  }
  EXPECT_EQ(newest_good(path), "global_step10");
  std::vector<float> out(1200);
  Reader::open(*world, path, "global_step10").read("model/row", 0, {out.data(), 1200, base::Dtype::f32});
  EXPECT_EQ(out, row);
}

TEST_F(CheckpointRanks, ColumnsAreKeptAsOneRun) {
  // A matrix split by columns, as tensor parallel layers do.
  const Spec w{"model/w", {50, 12}, base::Dtype::bf16};
  const std::int64_t width = 12 / world->size();
  sample::Held held;
  for (std::int64_t row = 0; row < 50; ++row) held.add(w, row * 12 + width * world->rank(), width, 4);
  save(*world, {path, "t"}, held.slices, {{"version", 4}});
  for (const Part& part : read_manifest(path / "t").tensors.at("model/w").parts) EXPECT_EQ(part.runs.size(), 1U);
  EXPECT_TRUE(sample::all_read_back(Reader(path, "t"), {w}, 4));
}

TEST_F(CheckpointRanks, RanksThatDisagreeAreRefusedTogether) {
  const int last = world->size() - 1;
  const bool odd_one = world->rank() == last && last > 0;
  const Spec w{"model/w", {10}, base::Dtype::f32};
  sample::Held held;
  if (world->rank() == 0) held.add(w, 0, 10, 1);
  if (odd_one) held.add(w, 9, 1, 1);
  const std::string twice = refusal([&] { save(*world, {path, "t"}, held.slices, nullptr); });
  const std::string tags = refusal([&] { save(*world, {path, odd_one ? "other" : "t"}, {}, nullptr); });
  const std::string bad = refusal([&] {
    const float x = 0;
    save(*world, {path, "u"}, {{odd_one ? "a//b" : "a", {0}, 0, {&x, 0, base::Dtype::f32}}}, nullptr);
  });
  if (last == 0) return;
  EXPECT_THAT(twice, HasSubstr("model/w"));
  EXPECT_THAT(tags, HasSubstr("rank " + std::to_string(last)));
  EXPECT_THAT(bad, AllOf(HasSubstr("rank " + std::to_string(last)), HasSubstr("'a//b'")));
  for (const std::string& text : {twice, tags, bad})
    for (const std::string& other : world->all_gather_text(text)) EXPECT_EQ(other, text);
}

// C17: only one rank's write fails; all are told, nothing of the new tag is left, the old one is whole.
TEST_F(CheckpointRanks, OneRankThatCantWriteFailsAll) {
  const std::vector<Spec> specs = {{"model/w", {300000}, base::Dtype::f32},
                                   {"optimizer/m", {300000}, base::Dtype::f32}};
  const int ranks = world->size(), failing = ranks - 1;
  const auto held = [&](std::uint64_t version) {
    sample::Held out;
    const std::int64_t begin = 300000L * world->rank() / ranks, end = 300000L * (world->rank() + 1) / ranks;
    for (const Spec& spec : specs) out.add(spec, begin, end - begin, version);
    return out;
  };
  save(*world, {path, "global_step5"}, held(5).slices, {{"version", 5}});
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{200000, before.rlim_max};
  if (world->rank() == failing) ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = refusal([&] {
    save(*world, {path, "global_step10"}, held(10).slices, {{"version", 10}});
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, AllOf(HasSubstr("rank " + std::to_string(failing)), HasSubstr("File too large"),
                             HasSubstr("global_step10")));
  world->barrier().wait();
  EXPECT_THAT(list_tags(path), testing::ElementsAre("global_step5"));
  EXPECT_EQ(latest_tag(path), "global_step5");
  EXPECT_TRUE(sample::all_read_back(Reader(path, "global_step5"), specs, 5));
  world->barrier().wait();
  save(*world, {path, "global_step10"}, held(10).slices, {{"version", 10}});
  EXPECT_TRUE(sample::all_read_back(Reader(path, "global_step10"), specs, 10));
}

TEST_F(CheckpointRanks, DamageThatOneRankFindsIsToldByAll) {
  const std::vector<Spec> specs = {{"model/w", {3001}, base::Dtype::f32}, {"optimizer/m", {3001}, base::Dtype::f32}};
  for (const int step : {5, 10})
    save(*world, {path, "global_step" + std::to_string(step)},
         sample::deal(specs, world->rank(), world->size(), static_cast<std::uint64_t>(step)).slices,
         {{"version", step}});
  const std::string file = "zero_pp_rank_" + std::to_string(world->size() - 1) + "_mp_rank_00_optim_states.h5";
  if (world->rank() == 0) {
    std::string bytes = io::read_whole_file(path / "global_step10" / file);
    const Manifest manifest = read_manifest(path / "global_step10");
    for (const Part& part : manifest.tensors.at("optimizer/m").parts)
      if (manifest.files[part.file].name == file) bytes[part.position] ^= 1;
    io::write_file_atomically(path / "global_step10" / file, bytes);
  }
  world->barrier().wait();
  const std::string message = refusal([&] { Reader::open(*world, path, "global_step10"); });
  EXPECT_THAT(message, AllOf(HasSubstr(file), HasSubstr("'optimizer/m'"), HasSubstr("global_step5")));
  const auto reader = Reader::open_newest(*world, path);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->tag(), "global_step5");
  EXPECT_TRUE(sample::all_read_back(*reader, specs, 5));
  EXPECT_FALSE(Reader::open_newest(*world, path / "none"));
}

}  // namespace
}  // namespace deepspeed::checkpoint
