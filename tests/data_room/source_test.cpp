// SPDX-License-Identifier: Apache-2.0
#include <hdf5.h>

#include "data_room/support.h"

namespace deepspeed::data {
namespace {

using testing::ElementsAre;

std::shared_ptr<TokenSource> open(const std::string& path, const std::string& format = "auto") {
  return open_tokens({path}, format, *make_tokenizer("bytes"));
}

std::string llmc_file(std::int32_t magic, std::int32_t version, std::int32_t tokens, std::string_view body) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of(header) + std::string(body);
}

template <class T>
std::string write_hdf5(const Folder& folder, const std::string& name, hid_t type, const std::vector<T>& values,
                       const char* dataset = "tokens", std::vector<hsize_t> shape = {}) {
  if (shape.empty()) shape = {values.size()};
  const std::string path = folder.file(name);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  const hid_t data = H5Dcreate2(file, dataset, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  if (!values.empty()) {
    EXPECT_GE(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  }
  H5Dclose(data);
  H5Sclose(space);
  H5Fclose(file);
  return path;
}

/// Two letters a token: a tokenizer whose tokens aren't bytes.
class Pairs final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return 65536; }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < text.size(); i += 2) {
      ids.push_back(text[i] * 256 + (i + 1 < text.size() ? text[i + 1] : 0));
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
};

TEST(Tokenizer, BytesGoThereAndBack) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);
  const auto ids = tokenizer->encode(every);
  EXPECT_EQ(ids.front(), 0);
  EXPECT_EQ(ids.back(), 255);
  EXPECT_EQ(tokenizer->decode(ids), every);
}

TEST(Tokenizer, RefusesNamesAndIdsByName) {
  expect_refused([] { make_tokenizer("words"); }, {"data.tokenizer", "\"words\"", "\"bytes\""});
  const std::vector<std::int32_t> ids{65, 256};
  expect_refused([&] { make_tokenizer("bytes")->decode(ids); }, {"256", "place 1"});
}

TEST(TextSource, ReadsBytesAnywhere) {
  const Folder folder;
  const auto source = open(folder.write("a.txt", "h\xc3\xa9llo"));
  EXPECT_EQ(source->size(), 6);
  EXPECT_EQ(source->vocab_size(), 256);
  EXPECT_THAT(read_all(*source), ElementsAre('h', 0xc3, 0xa9, 'l', 'l', 'o'));
  std::vector<std::int64_t> two(2);
  source->read(4, two);
  EXPECT_THAT(two, ElementsAre('l', 'o'));
  expect_refused([&] { source->read(5, two); }, {"a.txt", "2 tokens", "from token 5", "6 in all"});
  expect_refused([&] { source->read(-1, two); }, {"a.txt"});
}

TEST(TextSource, OtherTokenizersEncodeTheFile) {
  const Folder folder;
  const auto source = open_tokens({folder.write("a.txt", "abcd")}, "text", Pairs());
  EXPECT_EQ(source->vocab_size(), 65536);
  EXPECT_THAT(read_all(*source), ElementsAre('a' * 256 + 'b', 'c' * 256 + 'd'));
}

TEST(TextSource, SeveralFilesAreOneAfterAnother) {
  const Folder folder;
  const std::vector<std::string> paths{folder.write("a.txt", "abc"), folder.write("b.txt", "d"),
                                       folder.write("c.txt", "efgh")};
  const auto source = open_tokens(paths, "auto", *make_tokenizer("bytes"));
  EXPECT_EQ(text_of(read_all(*source)), "abcdefgh");
  for (std::int64_t begin = 0; begin <= 8; ++begin) {
    for (std::int64_t end = begin; end <= 8; ++end) {
      std::vector<std::int64_t> part(static_cast<std::size_t>(end - begin));
      source->read(begin, part);
      EXPECT_EQ(text_of(part), std::string("abcdefgh").substr(static_cast<std::size_t>(begin), part.size()));
    }
  }
  EXPECT_EQ(source->place(3).file, paths[1]);
  EXPECT_EQ(source->place(5).file, paths[2]);
  EXPECT_EQ(source->place(5).token, 1);
  std::vector<std::int64_t> part(2);
  expect_refused([&] { source->read(7, part); }, {"a.txt", "8 in all"});
}

TEST(JsonlSource, DocumentsFollowedByNewline) {
  const Folder folder;
  const std::string lines =
      "{\"text\": \"one\", \"id\": 1}\n\n{\"meta\": {\"text\": \"no\"}, \"text\": \"\"}\r\n{\"text\": \"t\\n\\u00e9\"}";
  const std::string expected = "one\n\nt\n\xc3\xa9\n";
  const auto source = open(folder.write("a.jsonl", lines));
  ASSERT_EQ(source->size(), static_cast<std::int64_t>(expected.size()));
  std::string text;
  for (const std::int64_t token : read_all(*source)) text += static_cast<char>(token);
  EXPECT_EQ(text, expected);
  for (std::size_t begin = 0; begin <= expected.size(); ++begin) {
    for (std::size_t end = begin; end <= expected.size(); ++end) {
      std::vector<std::int64_t> part(end - begin);
      source->read(static_cast<std::int64_t>(begin), part);
      text.clear();
      for (const std::int64_t token : part) text += static_cast<char>(token);
      EXPECT_EQ(text, expected.substr(begin, end - begin));
    }
  }
  const auto pairs = open_tokens({folder.file("a.jsonl")}, "auto", Pairs());
  EXPECT_EQ(pairs->size(), 2 + 1 + 3);
}

