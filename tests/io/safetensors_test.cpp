// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace deepspeed::io {
namespace {

namespace fs = std::filesystem;
using base::Dtype;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

const fs::path reference = fs::path(DS_TEST_DATA) / "io/reference.safetensors";

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const base::DataError& error) {
    return error.what();
  }
  return "";
}

std::string file_of(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string refusal(const std::string& bytes) {
  return message_of([&] { SafeTensors::from_memory(std::as_bytes(std::span(bytes)), "m.safetensors"); });
}

/// Owns the data of tensors to write.
struct Made {
  std::vector<std::vector<char>> memory;
  std::vector<NamedTensor> tensors;
  void add(const std::string& name, std::vector<std::int64_t> shape, Dtype type) {
    const std::int64_t numel = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<char> bytes(static_cast<std::size_t>(numel) * base::size_of(type));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + memory.size());
    memory.push_back(std::move(bytes));
    tensors.push_back({name, std::move(shape), {memory.back().data(), numel, type}});
  }
};

void expect_same(const NamedTensor& got, const NamedTensor& want) {
  EXPECT_EQ(got.name, want.name);
  EXPECT_EQ(got.shape, want.shape);
  EXPECT_EQ(got.data.type, want.data.type);
  ASSERT_EQ(got.data.bytes(), want.data.bytes());
  const auto bytes = [](const NamedTensor& t) {
    return std::string_view(static_cast<const char*>(t.data.data), t.data.bytes());
  };
  EXPECT_EQ(bytes(got), bytes(want)) << got.name;
}

TEST(SafeTensors, ReadsTheReferenceImplementationsFile) {
  const SafeTensors file(reference);
  EXPECT_EQ(file.tensors().size(), 11U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const NamedTensor& ids = file.at("ids");
  EXPECT_THAT(ids.shape, ElementsAre(7));
  ASSERT_EQ(ids.data.type, Dtype::i64);
  ASSERT_TRUE(is_aligned(ids.data));
  EXPECT_EQ(static_cast<const std::int64_t*>(ids.data.data)[6], 3);
  EXPECT_TRUE(file.at("a.scale").shape.empty());
  EXPECT_EQ(*static_cast<const double*>(file.at("a.scale").data.data), 2.5);
  EXPECT_EQ(file.at("empty").data.numel, 0);
  EXPECT_EQ(file.at("bf").data.type, Dtype::bf16);
  EXPECT_EQ(static_cast<const std::uint16_t*>(file.at("bf").data.data)[1], 0xC000);
  EXPECT_EQ(file.at("mask").data.type, Dtype::boolean);
  EXPECT_EQ(file.find("nope"), nullptr);
  EXPECT_THAT(message_of([&] { file.at("i"); }), AllOf(HasSubstr("no tensor 'i'"), HasSubstr("'i16'")));
}

TEST(SafeTensors, WritesTheSameBytesAsTheReferenceImplementation) {
  const SafeTensors file(reference);
  TemporaryFolder folder;
  write_safetensors(folder / "m.safetensors", file.tensors(), file.metadata());
  EXPECT_EQ(read_whole_file(folder / "m.safetensors"), read_whole_file(reference));
}

TEST(SafeTensors, EveryDtypeAndOddSizeRoundTrips) {
  Made made;
  int i = 0;
  for (const Dtype type : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i64, Dtype::i32, Dtype::i16,
                           Dtype::i8, Dtype::u8, Dtype::boolean})
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {0}, {1}, {3}, {5, 0, 7}, {3, 1, 5}, {257}})
      made.add(fmt::format("t{}", i++), shape, type);
  TemporaryFolder folder;
  write_model(folder.path(), made.tensors);
  const SafeTensors file(folder.path());
  EXPECT_EQ(file.path().filename(), "model.safetensors");
  ASSERT_EQ(file.tensors().size(), made.tensors.size());
  for (const NamedTensor& tensor : made.tensors) expect_same(file.at(tensor.name), tensor);
}

TEST(SafeTensors, ShardsAsTheHubSplits) {
  Made made;
  made.add("a", {10}, Dtype::f32);    // 40
  made.add("b", {5}, Dtype::f32);     // 20: fits in the first 64 with a
  made.add("big", {50}, Dtype::f32);  // 200: a file of its own
  made.add("c", {1}, Dtype::f32);     // 4: joins a and b
  made.add("d", {16}, Dtype::f32);    // 64
  const ShardPlan plan = plan_shards(made.tensors, 64);
  ASSERT_EQ(plan.files.size(), 3U);
  EXPECT_EQ(plan.files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.files[0].tensors.size(), 1U);
  EXPECT_EQ(plan.files[1].tensors.size(), 3U);
  EXPECT_EQ(plan.total_bytes, 328U);
  TemporaryFolder folder;
  write_model(folder.path(), made.tensors, 64);
  const SafeTensors file(folder.path());
  EXPECT_EQ(file.path().filename(), "model.safetensors.index.json");
  ASSERT_EQ(file.tensors().size(), 5U);
  for (const NamedTensor& tensor : made.tensors) expect_same(file.at(tensor.name), tensor);
  // A smaller model in its place leaves no shard of the old one, and the other way round no single file.
  Made small;
  small.add("x", {2}, Dtype::f32);
  write_model(folder.path(), small.tensors);
  EXPECT_EQ(SafeTensors(folder.path()).tensors().size(), 1U);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  write_model(folder.path(), made.tensors, 64);
  EXPECT_EQ(SafeTensors(folder.path()).tensors().size(), 5U);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 4);
}

