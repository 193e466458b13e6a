// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace deepspeed::io {
namespace {

namespace fs = std::filesystem;
using base::Dtype;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

void write_raw(const fs::path& path, std::uint64_t offset, Bytes bytes) {
  const Descriptor file(::open(path.c_str(), O_WRONLY));
  write_at(file.get(), bytes, offset, path);
}

TEST(Hdf5, EveryTypeWrittenBehindItsBackReadsBack) {
  TemporaryFolder folder;
  const fs::path path = folder / "f.h5";
  const std::vector types{Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i64,
                          Dtype::i32, Dtype::i16, Dtype::i8,  Dtype::u8,   Dtype::boolean};
  std::vector<std::uint64_t> offsets;
  {
    Hdf5File file = Hdf5File::create(path);
    for (const Dtype type : types) file.create_dataset(fmt::format("g/{}", base::name_of(type)), type, {3, 5});
    for (const Dtype type : types) offsets.push_back(file.offset(fmt::format("g/{}", base::name_of(type))));
    file.close();
  }
  std::vector<std::vector<std::byte>> data;
  for (std::size_t i = 0; i < types.size(); ++i) {
    EXPECT_EQ(offsets[i] % 4096, 0U);
    data.emplace_back(15 * base::size_of(types[i]));
    for (std::size_t k = 0; k < data[i].size(); ++k)
      data[i][k] = static_cast<std::byte>(types[i] == Dtype::boolean ? k % 2 : k);
    write_raw(path, offsets[i], data[i]);
  }
  const Hdf5File file = Hdf5File::open(path);
  EXPECT_EQ(file.datasets().size(), types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::string name = fmt::format("g/{}", base::name_of(types[i]));
    EXPECT_EQ(file.type(name), types[i]);
    EXPECT_THAT(file.shape(name), ElementsAre(3, 5));
    std::vector<std::byte> out(data[i].size());
    file.read(name, 0, {out.data(), 15, types[i]});
    EXPECT_EQ(out, data[i]) << name;
  }
}

TEST(Hdf5, AnyRunOfElementsOfAnyShape) {
  TemporaryFolder folder;
  const fs::path path = folder / "f.h5";
  std::vector<std::int32_t> values(2 * 3 * 4 * 5);
  std::iota(values.begin(), values.end(), 0);
  std::uint64_t offset = 0;
  {
    Hdf5File file = Hdf5File::create(path);
    file.create_dataset("x", Dtype::i32, {2, 3, 4, 5});
    offset = file.offset("x");
    file.close();
  }
  write_raw(path, offset, std::as_bytes(std::span(values)));
  const Hdf5File file = Hdf5File::open(path);
  const auto total = static_cast<std::int64_t>(values.size());
  for (std::int64_t start = 0; start <= total; ++start) {
    for (std::int64_t count = 0; start + count <= total; ++count) {
      std::vector<std::int64_t> out(static_cast<std::size_t>(count), -1);  // converted to 64 bits on the way
      file.read("x", start, {out.data(), count, Dtype::i64});
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(out[static_cast<std::size_t>(i)], start + i) << start << " " << count;
    }
  }
  std::int32_t one = 0;
  EXPECT_THROW(file.read("x", total, {&one, 1, Dtype::i32}), base::IoError);
  EXPECT_THROW(file.read("x", -1, {&one, 1, Dtype::i32}), base::IoError);
}

TEST(Hdf5, EmptyScalarAndLargeAttributes) {
  TemporaryFolder folder;
  const fs::path path = folder / "f.h5";
  std::vector<std::int64_t> many(20000);  // 160 KB: beyond what an object header holds
  std::iota(many.begin(), many.end(), 0);
  {
    Hdf5File file = Hdf5File::create(path);
    file.create_dataset("empty", Dtype::f32, {0, 4});
    file.create_dataset("scalar", Dtype::f32, {});
    EXPECT_THROW(file.offset("empty"), base::IoError);
    EXPECT_GT(file.offset("scalar"), 0U);
    file.set_attribute("scalar", "shape", std::vector<std::int64_t>{});
    file.set_attribute("scalar", "runs", many, 4);
    file.set_attribute("/", "format", "ünïcode");
    file.close();
  }
  const Hdf5File file = Hdf5File::open(path);
  EXPECT_TRUE(file.shape("scalar").empty());
  EXPECT_THAT(file.shape("empty"), ElementsAre(0, 4));
  EXPECT_EQ(file.integer_attribute("scalar", "runs"), many);
  EXPECT_TRUE(file.integer_attribute("scalar", "shape").empty());
  EXPECT_EQ(file.text_attribute("/", "format"), "ünïcode");
  file.read("empty", 0, {nullptr, 0, Dtype::f32});
}

TEST(Hdf5, EqualContentGivesEqualFiles) {
  TemporaryFolder folder;
  for (const char* name : {"a.h5", "b.h5"}) {
    Hdf5File file = Hdf5File::create(folder / name);
    file.create_dataset("model/deeper/w", Dtype::bf16, {7});
    file.create_dataset("model/v", Dtype::bf16, {7});
    file.set_attribute("model/deeper/w", "dtype", "bf16");
    file.close();
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // a time stamp would differ by a second
  }
  EXPECT_EQ(read_whole_file(folder / "a.h5"), read_whole_file(folder / "b.h5"));
}

TEST(Hdf5, RoomForDataCostsNothingUntilItIsWritten) {
  TemporaryFolder folder;
  {
    Hdf5File file = Hdf5File::create(folder / "huge.h5");
    file.create_dataset("a", Dtype::f32, {std::int64_t{1} << 34});  // 64 GiB
    file.create_dataset("b", Dtype::f32, {3});
    EXPECT_FALSE(fs::exists(folder / "huge.h5"));
    file.close();
  }
  EXPECT_GT(fs::file_size(folder / "huge.h5"), std::uint64_t{1} << 36);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "huge.h5").c_str(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
  EXPECT_THAT(Hdf5File::open(folder / "huge.h5").datasets(), ElementsAre("a", "b"));
  { Hdf5File::create(folder / "never.h5").create_dataset("a", Dtype::f32, {3}); }
  EXPECT_FALSE(fs::exists(folder / "never.h5"));
}

TEST(Hdf5, ErrorsCarryTheLibrarysWordsAndPrintNothing) {
  TemporaryFolder folder;
  write_file_atomically(folder / "no.h5", "not HDF5 at all");
  testing::internal::CaptureStderr();
  std::string message;
  try {
    Hdf5File::open(folder / "no.h5");
  } catch (const base::IoError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, testing::AllOf(HasSubstr((folder / "no.h5").string()), HasSubstr("file signature not found")));
  message.clear();
  try {
    Hdf5File::create(folder / "no.h5").close();
  } catch (const base::IoError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("File exists"));
  {
    Hdf5File file = Hdf5File::create(folder / "yes.h5");
    EXPECT_THROW(file.shape("none"), base::IoError);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace deepspeed::io
