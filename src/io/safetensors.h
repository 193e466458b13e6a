// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "io/file.h"

/// The safetensors format (https://huggingface.co/docs/safetensors): 8 bytes little-endian length, a JSON header, data.
/// Every error is a DataError that names the file, the tensor and what is wrong; system errors are IoErrors.
namespace deepspeed::io {

/// A tensor as a file has it, row-major. Shape {} is a scalar of one element.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  base::ConstBuffer data;  ///< data.type is the dtype, data.numel the product of the shape
};

/// A model's weights, mapped read-only and unread until touched: one .safetensors file, an index with its shards, or a
/// folder that holds `model.safetensors` or `model.safetensors.index.json` (looked for in this order).
///
/// The whole header is checked before anything is handed out: its length, depth and duplicate names; that each dtype is
/// one of base::Dtype; that dtype times shape (without overflow) is the length of the data; and that the tensors cover
/// the data without gaps, overlaps or bytes left over. Index names that leave the folder, and names that an index and
/// its shards don't agree on, are refused.
class SafeTensors {
 public:
  explicit SafeTensors(const std::filesystem::path& path);

  /// In the order of their data, shard by shard. Views live as long as this object. The writer's own files keep `data`
  /// aligned to 8 bytes; others may not: use memcpy, or ask `is_aligned`.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  /// nullptr if there is none.
  const NamedTensor* find(std::string_view name) const;
  /// Throws DataError that names the nearest names that are there.
  const NamedTensor& at(std::string_view name) const;
  /// `__metadata__` of all shards ({"format": "pt"} as a rule).
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// What was opened: the file or the index.
  const std::filesystem::path& path() const { return path_; }

  /// Checks one file that is already in memory; `path` is for messages. Views point into `bytes`. (The fuzzer's entry.)
  static SafeTensors from_memory(Bytes bytes, const std::filesystem::path& path);

 private:
  SafeTensors() = default;
  void add_file(Bytes bytes, const std::filesystem::path& path);
  void add_index(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<Mapping> maps_;
  std::vector<NamedTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// True if the data may be read through a pointer of its type.
bool is_aligned(const base::ConstBuffer& data);

/// Writes one file whose tensors come one by one, in any order, so that never more than one need be in memory. The file
/// appears by rename at `commit`; before that, and if it never comes, there is nothing under its name.
class SafeTensorsWriter {
 public:
  /// `tensors` says names, shapes and dtypes; its data pointers aren't looked at. Checks names (not empty, no control
  /// characters, unique, not "__metadata__") and lays the file out as the reference implementation does: by alignment,
  /// largest first, then by name; header padded to 8 bytes.
  SafeTensorsWriter(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  /// All of a tensor's data; dtype and size must be those announced.
  void write(std::string_view name, const base::ConstBuffer& data);
  /// Throws if a tensor was never written. `flush` alone does all but the rename.
  void flush();
  void commit();
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  struct Place {
    base::Dtype type;
    std::int64_t numel;
    std::uint64_t offset;
    bool written = false;
  };
  PendingFile file_;
  std::map<std::string, Place, std::less<>> places_;
};

/// Writes a single file at once.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// How a model is spread over files, as the Hugging Face hub splits it: in the order given, a file is closed before it
/// would grow beyond `max_shard_bytes` of data; a larger tensor gets a file of its own.
struct ShardPlan {
  struct File {
    std::string name;  ///< "model.safetensors", or "model-00001-of-00003.safetensors"
    std::vector<NamedTensor> tensors;
  };
  std::vector<File> files;
  std::uint64_t total_bytes = 0;
  /// Text of model.safetensors.index.json; empty for a single file.
  std::string index;
};
ShardPlan plan_shards(const std::vector<NamedTensor>& tensors, std::uint64_t max_shard_bytes);

/// Hugging Face's own default.
inline constexpr std::uint64_t default_shard_bytes = 5'000'000'000;

/// Writes a model's weights into a folder (made if need be): `model.safetensors`, or shards and their index, tensor by
/// tensor. An earlier model's weight files there are replaced at `commit`; the old and the new are never mixed: a
/// reader finds one of them, or for an instant none.
class ModelWriter {
 public:
  ModelWriter(std::filesystem::path folder, const std::vector<NamedTensor>& tensors,
              std::uint64_t max_shard_bytes = default_shard_bytes,
              const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  void write(std::string_view name, const base::ConstBuffer& data);
  void commit();

 private:
  std::filesystem::path folder_;
  std::string index_;
  std::vector<SafeTensorsWriter> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

/// The same at once, from memory.
void write_model(const std::filesystem::path& folder, const std::vector<NamedTensor>& tensors,
                 std::uint64_t max_shard_bytes = default_shard_bytes,
                 const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace deepspeed::io