TEST(SafeTensors, TensorsOneByOneInAnyOrder) {
  Made made;
  made.add("a", {3}, Dtype::f32);
  made.add("b", {0}, Dtype::f32);
  made.add("c", {2}, Dtype::bf16);
  TemporaryFolder folder;
  {
    ModelWriter writer(folder.path(), made.tensors);
    writer.write("c", made.tensors[2].data);
    EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("'a' was announced but never written"));
    EXPECT_THAT(message_of([&] { writer.write("d", made.tensors[2].data); }), HasSubstr("'d' wasn't announced"));
    EXPECT_THAT(message_of([&] { writer.write("a", made.tensors[2].data); }), HasSubstr("3 elements of fp32"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  ModelWriter writer(folder.path(), made.tensors);
  writer.write("c", made.tensors[2].data);
  writer.write("a", made.tensors[0].data);
  writer.commit();
  expect_same(SafeTensors(folder.path()).at("a"), made.tensors[0]);
}

TEST(SafeTensors, WriterRefusesBadNamesAndShapes) {
  TemporaryFolder folder;
  const auto refused = [&](const std::vector<NamedTensor>& tensors) {
    return message_of([&] { write_safetensors(folder / "m.safetensors", tensors); });
  };
  const float one = 1;
  const base::ConstBuffer data{&one, 1, Dtype::f32};
  EXPECT_THAT(refused({{"", {1}, data}}), HasSubstr("empty name"));
  EXPECT_THAT(refused({{"a\n", {1}, data}}), HasSubstr("control character"));
  EXPECT_THAT(refused({{"a", {1}, data}, {"a", {1}, data}}), HasSubstr("two tensors would be called 'a'"));
  EXPECT_THAT(refused({{"__metadata__", {1}, data}}), HasSubstr("__metadata__"));
  EXPECT_THAT(refused({{"a", {2}, data}}), HasSubstr("is given 1 elements"));
  EXPECT_THAT(refused({{"a", {-1, -1}, data}}), HasSubstr("can't have the shape [-1, -1]"));
  EXPECT_THAT(refused({{"\xff", {1}, data}}), HasSubstr("UTF-8"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SafeTensorsHostile, HeaderLength) {
  EXPECT_THAT(refusal(""), HasSubstr("too few"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("too few"));
  EXPECT_THAT(refusal(std::string(8, '\xff')), HasSubstr("beyond the limit"));
  EXPECT_THAT(refusal(file_of("{}").substr(0, 9)), HasSubstr("should have 2 bytes, but the file ends after 1"));
  EXPECT_THAT(refusal(std::string(8, '\0')), HasSubstr("doesn't begin with '{'"));
  EXPECT_EQ(refusal(file_of("{}")), "");
  EXPECT_EQ(refusal(file_of("{}      ")), "");
}

TEST(SafeTensorsHostile, HeaderText) {
  EXPECT_THAT(refusal(file_of(" {}")), HasSubstr("doesn't begin with '{'"));
  EXPECT_THAT(refusal(file_of("{")), HasSubstr("isn't valid JSON"));
  EXPECT_THAT(refusal(file_of("{}x")), HasSubstr("isn't valid JSON"));
  EXPECT_THAT(refusal(file_of(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":1})", "x")),
              HasSubstr("'a' twice"));
  EXPECT_THAT(refusal(file_of(R"({"a":)" + std::string(1 << 20, '['))), HasSubstr("levels deep"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":1})")), HasSubstr("__metadata__ isn't an object"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{"a":1}})")), HasSubstr("'a', which isn't text"));
  EXPECT_THAT(refusal(file_of("{\"\xff\":1}")), HasSubstr("isn't valid JSON"));
  EXPECT_THAT(refusal(file_of(R"({"":{}})")), HasSubstr("empty name"));
  EXPECT_THAT(refusal(file_of(R"({"a\u0000b":{}})")), HasSubstr("control character: 'a\\x00b'"));
}

TEST(SafeTensorsHostile, Entries) {
  const auto entry = [](const std::string& text, const std::string& data = "xxxx") {
    return refusal(file_of(std::string("{\"w\":").append(text).append("}"), data));
  };
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "");
  EXPECT_THAT(entry("1"), HasSubstr("isn't described by an object"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[1]})"), HasSubstr("no 'data_offsets'"));
  EXPECT_THAT(entry(R"({"dtype":"F32","data_offsets":[0,4]})"), HasSubstr("no 'shape'"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":0})"), HasSubstr("unknown field 'x'"));
  EXPECT_THAT(entry(R"({"dtype":"U32","shape":[1],"data_offsets":[0,4]})"), HasSubstr("dtype 'U32'"));
  EXPECT_THAT(entry(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})"), HasSubstr("'dtype' isn't text"));
  for (const char* shape : {"[-1]", "[1.0]", "1", "[[1]]", "[\"1\"]", "[18446744073709551615]", "[null]"})
    EXPECT_THAT(entry(std::string(R"({"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,4]})"),
                HasSubstr("'shape' isn't a list of whole numbers"))
        << shape;
  for (const char* offsets : {"[0]", "[0,4,8]", "[0,-4]", "[0,4.0]", "4", "[0,99999999999999999999]"})
    EXPECT_THAT(entry(std::string(R"({"dtype":"F32","shape":[1],"data_offsets":)") + offsets + "}"),
                HasSubstr("'data_offsets' isn't a list of two"))
        << offsets;
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), HasSubstr("ends at byte 0 before"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), HasSubstr("only 4 bytes of data"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
              HasSubstr("takes 8 bytes, but its data has 4"));
  // Products that wrap around to the right size.
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})"), HasSubstr("overflows"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4294967296,4294967296,1],"data_offsets":[0,0]})", ""),
              HasSubstr("overflows"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[9223372036854775807,0],"data_offsets":[0,0]})", ""), "");
}

