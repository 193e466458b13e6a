// SPDX-License-Identifier: Apache-2.0
#include "data/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace deepspeed::data {
namespace {

constexpr std::int64_t table_ids = 1024;

/// Calls use(tokens) for the whole source, a piece at a time; each piece starts with the last token of the one before.
template <class Use>
void for_each_piece(const TokenSource& source, Use use) {
  constexpr std::int64_t piece = 1 << 16;
  std::vector<std::int64_t> tokens(piece);
  const std::int64_t size = source.size();
  for (std::int64_t begin = 0; begin < size; begin += piece - 1) {
    const auto count = static_cast<std::size_t>(std::min(piece, size - begin));
    source.read(begin, std::span(tokens).first(count));
    use(std::span<const std::int64_t>(tokens).first(count), begin == 0);
    if (begin + static_cast<std::int64_t>(count) == size) return;
  }
}

/// Sum of c ln c over counts c: the part of an entropy that needs each count.
class CountLogs {
 public:
  void add(std::int64_t count) {
    if (count > 0) sum_ += static_cast<double>(count) * std::log(static_cast<double>(count));
  }
  double sum() const { return sum_; }

 private:
  double sum_ = 0.0;
};

/// Sum of c ln c over how often each value occurs.
double count_logs_of_sorted(std::vector<std::uint64_t>& values) {
  std::sort(values.begin(), values.end());
  CountLogs logs;
  for (auto it = values.begin(); it != values.end();) {
    const auto next = std::upper_bound(it, values.end(), *it);
    logs.add(next - it);
    it = next;
  }
  return logs.sum();
}

double count_logs_of_table(const std::vector<std::int64_t>& table) {
  CountLogs logs;
  for (const std::int64_t count : table) logs.add(count);
  return logs.sum();
}

}  // namespace

// With counts c of n tokens, H = -sum c/n ln(c/n) = ln n - (sum c ln c) / n.
double unigram_entropy(const TokenSource& source) {
  const std::int64_t size = source.size();
  if (size == 0) return 0.0;
  double logs = 0.0;
  if (const std::int64_t ids = source.vocab_size(); ids <= table_ids) {
    std::vector<std::int64_t> table(static_cast<std::size_t>(ids));
    for_each_piece(source, [&](std::span<const std::int64_t> tokens, bool first) {
      for (const std::int64_t id : tokens.subspan(first ? 0 : 1)) ++table[static_cast<std::size_t>(id)];
    });
    logs = count_logs_of_table(table);
  } else {
    std::vector<std::uint64_t> values;
    values.reserve(static_cast<std::size_t>(size));
    for_each_piece(source, [&](std::span<const std::int64_t> tokens, bool first) {
      for (const std::int64_t id : tokens.subspan(first ? 0 : 1)) values.push_back(static_cast<std::uint64_t>(id));
    });
    logs = count_logs_of_sorted(values);
  }
  return std::log(static_cast<double>(size)) - logs / static_cast<double>(size);
}

// With counts c of pairs and d of their first tokens, H = -sum c/n ln(c/d) = (sum d ln d - sum c ln c) / n.
double bigram_entropy(const TokenSource& source) {
  const std::int64_t pairs = source.size() - 1;
  if (pairs < 1) return 0.0;
  double pair_logs = 0.0;
  double first_logs = 0.0;
  if (const std::int64_t ids = source.vocab_size(); ids <= table_ids) {
    std::vector<std::int64_t> table(static_cast<std::size_t>(ids * ids));
    for_each_piece(source, [&](std::span<const std::int64_t> tokens, bool) {
      for (std::size_t i = 1; i < tokens.size(); ++i)
        ++table[static_cast<std::size_t>(tokens[i - 1] * ids + tokens[i])];
    });
    std::vector<std::int64_t> firsts(static_cast<std::size_t>(ids));
    for (std::size_t i = 0; i < table.size(); ++i) firsts[i / static_cast<std::size_t>(ids)] += table[i];
    pair_logs = count_logs_of_table(table);
    first_logs = count_logs_of_table(firsts);
  } else {
    std::vector<std::uint64_t> values;
    values.reserve(static_cast<std::size_t>(pairs));
    for_each_piece(source, [&](std::span<const std::int64_t> tokens, bool) {
      for (std::size_t i = 1; i < tokens.size(); ++i) {
        values.push_back(static_cast<std::uint64_t>(tokens[i - 1]) << 32 | static_cast<std::uint64_t>(tokens[i]));
      }
    });
    pair_logs = count_logs_of_sorted(values);
    for (std::uint64_t& value : values) value >>= 32;
    first_logs = count_logs_of_sorted(values);
  }
  return (first_logs - pair_logs) / static_cast<double>(pairs);
}

}  // namespace deepspeed::data
