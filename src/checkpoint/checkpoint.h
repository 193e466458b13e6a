// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/group.h"

/// Checkpoints as sets of logical tensors: saved at one layout and rank count, read at any other. The files are
/// described in docs/checkpoint-format.md.
namespace deepspeed::checkpoint {

/// A contiguous run of a logical tensor's row-major elements, [offset, offset + data.numel), held by this rank.
struct Slice {
  std::string name;                 ///< logical name, "model/transformer.h.0.ln_1.weight", "optimizer/exp_avg/..."
  std::vector<std::int64_t> shape;  ///< global shape
  std::int64_t offset = 0;
  base::ConstBuffer data;  ///< host memory
};

struct SaveOptions {
  std::filesystem::path folder;  ///< the folder that holds TAG/ and latest; the same file system on every rank
  std::string tag;
  bool save_latest = true;
  int keep_last = 0;             ///< older good checkpoints beyond this many are removed after the commit; 0 keeps all
  bool check_free_space = true;  ///< refuse before writing where the file system says that it can't hold the checkpoint
};

/// Collective. Every rank gives the slices it owns (together they must cover each tensor exactly once) and rank 0 the
/// state record. All is written under a temporary name, flushed, described by a manifest with checksums, and committed
/// by rename; then `latest` is replaced by rename. Throws CheckpointError on every rank, with the path, the rank and
/// the system's own words; what was there stays, and what was begun is removed. An existing TAG is replaced without a
/// moment in which neither is there. A tensor without elements needs one empty slice from any rank.
///
/// `keep_last` counts the checkpoints of TAG's series (the same name but for its numbers) by the time they were saved;
/// damaged ones, those of other names and the one that `latest` names are never removed. What dead saves left is
/// removed at the next save; two runs that save into one folder at a time are refused.
void save(comm::Group& group, const SaveOptions& options, const std::vector<Slice>& slices,
          const nlohmann::json& state);

/// For the start of a run, so that a full or read-only disk is told before hours of training: makes the folder, writes
/// a small file into it and removes it, and asks whether `bytes` fit. Throws CheckpointError.
void check_folder(const std::filesystem::path& folder, std::uint64_t bytes);

/// What a logical tensor is in a checkpoint.
struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  base::Dtype type = base::Dtype::f32;
  std::int64_t numel = 0;
};

/// How much is read before an opened checkpoint is believed. The manifest, every file's size and structure always are;
/// `lazy` leaves the data to be checked when it is first read.
enum class Verify { full, lazy };

/// An opened, verified checkpoint. Calls may come from several threads; they take turns.
class Reader {
 public:
  /// Opens folder/tag. Structure and checksums are checked; a damaged, half-written or missing part throws
  /// CheckpointError that names it, and the newest good tag that is there.
  Reader(const std::filesystem::path& folder, const std::string& tag, Verify verify = Verify::full);
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  /// Collective: opens folder/tag on every rank, each rank checking a part of the files. Throws on every rank alike.
  static Reader open(comm::Group& group, const std::filesystem::path& folder, const std::string& tag);
  /// Collective, for training.resume = "auto": the checkpoint that `latest` names if it is good, else the newest good
  /// one (with a warning that says why). Nothing where there is no folder, or where it holds nothing but what saves
  /// that never finished have left: a fresh start is right. Throws where something is there but nothing good.
  static std::optional<Reader> open_newest(comm::Group& group, const std::filesystem::path& folder);

  const std::string& tag() const;
  const nlohmann::json& state() const;
  /// In the order of their names.
  const std::vector<TensorInfo>& tensors() const;
  const TensorInfo* find(const std::string& name) const;
  /// Reads elements [offset, offset + out.numel) of a logical tensor; out.type must be the stored type.
  void read(const std::string& name, std::int64_t offset, base::Buffer out) const;

 private:
  struct Impl;
  explicit Reader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The tag that `latest` names (white space around it doesn't count); throws CheckpointError if it is missing, empty,
/// names nothing or leaves the folder, with what it held and the tags that are there.
std::string latest_tag(const std::filesystem::path& folder);
/// The newest tag (by its number: global_step10 is newer than global_step9) that verifies, or nullopt. To resume,
/// prefer Reader::open_newest, which tells "nothing there" from "nothing good there".
std::optional<std::string> newest_good(const std::filesystem::path& folder);
/// All tags, good or not, oldest first.
std::vector<std::string> list_tags(const std::filesystem::path& folder);

}  // namespace deepspeed::checkpoint
