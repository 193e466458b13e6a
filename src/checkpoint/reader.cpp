// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tags.h"
#include "io/checksum.h"
#include "io/file.h"

namespace deepspeed::checkpoint {

namespace fs = std::filesystem;
using base::CheckpointError;

namespace {

/// A checkpoint whose manifest is read, and the knowledge of which of its data has been checked.
struct OpenCheckpoint {
  std::string tag;
  fs::path path;
  Manifest manifest;
  std::vector<TensorInfo> infos;

  /// A run of a tensor's elements and where it lies.
  struct Segment {
    std::int64_t offset, count;
    std::size_t part;
    std::int64_t place;  ///< elements before it in the part
  };
  std::map<std::string, std::vector<Segment>> segments;  ///< sorted by offset; made when a tensor is first read
  std::map<std::string, std::vector<std::vector<bool>>> verified;  ///< [part][chunk]
  std::map<std::size_t, io::Descriptor> open_files;
  std::mutex mutex;

  /// Reads the manifest and checks every file's size.
  OpenCheckpoint(const fs::path& folder, std::string name) : tag(std::move(name)) {
    if (const std::string problem = problem_of_tag(tag); !problem.empty())
      throw CheckpointError(fmt::format("the checkpoint tag {} {}", io::in_quotes(tag), problem));
    std::error_code error;
    if (!fs::is_directory(folder, error))
      throw CheckpointError(fmt::format("{}: there is no such folder of checkpoints", folder.string()));
    path = path_of(folder, tag);
    if (!fs::is_directory(path, error))
      throw CheckpointError(fmt::format("{}: there is no such checkpoint", path.string()));
    manifest = read_manifest(path);
    // A folder that was renamed or copied under another name is still good; its own record says what it was.
    for (const auto& [tensor_name, tensor] : manifest.tensors)
      infos.push_back({tensor_name, tensor.shape, tensor.type, tensor.numel});
    for (const auto& [tensor_name, tensor] : manifest.tensors)
      for (const Part& part : tensor.parts) verified[tensor_name].emplace_back(part.chunks.size(), false);
  }

  int descriptor(std::size_t file) {
    const auto found = open_files.find(file);
    if (found != open_files.end()) return found->second.get();
    constexpr std::size_t most = 64;  // a checkpoint of thousands of ranks has more files than a process may open
    if (open_files.size() >= most) open_files.clear();
    return open_files.emplace(file, io::open_to_read(path / manifest.files[file].name)).first->second.get();
  }

  void verify_structure(std::size_t f) {
    const File& file = manifest.files[f];
    if (structure_checksum(descriptor(f), path / file.name, file.bytes, extents_of(manifest, f)) != file.structure)
      throw CheckpointError(
          fmt::format("{} is damaged: its structure (outside the tensors' data) isn't what was written",
                      (path / file.name).string()));
  }

  /// Reads one chunk of a part into `out` and compares its checksum.
  void read_chunk(const std::string& name, const Tensor& tensor, std::size_t p, std::size_t chunk,
                  std::span<std::byte> out) {
    const Part& part = tensor.parts[p];
    const std::uint64_t begin = part.position + chunk * manifest.chunk_bytes;
    const fs::path file = path / manifest.files[part.file].name;
    io::read_at(descriptor(part.file), out, begin, file);
    if (io::xxh3_64(out) != part.chunks[chunk])
      throw CheckpointError(
          fmt::format("{} is damaged: tensor {} isn't what was written, in bytes {} to {} of the file", file.string(),
                      io::in_quotes(name), begin, begin + out.size()));
    verified[name][p][chunk] = true;
  }

  std::uint64_t chunk_size(const Tensor& tensor, std::size_t p, std::size_t chunk) const {
    return std::min(manifest.chunk_bytes, bytes_of(tensor.parts[p], tensor.type) - chunk * manifest.chunk_bytes);
  }

  void verify_data(std::size_t f) {
    std::vector<std::byte> buffer;
    for (const auto& [name, tensor] : manifest.tensors) {
      for (std::size_t p = 0; p < tensor.parts.size(); ++p) {
        if (tensor.parts[p].file != f) continue;
        for (std::size_t chunk = 0; chunk < tensor.parts[p].chunks.size(); ++chunk) {
          buffer.resize(chunk_size(tensor, p, chunk));
          read_chunk(name, tensor, p, chunk, buffer);
        }
      }
    }
  }

  void verify(std::size_t f, Verify how) {
    try {
      verify_structure(f);
      if (how == Verify::full) verify_data(f);
    } catch (const base::IoError& error) {  // for the caller, a file that can't be read is a damaged checkpoint
      throw CheckpointError(error.what());
    }
  }

