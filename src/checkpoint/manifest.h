// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

/// The description of a checkpoint: `manifest.json`, as docs/checkpoint-format.md says. Used by save and Reader.
namespace deepspeed::checkpoint {

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr std::int64_t format_version = 1;

/// `repeat` equal runs of a logical tensor's row-major elements: [offset + k * stride, + count) for k < repeat. A slice
/// of columns is one Intervals, however many rows it has.
struct Intervals {
  std::int64_t offset = 0, count = 0, stride = 0, repeat = 1;
  bool operator==(const Intervals&) const = default;
};

/// Sorted [offset, count) pairs as few Intervals. Neighbours that touch are joined.
std::vector<Intervals> to_runs(std::vector<std::pair<std::int64_t, std::int64_t>> slices);
/// Elements in all runs.
std::int64_t numel_of(const std::vector<Intervals>& runs);

/// What one file holds of a tensor: the elements of `runs`, one behind the other, from byte `position` on.
struct Part {
  std::size_t file = 0;  ///< index in Manifest::files
  std::uint64_t position = 0;
  std::vector<Intervals> runs;
  std::vector<std::uint64_t> chunks;  ///< XXH3-64 of each Manifest::chunk_bytes of the data, the last one shorter
};

struct Tensor {
  base::Dtype type = base::Dtype::f32;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::vector<Part> parts;
};

struct File {
  std::string name;
  int rank = 0;  ///< that wrote it
  std::uint64_t bytes = 0;
  std::string structure;  ///< XXH3-128 of all bytes outside the parts' data
};

struct Manifest {
  std::string tag;
  std::int64_t saved_at = 0;  ///< nanoseconds since 1970
  int ranks = 0;
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;
  std::vector<File> files;
  std::map<std::string, Tensor> tensors;
  nlohmann::json state;
};

/// Product of a shape; false if negative or beyond 63 bits (in bytes of `type`).
bool count_elements(const std::vector<std::int64_t>& shape, base::Dtype type, std::int64_t& numel);
/// Empty if `name` can be a tensor's: components separated by '/', none of them empty, "." or "..", no control
/// characters, at most 1024 bytes. Else what is wrong.
std::string problem_of_name(const std::string& name);

/// Throws CheckpointError (beginning with `where`) if a name can't be, one name lies inside another, or the parts don't
/// cover each tensor exactly once. Files and positions aren't looked at.
void validate_tensors(const std::map<std::string, Tensor>& tensors, const std::string& where);
/// The same, and that every part lies inside its file and over no other, with its checksums.
void validate(const Manifest& manifest, const std::string& where);

std::uint64_t bytes_of(const Part& part, base::Dtype type);
/// The data that lies in one file, by position.
struct Extent {
  std::uint64_t begin = 0, end = 0;
  std::string name;
};
std::vector<Extent> extents_of(const Manifest& manifest, std::size_t file);
/// XXH3-128 of a file's `bytes` bytes outside the extents: HDF5's structure and the padding. With the chunks' checksums
/// every byte of the file is covered.
std::string structure_checksum(int descriptor, const std::filesystem::path& path, std::uint64_t bytes,
                               const std::vector<Extent>& extents);

/// A manifest's text: its first line is the checksum of the rest, and the whole is one JSON object.
std::string to_text(const Manifest& manifest);
/// The way back: checks the checksum and the form, not yet what `validate` does. `where` begins the messages.
Manifest parse_manifest(std::string_view text, const std::string& where);
/// Reads a checkpoint's manifest, compares every file's size and validates. Throws CheckpointError that names the file
/// and what is wrong.
Manifest read_manifest(const std::filesystem::path& checkpoint);

// The pieces that ranks exchange while saving.
nlohmann::json to_json(const std::map<std::string, Tensor>& tensors);
std::map<std::string, Tensor> tensors_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace deepspeed::checkpoint
