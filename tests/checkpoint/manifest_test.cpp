// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/sample.h"
#include "io/checksum.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace deepspeed::checkpoint {
namespace {

using sample::refusal;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

TEST(Intervals, JoinAndRepeat) {
  EXPECT_TRUE(to_runs({}).empty());
  EXPECT_TRUE(to_runs({{5, 0}}).empty());
  EXPECT_THAT(to_runs({{4, 4}, {0, 4}}), ElementsAre(Intervals{0, 8, 0, 1}));
  // Two columns of a 4 x 5 matrix.
  EXPECT_THAT(to_runs({{1, 2}, {6, 2}, {11, 2}, {16, 2}}), ElementsAre(Intervals{1, 2, 5, 4}));
  EXPECT_THAT(to_runs({{0, 1}, {2, 1}, {10, 1}, {18, 1}}), ElementsAre(Intervals{0, 1, 2, 2}, Intervals{10, 1, 8, 2}));
  EXPECT_EQ(numel_of({{1, 2, 5, 4}, {30, 3, 0, 1}}), 11);
}

/// A manifest of one file with one tensor of 8 floats in two parts, which validates.
Manifest good() {
  Manifest manifest;
  manifest.tag = "t";
  manifest.ranks = 1;
  manifest.files.push_back({"f.h5", 0, 100, std::string(32, '0')});
  manifest.tensors["w"] = {base::Dtype::f32, {2, 4}, 8, {{0, 10, {{0, 2, 4, 2}}, {1}}, {0, 50, {{2, 2, 4, 2}}, {2}}}};
  return manifest;
}

TEST(Manifest, TextComesBack) {
  TemporaryFolder folder;
  Manifest manifest = good();
  manifest.state = {{"loss_scale", 65536.0}, {"tiny", 1e-300}, {"seed", 18446744073709551615U}, {"text", "ü\n"}};
  manifest.tensors["e"] = {base::Dtype::bf16, {0, 3}, 0, {{0, 0, {}, {}}}};
  io::write_file_atomically(folder / "f.h5", std::string(100, 'x'));
  io::write_file_atomically(folder / "manifest.json", to_text(manifest));
  const Manifest again = read_manifest(folder.path());
  EXPECT_EQ(to_text(again), to_text(manifest));
  EXPECT_EQ(again.state, manifest.state);
  EXPECT_EQ(again.tensors.at("w").parts[1].runs, manifest.tensors.at("w").parts[1].runs);
}

TEST(Manifest, ContradictionsAreNamed) {
  EXPECT_EQ(refusal([] { validate(good(), "m"); }), "");
  const auto with = [](auto&& change) {
    Manifest manifest = good();
    change(manifest, manifest.tensors.at("w"));
    return refusal([&] { validate(manifest, "m"); });
  };
  EXPECT_THAT(with([](Manifest& m, Tensor&) { m.files[0].name = "../f.h5"; }), HasSubstr("'../f.h5' isn't the name"));
  EXPECT_THAT(with([](Manifest& m, Tensor&) { m.files[0].name = "manifest.json"; }), HasSubstr("isn't the name"));
  EXPECT_THAT(with([](Manifest& m, Tensor&) { m.files.push_back(m.files[0]); }), HasSubstr("listed twice"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[0].file = 1; }), HasSubstr("isn't listed"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[0].position = 90; }), HasSubstr("beyond the end of f.h5"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[0].position = ~std::uint64_t{0}; }), HasSubstr("beyond the end"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[0].position = 45; }), HasSubstr("overlap in f.h5"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[0].chunks.clear(); }), HasSubstr("0 checksums for 16 bytes"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts.pop_back(); }), HasSubstr("only 4 of 8 elements"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[1].runs = {{1, 2, 4, 2}}; }), HasSubstr("given twice"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.parts[1].runs = {{2, 2, 2, 2}}; }), HasSubstr("given twice"));
  for (const Intervals& run :
       {Intervals{2, 2, 1, 2}, Intervals{-1, 2, 4, 2}, Intervals{2, 2, -4, 2}, Intervals{6, 2, 4, 2},
        Intervals{2, 2, 4, largest}, Intervals{2, largest, 4, 2}, Intervals{2, 2, largest, 2},
        Intervals{largest, 2, 4, 2}, Intervals{2, 0, 4, 2}, Intervals{2, 2, 4, 0}})
    EXPECT_THAT(with([&](Manifest&, Tensor& t) { t.parts[1].runs = {run}; }), HasSubstr("slices beyond its end"))
        << run.offset << " " << run.count << " " << run.stride << " " << run.repeat;
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.shape = {2, 5}; }), HasSubstr("can't have the shape [2, 5]"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.shape = {largest, largest}; }), HasSubstr("can't have the shape"));
  EXPECT_THAT(with([](Manifest&, Tensor& t) { t.shape = {-2, -4}; }), HasSubstr("can't have the shape"));
  // One unreadable repeat count mustn't ask for all the memory.
  EXPECT_THAT(with([](Manifest& m, Tensor& t) {
                m.files[0].bytes = std::uint64_t{1} << 62;
                t.type = base::Dtype::u8;
                t.numel = std::int64_t{1} << 40;
                t.shape = {t.numel};
                t.parts = {{0, 0, {{0, 1, 1, t.numel}}, {}}};
              }),
              HasSubstr("slices beyond"));
}

