// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "io/file.h"

namespace deepspeed::checkpoint {

namespace fs = std::filesystem;
using base::CheckpointError;

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Takes the run of digits or of other characters that begins at `at`.
std::string_view next_piece(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  while (at < text.size() && is_digit(text[at]) == is_digit(text[begin])) ++at;
  return text.substr(begin, at - begin);
}

/// Compares runs of digits as numbers of any size.
int compare_numbers(std::string_view a, std::string_view b) {
  const auto significant = [](std::string_view digits) {
    return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
  };
  const std::string_view x = significant(a), y = significant(b);
  if (x.size() != y.size()) return x.size() < y.size() ? -1 : 1;
  return x.compare(y);
}

std::string_view last_number(std::string_view tag) {
  std::string_view number;
  for (std::size_t at = 0; at < tag.size();)
    if (const std::string_view piece = next_piece(tag, at); is_digit(piece.front())) number = piece;
  return number;
}

}  // namespace

std::string problem_of_tag(std::string_view tag) {
  if (!io::is_plain_name(tag) || tag.size() > 200)
    return "must be one folder name of 1 to 200 bytes with no '/' or control character";
  if (tag.front() == '.') return "may not begin with '.'";
  if (tag == latest_name) return "is the name of the file that names the newest checkpoint";
  for (const std::string_view mark : {temporary_mark, aside_mark})
    if (tag.find(mark) != std::string_view::npos)
      return fmt::format("may not hold '{}', which marks unfinished checkpoints", mark);
  return "";
}

bool older(std::string_view a, std::string_view b) {
  const std::string_view x = last_number(a), y = last_number(b);
  if (x.empty() != y.empty()) return x.empty();
  if (const int order = compare_numbers(x, y); order != 0) return order < 0;
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const std::string_view p = next_piece(a, i), q = next_piece(b, j);
    const int order = is_digit(p.front()) && is_digit(q.front()) ? compare_numbers(p, q) : p.compare(q);
    if (order != 0) return order < 0;
  }
  const bool a_ends = i == a.size(), b_ends = j == b.size();
  return a_ends != b_ends ? a_ends : a < b;  // equal but for leading zeros: any fixed order
}

std::string series_of(std::string_view tag) {
  std::string series;
  for (std::size_t at = 0; at < tag.size();) {
    const std::string_view piece = next_piece(tag, at);
    series += is_digit(piece.front()) ? "#" : std::string(piece);
  }
  return series;
}

Listing list(const fs::path& folder) {
  Listing listing;
  std::error_code error;
  if (!fs::exists(folder, error) && !error) return listing;
  fs::directory_iterator entries(folder, error);
  if (error) io::throw_system_error("can't list", folder, error.value());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (name == lock_name) continue;
    if (name == latest_name)
      listing.has_latest = true;
    else if (name.find(temporary_mark) != std::string::npos || name.find(aside_mark) != std::string::npos)
      listing.leftovers.push_back(name);
    else if (problem_of_tag(name).empty() && entry.is_directory(ignored))
      listing.tags.push_back(name);
    else
      listing.has_others = true;
  }
  for (const std::string& name : listing.leftovers) {
    const std::string tag = name.substr(0, name.find(aside_mark));
    if (tag.size() < name.size() && problem_of_tag(tag).empty() &&
        std::ranges::find(listing.tags, tag) == listing.tags.end())
      listing.tags.push_back(tag);
  }
  std::sort(listing.tags.begin(), listing.tags.end(), older);
  return listing;
}

std::string describe_tags(const fs::path& folder) {
  std::vector<std::string> tags;
  try {
    tags = list(folder).tags;
  } catch (const base::IoError&) {
    return "";  // the caller's own error says more
  }
  if (tags.empty()) return "; there are no checkpoints there";
  constexpr std::ptrdiff_t most = 10;
  const auto begin = tags.size() > most ? tags.end() - most : tags.begin();
  return fmt::format("; the checkpoints there are {}{}", begin == tags.begin() ? "" : "..., ",
                     fmt::join(begin, tags.end(), ", "));
}

fs::path path_of(const fs::path& folder, const std::string& tag) {
  const fs::path path = folder / tag;
  std::error_code error;
  if (fs::exists(path, error)) return path;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with(tag + std::string(aside_mark))) return entry.path();
  return path;
}

std::vector<std::string> list_tags(const fs::path& folder) {
  return list(folder).tags;
}

std::string latest_tag(const fs::path& folder) {
  const fs::path path = folder / latest_name;
  const auto refuse = [&](const std::string& problem) -> CheckpointError {
    return CheckpointError(fmt::format("{}: {}{}", path.string(), problem, describe_tags(folder)));
  };
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw CheckpointError(fmt::format("{}: there is no such folder of checkpoints", folder.string()));
  if (!fs::exists(fs::symlink_status(path, error)))
    throw refuse("there is no such file to name the checkpoint to load (give a tag to load one without it)");
  std::string text;
  try {
    text = io::read_whole_file(path, 4096);
  } catch (const base::IoError& failure) {
    throw refuse(failure.what());
  }
  constexpr std::string_view white = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(white);
  if (begin == std::string::npos) throw refuse(text.empty() ? "is empty" : "holds only white space");
  const std::string tag = text.substr(begin, text.find_last_not_of(white) + 1 - begin);
  if (const std::string problem = problem_of_tag(tag); !problem.empty())
    throw refuse(fmt::format("holds {}, but a tag {}", io::in_quotes(tag), problem));
  if (!fs::is_directory(path_of(folder, tag), error))
    throw refuse(fmt::format("names {}, which isn't there", io::in_quotes(tag)));
  return tag;
}

}  // namespace deepspeed::checkpoint