  void believe_all() {
    for (auto& [name, parts] : verified)
      for (std::vector<bool>& chunks : parts) chunks.assign(chunks.size(), true);
  }

  const std::vector<Segment>& segments_of(const std::string& name, const Tensor& tensor) {
    const auto [found, is_new] = segments.try_emplace(name);
    if (!is_new) return found->second;
    for (std::size_t p = 0; p < tensor.parts.size(); ++p) {
      std::int64_t place = 0;
      for (const Intervals& run : tensor.parts[p].runs) {
        for (std::int64_t k = 0; k < run.repeat; ++k, place += run.count)
          found->second.push_back({run.offset + k * run.stride, run.count, p, place});
      }
    }
    std::ranges::sort(found->second, {}, &Segment::offset);
    return found->second;
  }

  /// Bytes [begin, end) of a part's data.
  void read_bytes(const std::string& name, const Tensor& tensor, std::size_t p, std::uint64_t begin, std::uint64_t end,
                  std::byte* out, std::vector<std::byte>& scratch) {
    const Part& part = tensor.parts[p];
    while (begin < end) {
      const std::size_t chunk = begin / manifest.chunk_bytes;
      const std::uint64_t chunk_begin = chunk * manifest.chunk_bytes;
      const std::uint64_t size = chunk_size(tensor, p, chunk);
      const std::uint64_t stop = std::min(end, chunk_begin + size);
      const std::span wanted(out, static_cast<std::size_t>(stop - begin));
      if (verified[name][p][chunk]) {
        io::read_at(descriptor(part.file), wanted, part.position + begin, path / manifest.files[part.file].name);
      } else if (wanted.size() == size) {
        read_chunk(name, tensor, p, chunk, wanted);
      } else {
        scratch.resize(size);
        read_chunk(name, tensor, p, chunk, scratch);
        std::memcpy(out, scratch.data() + (begin - chunk_begin), wanted.size());
      }
      out += wanted.size();
      begin = stop;
    }
  }

  void read(const std::string& name, std::int64_t offset, base::Buffer out) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end())
      throw CheckpointError(
          fmt::format("{}: there is no tensor {} in this checkpoint", path.string(), io::in_quotes(name)));
    const Tensor& tensor = found->second;
    if (out.type != tensor.type)
      throw CheckpointError(fmt::format("{}: tensor {} is stored as {}, not {}", path.string(), io::in_quotes(name),
                                        base::name_of(tensor.type), base::name_of(out.type)));
    if (offset < 0 || out.numel < 0 || offset > tensor.numel || out.numel > tensor.numel - offset)
      throw CheckpointError(fmt::format("{}: tensor {} has {} elements; {} from {} on were asked for", path.string(),
                                        io::in_quotes(name), tensor.numel, out.numel, offset));
    const std::lock_guard lock(mutex);
    const std::vector<Segment>& all = segments_of(name, tensor);
    const auto element = static_cast<std::int64_t>(base::size_of(tensor.type));
    auto* to = static_cast<std::byte*>(out.data);
    std::vector<std::byte> scratch;
    // The last segment that begins at or before `offset`; they cover the tensor without gaps.
    auto segment = std::ranges::upper_bound(all, offset, {}, &Segment::offset);
    if (segment != all.begin()) --segment;
    for (std::int64_t left = out.numel; left > 0; ++segment) {
      const std::int64_t skip = offset - segment->offset;
      const std::int64_t count = std::min(left, segment->count - skip);
      const auto begin = static_cast<std::uint64_t>((segment->place + skip) * element);
      const auto bytes = static_cast<std::uint64_t>(count * element);
      read_bytes(name, tensor, segment->part, begin, begin + bytes, to, scratch);
      to += bytes;
      offset += count;
      left -= count;
    }
  }
};

void verify_all(OpenCheckpoint& checkpoint, Verify how) {
  for (std::size_t f = 0; f < checkpoint.manifest.files.size(); ++f) checkpoint.verify(f, how);
}