TEST(JsonlSource, RefusesABadLineWithItsNumber) {
  const Folder folder;
  const auto refused = [&](const std::string& third, const std::string& reason) {
    const std::string path = folder.write("bad.jsonl", "{\"text\": \"a\"}\n\n" + third + "\n{\"text\": \"b\"}\n");
    expect_refused([&] { open(path); }, {"bad.jsonl:3: ", reason, "\"text\""});
  };
  refused("{\"text\": ", "unexpected end of input");
  refused("{\"text\": \"\xff\"}", "UTF-8");
  refused("[1]", "array");
  refused("{\"content\": \"a\"}", "there is no \"text\"");
  refused("{\"text\": 3}", "of type number");
  expect_refused([&] { open(folder.write("blank.jsonl", "\n \n")); }, {"blank.jsonl", "blank lines"});
}

TEST(BinSource, NanoGptTokens) {
  const Folder folder;
  const auto source = open(folder.write("train.bin", bytes_of<std::uint16_t>({1, 50256, 65535, 0})));
  EXPECT_EQ(source->vocab_size(), 65536);
  EXPECT_THAT(read_all(*source), ElementsAre(1, 50256, 65535, 0));
  expect_refused([&] { open(folder.write("odd.bin", "abc")); }, {"odd.bin", "3 bytes", "uint16"});
}

TEST(BinSource, LlmcTokensOfBothWidths) {
  const Folder folder;
  const auto narrow = open(folder.write("gpt2.bin", llmc_file(20240520, 1, 3, bytes_of<std::uint16_t>({50256, 1, 2}))));
  EXPECT_EQ(narrow->vocab_size(), 65536);
  EXPECT_THAT(read_all(*narrow), ElementsAre(50256, 1, 2));
  const std::string wide_file = llmc_file(20240801, 7, 3, bytes_of<std::uint32_t>({128000, 1, 2}));
  const auto wide = open(folder.write("llama3.bin", wide_file));
  EXPECT_EQ(wide->vocab_size(), std::int64_t{1} << 31);
  EXPECT_THAT(read_all(*wide), ElementsAre(128000, 1, 2));
  // Known by its first bytes under any name.
  EXPECT_EQ(open(folder.write("llama3.tokens", wide_file))->size(), 3);
}

TEST(BinSource, RefusesDamagedLlmcFiles) {
  const Folder folder;
  const std::string body = bytes_of<std::uint16_t>({1, 2, 3});
  const std::string good = llmc_file(20240520, 1, 3, body);
  expect_refused([&] { open(folder.write("short.bin", good.substr(0, 100))); }, {"short.bin", "header", "100 of 1024"});
  expect_refused([&] { open(folder.write("cut.bin", good.substr(0, 1028))); }, {"cut.bin", "3 tokens", "1028"});
  expect_refused([&] { open(folder.write("long.bin", good + "xx")); }, {"long.bin", "1030", "1032"});
  expect_refused([&] { open(folder.write("v.bin", llmc_file(20240520, 2, 3, body))); }, {"v.bin", "version 2"});
  expect_refused([&] { open(folder.write("none.bin", llmc_file(20240520, 1, 0, ""))); }, {"none.bin", "0 tokens"});
  expect_refused([&] { open(folder.write("neg.bin", llmc_file(20240520, 1, -5, ""))); }, {"neg.bin", "-5 tokens"});
  expect_refused([&] { open(folder.write("eval.bin", llmc_file(20240522, 1, 1, body))); }, {"eval.bin", "questions"});
}

TEST(BinSource, RefusesImpossibleIdsWhereTheyAreRead) {
  const Folder folder;
  const auto source =
      open(folder.write("a.bin", llmc_file(20240801, 7, 3, bytes_of<std::uint32_t>({1, 2, 0x80000000U}))));
  std::vector<std::int64_t> two(2);
  source->read(0, two);
  expect_refused([&] { source->read(1, two); }, {"a.bin, token 2", "2147483648"});
}

TEST(Hdf5Source, AnyIntegerType) {
  const Folder folder;
  EXPECT_THAT(read_all(*open(write_hdf5<std::uint16_t>(folder, "a.h5", H5T_NATIVE_UINT16, {5, 65535}))),
              ElementsAre(5, 65535));
  EXPECT_THAT(read_all(*open(write_hdf5<std::int64_t>(folder, "b.hdf5", H5T_NATIVE_INT64, {5, 70000}))),
              ElementsAre(5, 70000));
  const auto bytes = open(write_hdf5<std::uint8_t>(folder, "noname", H5T_NATIVE_UINT8, {1, 2, 255}));
  EXPECT_EQ(bytes->vocab_size(), 256);
  std::vector<std::int64_t> two(2);
  bytes->read(1, two);
  EXPECT_THAT(two, ElementsAre(2, 255));
  EXPECT_EQ(open(write_hdf5<std::int16_t>(folder, "c.h5", H5T_NATIVE_INT16, {1}))->vocab_size(), 32768);
}

