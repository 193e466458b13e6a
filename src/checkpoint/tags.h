// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// The names in a folder of checkpoints: TAG/ for each good one, `latest`, and what a save in progress or a dead one
/// leaves: TAG.tmp-… (never read) and TAG.old-… (read only where TAG itself is missing).
namespace deepspeed::checkpoint {

inline constexpr const char* latest_name = "latest";
inline constexpr const char* lock_name = ".lock";
inline constexpr std::string_view temporary_mark = ".tmp-", aside_mark = ".old-";

/// Empty if `tag` can name a checkpoint: one plain folder name that doesn't begin with '.', isn't "latest" and holds
/// neither mark. Else what is wrong with it.
std::string problem_of_tag(std::string_view tag);

/// Older before newer, by name alone: by the last number in the tag (tags without one first), then piece by piece,
/// digits as numbers. So global_step10 comes after global_step9.
bool older(std::string_view a, std::string_view b);

/// The tag with every number as '#': saves of one series share it.
std::string series_of(std::string_view tag);

/// What the folder holds.
struct Listing {
  std::vector<std::string> tags;       ///< oldest first, good or not
  std::vector<std::string> leftovers;  ///< temporaries and set-aside names
  bool has_latest = false;
  bool has_others = false;  ///< anything that isn't ours
};
/// Throws IoError if the folder can't be read; a folder that isn't there is empty.
Listing list(const std::filesystem::path& folder);

/// "; the checkpoints there are global_step5, global_step10", or "; there are no checkpoints there".
std::string describe_tags(const std::filesystem::path& folder);

/// folder/TAG, or the folder set aside for it where a replacement was cut off between its two renames.
std::filesystem::path path_of(const std::filesystem::path& folder, const std::string& tag);

}  // namespace deepspeed::checkpoint
