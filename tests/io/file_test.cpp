// SPDX-License-Identifier: Apache-2.0
#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/checksum.h"
#include "io/strict_json.h"
#include "support/temporary_folder.h"

namespace deepspeed::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

/// What an expression throws, as text; "" if nothing.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const base::Error& error) {
    return error.what();
  }
  return "";
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(File, AtomicWriteReplacesAndLeavesNoTemporary) {
  TemporaryFolder folder;
  write_file_atomically(folder / "latest", "global_step9");
  EXPECT_EQ(read_whole_file(folder / "latest"), "global_step9");
  write_file_atomically(folder / "latest", "");
  EXPECT_EQ(read_whole_file(folder / "latest"), "");
  EXPECT_EQ(entries(folder.path()), 1U);
}

TEST(File, AnUncommittedFileNeverAppears) {
  TemporaryFolder folder;
  write_file_atomically(folder / "f", "old");
  {
    PendingFile file(folder / "f");
    write_at(file.descriptor(), std::as_bytes(std::span("new")), 0, file.path());
    EXPECT_EQ(read_whole_file(folder / "f"), "old");
  }
  EXPECT_EQ(read_whole_file(folder / "f"), "old");
  EXPECT_EQ(entries(folder.path()), 1U);
}

TEST(File, ErrorsNameThePathAndTheSystemsWords) {
  TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { read_whole_file(folder / "none"); }),
              testing::AllOf(HasSubstr((folder / "none").string()), HasSubstr("No such file or directory")));
  EXPECT_THAT(message_of([&] { read_whole_file(folder.path()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(message_of([&] { write_file_atomically(folder / "no/f", ""); }), HasSubstr("No such file"));
  // A pipe without a writer must not make the reader wait.
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { read_whole_file(folder / "pipe"); }), HasSubstr("isn't a regular file"));
  write_file_atomically(folder / "big", std::string(100, 'x'));
  EXPECT_THAT(message_of([&] { read_whole_file(folder / "big", 99); }), HasSubstr("100 bytes; at most 99"));
}

TEST(File, ReadBeyondTheEndSaysWhere) {
  TemporaryFolder folder;
  write_file_atomically(folder / "f", "12345");
  const Descriptor file = open_to_read(folder / "f");
  std::array<std::byte, 4> out{};
  EXPECT_THAT(message_of([&] { read_at(file.get(), out, 3, folder / "f"); }), HasSubstr("ends at byte 5"));
}

TEST(File, GatheredWriteOfManyPieces) {
  TemporaryFolder folder;
  std::string expected = "ab";
  std::vector<std::string> pieces;
  for (int i = 0; i < 1000; ++i)
    pieces.push_back(std::string(static_cast<std::size_t>(i % 7), static_cast<char>('a' + i % 26)));
  std::vector<Bytes> views;
  for (const std::string& piece : pieces) {
    views.push_back(std::as_bytes(std::span(piece)));
    expected += piece;
  }
  PendingFile file(folder / "f");
  write_at(file.descriptor(), std::as_bytes(std::span(expected).first(2)), 0, file.path());
  write_at(file.descriptor(), views, 2, file.path());
  file.commit();
  EXPECT_EQ(read_whole_file(folder / "f"), expected);
}

TEST(File, MapOfFilesOfAnySize) {
  TemporaryFolder folder;
  for (const std::size_t size : {0U, 1U, 4096U, 4097U}) {
    const std::string text(size, 'z');
    write_file_atomically(folder / "f", text);
    Mapping map(folder / "f");
    Mapping moved = std::move(map);
    ASSERT_EQ(moved.size(), size);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(moved.data()), moved.size()), text);
  }
}

TEST(File, PlainNames) {
  EXPECT_TRUE(is_plain_name("model-00001-of-00002.safetensors"));
  for (const std::string name : {"", ".", "..", "a/b", "/a", "a\n", "a\x7f"}) EXPECT_FALSE(is_plain_name(name)) << name;
  EXPECT_FALSE(is_plain_name(std::string("a\0b", 3)));
  EXPECT_FALSE(is_plain_name(std::string(256, 'a')));
  EXPECT_EQ(in_quotes("a\nb"), "'a\\x0ab'");
}

TEST(Checksum, PublishedValuesAndPieces) {
  // The empty input's digests are in the xxHash specification's reference output.
  EXPECT_EQ(xxh3_64_hex({}), "2d06800538d394c2");
  EXPECT_EQ(xxh3_128_hex({}), "99aa06d3014798d86001c324468d497f");
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  const Bytes bytes = std::as_bytes(std::span(text));
  Xxh3 pieces;
  for (std::size_t at = 0; at < bytes.size(); at += 333)
    pieces.add(bytes.subspan(at, std::min<std::size_t>(333, bytes.size() - at)));
  EXPECT_EQ(pieces.hex_64(), xxh3_64_hex(bytes));
  EXPECT_EQ(pieces.hex_128(), xxh3_128_hex(bytes));
}

TEST(StrictJson, RefusesWhatJsonReadersLetPass) {
  EXPECT_EQ(parse_strict_json(R"({"a": [1, {"a": 2}], "b": 1})", "f")["a"][1]["a"], 2);
  EXPECT_THAT(message_of([] { parse_strict_json(R"({"a": 1, "\u0061": 2})", "f"); }),
              HasSubstr("f has the name 'a' twice"));
  EXPECT_THAT(message_of([] { parse_strict_json("\xEF\xBB\xBF{}", "f"); }), HasSubstr("byte-order mark"));
  EXPECT_THAT(message_of([] { parse_strict_json("{} x", "f"); }), HasSubstr("isn't valid JSON at byte 4"));
  EXPECT_THAT(message_of([] { parse_strict_json("[1e999]", "f"); }), HasSubstr("out of range"));
  EXPECT_THAT(message_of([] { parse_strict_json(std::string(100000, '['), "f"); }), HasSubstr("more than 32 levels"));
  std::int64_t value = 0;
  EXPECT_TRUE(to_size(nlohmann::json::parse("9223372036854775807"), value));
  for (const char* text : {"-1", "1.0", "9223372036854775808", "99999999999999999999", "\"1\"", "true", "null"})
    EXPECT_FALSE(to_size(nlohmann::json::parse(text), value)) << text;
}

}  // namespace
}  // namespace deepspeed::io