TEST(SafeTensorsHostile, OverlapsGapsAndLeftovers) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t bytes) {
    return refusal(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                               R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                           std::string(bytes, 'x')));
  };
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "");
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), AllOf(HasSubstr("'a'"), HasSubstr("'b'"), HasSubstr("overlap")));
  EXPECT_THAT(two("[0,4]", "[3,7]", 7), HasSubstr("overlap at byte 3"));
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), HasSubstr("bytes 4 to 5 of the data, before tensor 'b'"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(two("[1,5]", "[5,9]", 9), HasSubstr("bytes 0 to 1"));
}

TEST(SafeTensorsHostile, Index) {
  TemporaryFolder folder;
  Made made;
  made.add("a", {4}, Dtype::f32);
  made.add("b", {4}, Dtype::f32);
  write_model(folder / "m", made.tensors, 16);
  const fs::path index = folder / "m/model.safetensors.index.json";
  const std::string good = read_whole_file(index);
  const auto with = [&](const std::string& text) {
    write_file_atomically(index, text);
    return message_of([&] { SafeTensors(folder / "m"); });
  };
  EXPECT_EQ(with(good), "");
  EXPECT_THAT(with("{}"), HasSubstr("no object 'weight_map'"));
  EXPECT_THAT(with("[]"), HasSubstr("no object 'weight_map'"));
  EXPECT_THAT(with(R"({"weight_map":{"a":1}})"), HasSubstr("isn't text"));
  for (const char* name : {"../m/x.safetensors", "/etc/passwd", "..", "", "a/b", "x\\u0000"})
    EXPECT_THAT(with(std::string(R"({"weight_map":{"a":")") + name + "\"}}"), HasSubstr("isn't the name of a file"))
        << name;
  EXPECT_THAT(with(R"({"weight_map":{"a":"model-00009-of-00009.safetensors"}})"), HasSubstr("isn't there"));
  EXPECT_THAT(with(R"({"weight_map":{"b":"model-00001-of-00002.safetensors"}})"), HasSubstr("'a' isn't listed"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors"}})"),
              HasSubstr("'b' should be in this file but isn't"));
  fs::remove(folder / "m/model-00002-of-00002.safetensors");
  EXPECT_THAT(with(good), AllOf(HasSubstr("model-00002-of-00002"), HasSubstr("isn't there")));
  fs::create_directory(folder / "empty");
  EXPECT_THAT(message_of([&] { SafeTensors(folder / "empty"); }), HasSubstr("no weights to read"));
}

TEST(SafeTensorsHostile, EveryCutAndManyFlipsAreErrorsOrWhole) {
  const std::string good = read_whole_file(reference);
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_NE(refusal(good.substr(0, size)), "") << size;
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (int flips = 1 + i % 3; flips > 0; --flips) bad[random() % bad.size()] = static_cast<char>(random());
    // Refused or read; and what is read can be read to its last byte.
    try {
      const SafeTensors file = SafeTensors::from_memory(std::as_bytes(std::span(bad)), "m.safetensors");
      for (const NamedTensor& tensor : file.tensors())
        ASSERT_LE(static_cast<const char*>(tensor.data.data) + tensor.data.bytes(), bad.data() + bad.size());
    } catch (const base::DataError&) {
    }
  }
}

}  // namespace
}  // namespace deepspeed::io
