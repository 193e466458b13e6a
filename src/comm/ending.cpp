// SPDX-License-Identifier: Apache-2.0
#include "comm/ending.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace deepspeed::comm {

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last > i ? fmt::format("{}-{}", ranks[i], ranks[last]) : fmt::format("{}", ranks[i]);
    i = last + 1;
  }
  return text;
}

Verdict judge(const std::string& program, const std::vector<Ending>& endings, int size) {
  struct Failure {
    const Ending* first;
    std::vector<int> ranks;
  };
  std::vector<Failure> failures;
  std::vector<int> silent;
  Verdict verdict;
  std::vector<const Ending*> by_rank(static_cast<std::size_t>(size));
  for (const Ending& ending : endings) by_rank[static_cast<std::size_t>(ending.rank)] = &ending;
  for (int rank = 0; rank < size; ++rank) {
    const Ending* ending = by_rank[static_cast<std::size_t>(rank)];
    if (ending == nullptr) {
      silent.push_back(rank);
      continue;
    }
    if (ending->message.empty()) {
      if (verdict.code == 0) verdict.code = ending->code;
      continue;
    }
    const auto same = std::find_if(failures.begin(), failures.end(), [ending](const Failure& failure) {
      return failure.first->message == ending->message;
    });
    if (same == failures.end()) {
      failures.push_back({ending, {rank}});
    } else {
      same->ranks.push_back(rank);
    }
  }
  if (failures.empty()) return verdict;

  const auto is_comm = [](const Failure& f) { return f.first->code == static_cast<int>(base::ExitCode::comm); };
  const bool only_comm = std::all_of(failures.begin(), failures.end(), is_comm);
  if (!only_comm) failures.erase(std::remove_if(failures.begin(), failures.end(), is_comm), failures.end());

  constexpr std::size_t most = 5;
  verdict.code = failures.front().first->code;
  for (std::size_t i = 0; i < std::min(most, failures.size()); ++i) {
    const Failure& f = failures[i];
    std::string where;
    if (f.ranks.size() == 1 && size > 1) {
      where = fmt::format("rank {} ({}): ", f.ranks[0], f.first->host);
    } else if (static_cast<int>(f.ranks.size()) < size) {
      where = fmt::format("ranks {}: ", list_ranks(f.ranks));
    }
    verdict.text += fmt::format("{}: error: {}{}\n", program, where, f.first->message);
  }
  if (failures.size() > most) {
    verdict.text += fmt::format("{}: error: and {} other messages\n", program, failures.size() - most);
  }
  if (only_comm && !silent.empty()) {
    verdict.text +=
        fmt::format("{}: error: no word from rank{} {}\n", program, silent.size() == 1 ? "" : "s", list_ranks(silent));
  }
  return verdict;
}

}  // namespace deepspeed::comm