TEST(Hdf5Source, RefusesByReason) {
  const Folder folder;
  expect_refused([&] { open(folder.write("text.h5", "not at all")); }, {"text.h5", "no HDF5 file"});
  expect_refused([&] { open(folder.write("cut.h5", "\x89HDF\r\n\x1a\n....")); }, {"cut.h5", "open"});
  expect_refused([&] { open(write_hdf5<int>(folder, "n.h5", H5T_NATIVE_INT, {1}, "ids")); }, {"n.h5", "\"tokens\""});
  expect_refused([&] { open(write_hdf5<float>(folder, "f.h5", H5T_NATIVE_FLOAT, {1.0F})); }, {"f.h5", "integer"});
  expect_refused(
      [&] {
        open(write_hdf5<int>(folder, "d.h5", H5T_NATIVE_INT, {1, 2}, "tokens", {1, 2}));
      },
      {"d.h5", "2 dimensions"});
  expect_refused([&] { open(write_hdf5<int>(folder, "e.h5", H5T_NATIVE_INT, {}, "tokens", {0})); }, {"e.h5", "empty"});
  const auto negative = open(write_hdf5<int>(folder, "neg.h5", H5T_NATIVE_INT, {1, -2, 3}));
  expect_refused([&] { read_all(*negative); }, {"neg.h5, token 1", "-2", "negative"});
  const auto large =
      open(write_hdf5<std::uint64_t>(folder, "large.h5", H5T_NATIVE_UINT64, {1, std::uint64_t{1} << 63}));
  expect_refused([&] { read_all(*large); }, {"large.h5, token 1"});
}

TEST(OpenTokens, RefusesWhatIsNoDataFile) {
  const Folder folder;
  expect_refused([&] { open(folder.file("missing.txt")); }, {"missing.txt", "No such file"});
  expect_refused([&] { open(folder.file("")); }, {"directory", "name the data files"});
  expect_refused([&] { open(folder.write("empty.txt", "")); }, {"empty.txt is empty"});
  expect_refused([&] { open("/dev/null"); }, {"/dev/null", "regular file"});
  expect_refused([&] { open(folder.write("a.txt.gz", "\x1f\x8b...")); }, {"a.txt.gz", "gzip", "unpack"});
  EXPECT_EQ(open(folder.file("a.txt.gz"), "text")->size(), 5);
  expect_refused([&] { open(folder.write("a.txt", "a"), "csv"); }, {"data.format", "\"csv\"", "\"jsonl\""});
  expect_refused([&] { open_tokens({}, "auto", *make_tokenizer("bytes")); }, {"data.train"});
}

TEST(LimitVocab, RefusesIdsOfALargerVocabulary) {
  const Folder folder;
  const std::vector<std::string> paths{folder.write("a.bin", bytes_of<std::uint16_t>({1, 2, 3})),
                                       folder.write("b.bin", bytes_of<std::uint16_t>({4, 300, 5}))};
  const auto all = open_tokens(paths, "auto", *make_tokenizer("bytes"));
  const auto source = limit_vocab(slice_tokens(all, 1, 6), 300);
  EXPECT_EQ(source->vocab_size(), 300);
  std::vector<std::int64_t> three(3);
  source->read(0, three);
  EXPECT_THAT(three, ElementsAre(2, 3, 4));
  expect_refused([&] { source->read(1, three); }, {"b.bin, token 1", "id 300", "vocabulary of 300"});
  EXPECT_EQ(limit_vocab(all, 65536), all);
}

TEST(Split, PartsHoldEverySampleOnce) {
  for (std::int64_t tokens = 5; tokens < 60; ++tokens) {
    for (const double fraction : {0.1, 0.25, 0.5, 0.9}) {
      constexpr std::int64_t length = 2;
      const auto source = std::make_shared<Counting>(tokens);
      const std::int64_t samples = sample_count(tokens, length);
      const auto expected = static_cast<std::int64_t>(fraction * static_cast<double>(samples) + 0.5);
      if (expected == 0 || expected == samples) {
        expect_refused([&] { split(source, fraction, length); }, {"data.validation", "counting"});
        continue;
      }
      const auto [training, validation] = split(source, fraction, length);
      EXPECT_EQ(sample_count(validation->size(), length), expected);
      EXPECT_EQ(sample_count(training->size(), length), samples - expected);
      EXPECT_EQ(read_all(*training).front(), 0);
      EXPECT_EQ(read_all(*validation).front(), (samples - expected) * length);
      EXPECT_EQ(read_all(*validation).back(), samples * length);
    }
  }
  for (const double fraction : {0.0, 1.0, -0.5, 5.0}) {
    expect_refused([&] { split(std::make_shared<Counting>(100), fraction, 2); }, {"data.validation", "fraction"});
  }
}

}  // namespace
}  // namespace deepspeed::data
