// SPDX-License-Identifier: Apache-2.0
#include "data/statistics.h"

#include <chrono>
#include <cmath>
#include <map>
#include <random>

#include "data_room/support.h"

namespace deepspeed::data {
namespace {

std::shared_ptr<TokenSource> text(const Folder& folder, const std::string& bytes) {
  return open_tokens({folder.write("text", bytes)}, "text", *make_tokenizer("bytes"));
}

std::shared_ptr<TokenSource> wide(const Folder& folder, const std::string& bytes) {
  const std::vector<std::uint16_t> ids(bytes.begin(), bytes.end());
  return open_tokens({folder.write("ids.bin", bytes_of(ids))}, "bin", *make_tokenizer("bytes"));
}

TEST(Entropy, OfTextsWithKnownAnswers) {
  const Folder folder;
  EXPECT_DOUBLE_EQ(unigram_entropy(*text(folder, "aaaa")), 0.0);
  EXPECT_DOUBLE_EQ(unigram_entropy(*text(folder, "abab")), std::log(2.0));
  EXPECT_DOUBLE_EQ(bigram_entropy(*text(folder, "abababa")), 0.0);
  // Pairs aa ab ba ab ba ab: after a (4 times) a once and b three times; after b always a.
  const double after_a = -(0.25 * std::log(0.25) + 0.75 * std::log(0.75));
  EXPECT_NEAR(bigram_entropy(*text(folder, "aababab")), 4.0 / 6.0 * after_a, 1e-15);
  EXPECT_DOUBLE_EQ(bigram_entropy(*text(folder, "a")), 0.0);
}

TEST(Entropy, IsTheSameForTablesAndSortedPairsAcrossPieces) {
  const Folder folder;
  std::mt19937 random(3);
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes += static_cast<char>('a' + std::min(random() % 26, random() % 26));
  const auto narrow = text(folder, bytes);
  const auto broad = wide(folder, bytes);
  ASSERT_EQ(broad->vocab_size(), 65536);
  EXPECT_NEAR(unigram_entropy(*narrow), unigram_entropy(*broad), 1e-12);
  EXPECT_NEAR(bigram_entropy(*narrow), bigram_entropy(*broad), 1e-12);
  EXPECT_LT(bigram_entropy(*narrow), unigram_entropy(*narrow));

  // Straight from the definition.
  std::map<std::pair<char, char>, double> pairs;
  std::map<char, double> firsts;
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    ++pairs[{bytes[i - 1], bytes[i]}];
    ++firsts[bytes[i - 1]];
  }
  double entropy = 0.0;
  for (const auto& [pair, count] : pairs) {
    entropy -= count / static_cast<double>(bytes.size() - 1) * std::log(count / firsts[pair.first]);
  }
  EXPECT_NEAR(bigram_entropy(*narrow), entropy, 1e-12);
}

TEST(Entropy, OfFourMegabytesIsQuick) {
  const Folder folder;
  std::string bytes(4 << 20, ' ');
  std::mt19937 random(3);
  for (char& byte : bytes) byte = static_cast<char>(random() % 128);
  const auto source = text(folder, bytes);
  const auto start = std::chrono::steady_clock::now();
  bigram_entropy(*source);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(seconds.count()));
  EXPECT_LT(seconds.count(), 2.0);  // about 0.02 s on an idle core
}

}  // namespace
}  // namespace deepspeed::data
