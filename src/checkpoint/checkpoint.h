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

namespace deepspeed::checkpoint {

/// A contiguous run of a logical tensor's row-major elements, [offset, offset + data.numel), held by this rank.
struct Slice {
  std::string name;                 ///< logical name, "model/transformer.h.0.ln_1.weight", "optimizer/exp_avg/..."
  std::vector<std::int64_t> shape;  ///< global shape
  std::int64_t offset = 0;
  base::ConstBuffer data;  ///< host memory
};

struct SaveOptions {
  std::filesystem::path folder;  ///< the folder that holds TAG/ and latest
  std::string tag;
  bool save_latest = true;
  int keep_last = 0;  ///< older good checkpoints beyond this many are removed after the commit; 0 keeps all
};

/// Collective. Every rank gives the slices it owns (together they must cover each tensor exactly once) and rank 0 the
/// state record. All is written under a temporary name, flushed, described by a manifest with checksums, and committed
/// by rename; then `latest` is replaced by rename. Throws CheckpointError/IoError on every rank; what was there stays.
void save(comm::Group& group, const SaveOptions& options, const std::vector<Slice>& slices,
          const nlohmann::json& state);

/// What a logical tensor is in a checkpoint.
struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  base::Dtype type = base::Dtype::f32;
  std::int64_t numel = 0;
};

/// An opened, verified checkpoint.
class Reader {
 public:
  /// Opens folder/tag. Structure and checksums are checked; a damaged, half-written or missing part throws
  /// CheckpointError that names it, and the newest good tag that is there.
  Reader(const std::filesystem::path& folder, const std::string& tag);
  ~Reader();
  const nlohmann::json& state() const;
  const std::vector<TensorInfo>& tensors() const;
  const TensorInfo* find(const std::string& name) const;
  /// Reads elements [offset, offset + out.numel) of a logical tensor; out.type must be the stored type.
  void read(const std::string& name, std::int64_t offset, base::Buffer out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The tag that `latest` names; throws CheckpointError if it is missing, empty, names nothing or leaves the folder.
std::string latest_tag(const std::filesystem::path& folder);
/// The newest tag that verifies, or nullopt; for training.resume = "auto".
std::optional<std::string> newest_good(const std::filesystem::path& folder);

}  // namespace deepspeed::checkpoint