bool is_good(const fs::path& folder, const std::string& tag) {
  try {
    OpenCheckpoint checkpoint(folder, tag);
    verify_all(checkpoint, Verify::full);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

std::optional<std::string> newest_good_but(const fs::path& folder, const std::string& bad) {
  const std::vector<std::string> tags = list(folder).tags;
  const auto found =
      std::find_if(tags.rbegin(), tags.rend(), [&](const auto& tag) { return tag != bad && is_good(folder, tag); });
  return found == tags.rend() ? std::nullopt : std::optional(*found);
}

/// What could be loaded instead of the tag that failed.
std::string advice(const fs::path& folder, const std::string& bad) {
  try {
    if (const auto good = newest_good_but(folder, bad))
      return fmt::format(". The newest good checkpoint in {} is {}: it can be loaded by this tag", folder.string(),
                         *good);
  } catch (const base::IoError&) {
    return "";  // the folder itself is what can't be read
  }
  return fmt::format(". There is no {}good checkpoint in {}", bad.empty() ? "" : "other ", folder.string());
}

}  // namespace

struct Reader::Impl : OpenCheckpoint {
  using OpenCheckpoint::OpenCheckpoint;
};

Reader::Reader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;

Reader::Reader(const fs::path& folder, const std::string& tag, Verify verify) {
  try {
    impl_ = std::make_unique<Impl>(folder, tag);
    verify_all(*impl_, verify);
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.what() + advice(folder, tag));
  }
}

namespace {

/// Opens a checkpoint on every rank, each checking every size()th file; throws on every rank alike.
template <class Impl>
std::unique_ptr<Impl> open_together(comm::Group& group, const fs::path& folder, const std::string& tag) {
  std::unique_ptr<Impl> opened;
  together(group, "can't load a checkpoint", [&] {
    opened = std::make_unique<Impl>(folder, tag);
    const auto step = static_cast<std::size_t>(group.size());
    for (auto f = static_cast<std::size_t>(group.rank()); f < opened->manifest.files.size(); f += step)
      opened->verify(f, Verify::full);
  });
  opened->believe_all();
  return opened;
}

}  // namespace

Reader Reader::open(comm::Group& group, const fs::path& folder, const std::string& tag) {
  try {
    return Reader(open_together<Impl>(group, folder, tag));
  } catch (const CheckpointError& error) {
    const std::string more = group.broadcast_text(group.rank() == 0 ? advice(folder, tag) : "", 0);
    throw CheckpointError(error.what() + more);
  }
}

std::optional<Reader> Reader::open_newest(comm::Group& group, const fs::path& folder) {
  // Rank 0 looks what is there: candidates in the order to try, and why the first isn't what `latest` says.
  nlohmann::json plan;
  together(group, "can't look for checkpoints", [&] {
    if (group.rank() != 0) return;
    const Listing listing = list(folder);
    std::vector<std::string> candidates(listing.tags.rbegin(), listing.tags.rend());
    std::string reason;
    const bool fresh = candidates.empty() && !listing.has_latest && !listing.has_others;
    if (!fresh) {
      try {
        const std::string latest = latest_tag(folder);
        const auto place = std::ranges::find(candidates, latest);
        std::rotate(candidates.begin(), place, place + 1);
      } catch (const CheckpointError& error) {
        reason = error.what();
      }
    }
    plan = {{"fresh", fresh}, {"candidates", candidates}, {"reason", reason}};
  });
  plan = nlohmann::json::parse(group.broadcast_text(group.rank() == 0 ? plan.dump() : "", 0));
  if (plan["fresh"].get<bool>()) return std::nullopt;
  std::string reason = plan["reason"].get<std::string>();
  for (const auto& candidate : plan["candidates"]) {
    const auto tag = candidate.get<std::string>();
    try {
      Reader reader(open_together<Impl>(group, folder, tag));
      if (!reason.empty()) log::warn("{}. Going on from {}, the newest good one", reason, tag);
      return reader;
    } catch (const CheckpointError& error) {
      if (!reason.empty()) log::warn("{}", reason);
      reason = error.what();
    }
  }
  throw CheckpointError(
      fmt::format("{} isn't empty but holds no good checkpoint to resume from (last error: {}). Remove it, or choose "
                  "another folder, "
                  "to begin afresh",
                  folder.string(), reason.empty() ? "none" : reason));
}

const std::string& Reader::tag() const {
  return impl_->tag;
}
const nlohmann::json& Reader::state() const {
  return impl_->manifest.state;
}
const std::vector<TensorInfo>& Reader::tensors() const {
  return impl_->infos;
}

const TensorInfo* Reader::find(const std::string& name) const {
  const auto found = std::ranges::lower_bound(impl_->infos, name, {}, &TensorInfo::name);
  return found == impl_->infos.end() || found->name != name ? nullptr : &*found;
}

void Reader::read(const std::string& name, std::int64_t offset, base::Buffer out) const {
  impl_->read(name, offset, out);
}

std::optional<std::string> newest_good(const fs::path& folder) {
  return newest_good_but(folder, "");
}

}  // namespace deepspeed::checkpoint