TEST(Manifest, Names) {
  const auto named = [](std::vector<std::string> names) {
    std::map<std::string, Tensor> tensors;
    for (const std::string& name : names) tensors[name] = {base::Dtype::f32, {0}, 0, {}};
    return refusal([&] { validate_tensors(tensors, "m"); });
  };
  EXPECT_EQ(named({"model/a.b", "model/a.c", "model/ünï code"}), "");
  for (const char* name : {"", "/", "/a", "a/", "a//b", "a/./b", "../a", "a\nb"}) EXPECT_NE(named({name}), "") << name;
  EXPECT_NE(named({std::string(1025, 'a')}), "");
  EXPECT_THAT(named({"a", "a.b", "a/b"}), HasSubstr("'a/b' would lie inside tensor 'a'"));
}

TEST(Manifest, FilesThatAreNoManifest) {
  TemporaryFolder folder;
  const auto with = [&](const std::string& text) {
    io::write_file_atomically(folder / "manifest.json", text);
    return refusal([&] { read_manifest(folder.path()); });
  };
  EXPECT_THAT(refusal([&] { read_manifest(folder.path()); }), HasSubstr("No such file"));
  EXPECT_THAT(with(""), HasSubstr("isn't a manifest, or is cut short"));
  EXPECT_THAT(with("{}"), HasSubstr("isn't a manifest, or is cut short"));
  const auto signed_text = [](const std::string& rest) {
    return "{\"xxh3_128\": \"" + io::xxh3_128_hex(std::as_bytes(std::span(rest))) + "\",\n" + rest;
  };
  const std::string good_text = to_text(good());
  const std::string rest = good_text.substr(good_text.find('\n') + 1);
  io::write_file_atomically(folder / "f.h5", std::string(100, 'x'));
  EXPECT_EQ(with(signed_text(rest)), "");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = rest;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return with(signed_text(text.replace(at, from.size(), to)));
  };
  EXPECT_THAT(replaced("\"version\": 1", "\"version\": 2"),
              HasSubstr("format version 2; this program reads version 1"));
  EXPECT_THAT(replaced("deepspeed-mpi checkpoint", "something else"), HasSubstr("isn't the manifest of"));
  EXPECT_THAT(replaced("\"ranks\"", "\"tag\""), HasSubstr("the name 'tag' twice"));
  EXPECT_THAT(replaced("\"ranks\"", "\"xanks\""), HasSubstr("'ranks' is missing"));
  EXPECT_THAT(replaced("\"fp32\"", "\"fp31\""), HasSubstr("'fp31' isn't a dtype"));
  EXPECT_THAT(replaced("\"shape\":[2,4]", "\"shape\":[2,-4]"), HasSubstr("'shape' isn't a list of sizes"));
  EXPECT_THAT(replaced("[0,2,4,2]", "[0,2,4]"), HasSubstr("a slice isn't"));
  EXPECT_THAT(replaced("0000000000000001", "000000000000000g"), HasSubstr("16-digit"));
  EXPECT_THAT(replaced("\"chunk_bytes\": 4194304", "\"chunk_bytes\": 0"), HasSubstr("'chunk_bytes'"));
  EXPECT_THAT(replaced("\"bytes\":100", "\"bytes\":101"), HasSubstr("has 100 bytes instead of the 101"));
  EXPECT_THAT(with(signed_text("")), HasSubstr("isn't valid JSON"));
}

}  // namespace
}  // namespace deepspeed::checkpoint
