// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tags.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/strict_json.h"

namespace deepspeed::checkpoint {

namespace fs = std::filesystem;
using base::CheckpointError;
using nlohmann::json;

void agree(comm::Group& group, const std::string& begin, const std::string& error) {
  if (!group.any(!error.empty())) return;
  std::map<std::string, std::vector<int>> ranks;
  const std::vector<std::string> errors = group.all_gather_text(error);
  for (std::size_t r = 0; r < errors.size(); ++r)
    if (!errors[r].empty()) ranks[errors[r]].push_back(static_cast<int>(r));
  std::string text;
  for (const auto& [what, who] : ranks)
    text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", who.size() == 1 ? "rank" : "ranks",
                        fmt::join(who, ", "), what);
  throw CheckpointError(fmt::format("{}: {}", begin, text));
}

namespace {

/// Rank 0's exclusive hold on a folder while it saves. The kernel lets go when the process dies, however it dies.
class FolderLock {
 public:
  void take(const fs::path& folder) {
    const fs::path path = folder / lock_name;
    file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file_) io::throw_system_error("can't open", path, errno);
    using namespace std::chrono_literals;
    const auto give_up = std::chrono::steady_clock::now() + 3s;  // a run that was just stopped may still be ending
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return;  // a file system without locks
      if (std::chrono::steady_clock::now() > give_up)
        throw CheckpointError(fmt::format("another run is saving to {} (it holds {})", folder.string(), path.string()));
      std::this_thread::sleep_for(50ms);
    }
  }

 private:
  io::Descriptor file_;
};

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) io::throw_system_error("can't create folder", folder, error.value());
}

void need_free_space(const fs::path& folder, std::uint64_t bytes) {
  const std::uint64_t free = io::free_bytes(folder);
  if (free < bytes)
    throw CheckpointError(base::system_error(fmt::format("{}: a checkpoint needs {}, but {} are free", folder.string(),
                                                         io::human_bytes(bytes), io::human_bytes(free)),
                                             ENOSPC));
}

/// Removes what saves that died have left. The caller holds the lock, so nobody is at work on any of it.
void remove_leftovers(const fs::path& folder) {
  for (const std::string& name : list(folder).leftovers) {
    const fs::path path = folder / name;
    const std::size_t mark = name.find(aside_mark);
    const fs::path tag = folder / name.substr(0, mark);
    std::error_code error;
    if (mark != std::string::npos && !fs::exists(tag))
      fs::rename(path, tag, error);  // a replacement was cut off between its two renames
    else
      fs::remove_all(path, error);
    if (error)
      log::warn("{} is left from a save that never finished and can't be removed: {}", path.string(), error.message());
  }
}

/// What this rank holds, checked, with the slices of a tensor in the order of their offsets.
struct Held {
  std::map<std::string, Tensor> tensors;  ///< each with one part, whose place in a file is still open
  std::map<std::string, std::vector<const Slice*>> slices;
};

Held gather_held(const std::vector<Slice>& slices) {
  Held held;
  for (const Slice& slice : slices) {
    const std::string name = io::in_quotes(slice.name);
    if (const std::string problem = problem_of_name(slice.name); !problem.empty())
      throw CheckpointError(fmt::format("tensor name {} {}", name, problem));
    Tensor described{slice.data.type, slice.shape, 0, {}};
    if (!count_elements(slice.shape, slice.data.type, described.numel))
      throw CheckpointError(fmt::format("tensor {} can't have the shape [{}]", name, fmt::join(slice.shape, ", ")));
    if (slice.offset < 0 || slice.data.numel < 0 || slice.offset > described.numel ||
        slice.data.numel > described.numel - slice.offset)
      throw CheckpointError(fmt::format("the slice of {} elements at {} of tensor {} is beyond its {} elements",
                                        slice.data.numel, slice.offset, name, described.numel));
    if (slice.data.numel > 0 && slice.data.data == nullptr)
      throw CheckpointError(fmt::format("a slice of tensor {} has no data", name));
    if (slice.data.numel == 0 && described.numel > 0) continue;  // a rank whose share is padding only
    const auto [found, is_new] = held.tensors.emplace(slice.name, described);
    if (!is_new && (found->second.type != described.type || found->second.shape != described.shape))
      throw CheckpointError(fmt::format("the slices of tensor {} differ in dtype or shape", name));
    held.slices[slice.name].push_back(&slice);
  }
  for (auto& [name, tensor] : held.tensors) {
    auto& own = held.slices[name];
    std::ranges::stable_sort(own, {}, &Slice::offset);
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (const Slice* slice : own) ranges.emplace_back(slice->offset, slice->data.numel);
    tensor.parts.push_back({0, 0, to_runs(std::move(ranges)), {}});
  }
  return held;
}

/// Every rank's text, on rank 0 (elsewhere nothing).
std::vector<std::string> gather_text(comm::Group& group, const std::string& text) {
  constexpr int tag = 0x636b;
  std::vector<std::string> texts;
  auto size = static_cast<std::int64_t>(text.size());
  const auto as_buffer = [](void* data, std::int64_t bytes) { return base::Buffer{data, bytes, base::Dtype::u8}; };
  if (group.rank() != 0) {
    group.send(base::Buffer{&size, 1, base::Dtype::i64}, 0, tag).wait();
    if (size > 0) group.send({text.data(), size, base::Dtype::u8}, 0, tag).wait();
    return texts;
  }
  texts.push_back(text);
  for (int r = 1; r < group.size(); ++r) {
    group.receive(base::Buffer{&size, 1, base::Dtype::i64}, r, tag).wait();
    texts.emplace_back(static_cast<std::size_t>(size), '\0');
    if (size > 0) group.receive(as_buffer(texts.back().data(), size), r, tag).wait();
  }
  return texts;
}

/// Joins the ranks' tensors; `file_offset[r]` is added to the file numbers of rank r.
std::map<std::string, Tensor> merge(const std::vector<std::map<std::string, Tensor>>& ranks,
                                    const std::vector<std::size_t>& file_offset) {
  std::map<std::string, Tensor> merged;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const auto& [name, tensor] : ranks[r]) {
      auto [found, is_new] = merged.emplace(name, Tensor{tensor.type, tensor.shape, tensor.numel, {}});
      if (found->second.type != tensor.type || found->second.shape != tensor.shape)
        throw CheckpointError(fmt::format("tensor {} is {} [{}] on rank {}, but {} [{}] on a rank before it",
                                          io::in_quotes(name), base::name_of(tensor.type),
                                          fmt::join(tensor.shape, ", "), r, base::name_of(found->second.type),
                                          fmt::join(found->second.shape, ", ")));
      if (tensor.numel == 0 && !is_new) continue;  // nothing, given by several ranks
      for (Part part : tensor.parts) {
        part.file += file_offset[r];
        found->second.parts.push_back(std::move(part));
      }
    }
  }
  return merged;
}

/// DeepSpeed's names. The model's tensors lie in one file where rank 0 holds them all, else in one file a rank.
std::string file_name_of(const std::string& tensor, int rank, bool model_is_spread) {
  if (!tensor.starts_with("model/")) return fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.h5", rank);
  if (model_is_spread) return fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.h5", rank);
  return "mp_rank_00_model_states.h5";
}

/// Writes the data of one tensor in one file, chunk by chunk, and notes the checksums.
void write_data(int descriptor, const fs::path& path, const std::vector<const Slice*>& slices,
                std::uint64_t chunk_bytes, Part& part) {
  std::uint64_t position = part.position;
  std::vector<io::Bytes> chunk;
  std::uint64_t filled = 0;
  io::Xxh3 hash;
  const auto write_chunk = [&] {
    if (filled == 0) return;
    std::uint64_t checksum = 0;
    if (chunk.size() == 1) {
      checksum = io::xxh3_64(chunk.front());
    } else {
      hash.reset();
      for (const io::Bytes piece : chunk) hash.add(piece);
      checksum = hash.value_64();
    }
    io::write_at(descriptor, chunk, position, path);
    part.chunks.push_back(checksum);
    position += filled;
    filled = 0;
    chunk.clear();
  };
  for (const Slice* slice : slices) {
    io::Bytes rest(static_cast<const std::byte*>(slice->data.data), slice->data.bytes());
    while (!rest.empty()) {
      const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), chunk_bytes - filled));
      chunk.push_back(rest.first(take));
      filled += take;
      rest = rest.subspan(take);
      if (filled == chunk_bytes) write_chunk();
    }
  }
  write_chunk();
}

/// Writes this rank's files into `folder`; fills in the parts' files (numbered among this rank's) and places.
std::vector<File> write_files(const fs::path& folder, Held& held, int rank, bool model_is_spread,
                              std::uint64_t chunk_bytes) {
  std::map<std::string, std::vector<std::string>> names;  // file -> its tensors
  for (const auto& [name, tensor] : held.tensors) names[file_name_of(name, rank, model_is_spread)].push_back(name);
  std::vector<File> files;
  for (const auto& [file_name, tensor_names] : names) {
    const fs::path path = folder / file_name;
    {
      io::Hdf5File file = io::Hdf5File::create(path);
      file.set_attribute("/", "format", "deepspeed-mpi checkpoint, version " + std::to_string(format_version));
      for (const std::string& name : tensor_names) {
        const Tensor& tensor = held.tensors.at(name);
        const std::vector<Intervals>& runs = tensor.parts.front().runs;
        const std::int64_t numel = numel_of(runs);
        // A whole tensor keeps its shape; a part of one is a row of elements, whose places the attribute tells.
        file.create_dataset(name, tensor.type, numel == tensor.numel ? tensor.shape : std::vector{numel});
        std::vector<std::int64_t> table;
        for (const Intervals& run : runs) table.insert(table.end(), {run.offset, run.count, run.stride, run.repeat});
        file.set_attribute(name, "dtype", std::string(base::name_of(tensor.type)));
        file.set_attribute(name, "shape", tensor.shape);
        file.set_attribute(name, "slices", table, 4);
      }
      for (const std::string& name : tensor_names) {
        Part& part = held.tensors.at(name).parts.front();
        part.file = files.size();
        if (!part.runs.empty()) part.position = file.offset(name);
      }
      file.close();
    }
    const io::Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!descriptor) io::throw_system_error("can't open", path, errno);
    std::vector<Extent> extents;
    for (const std::string& name : tensor_names) {
      Tensor& tensor = held.tensors.at(name);
      Part& part = tensor.parts.front();
      write_data(descriptor.get(), path, held.slices.at(name), chunk_bytes, part);
      if (const std::uint64_t bytes = bytes_of(part, tensor.type); bytes > 0)
        extents.push_back({part.position, part.position + bytes, name});
    }
    std::ranges::sort(extents, {}, &Extent::begin);
    const std::uint64_t size = io::size_of_file(descriptor.get(), path);
    files.push_back({file_name, rank, size, structure_checksum(descriptor.get(), path, size, extents)});
    io::flush_file(descriptor.get(), path);
  }
  return files;
}

/// The state must come back as it is: JSON has no infinity and no NaN, and text must be UTF-8.
void check_state(const json& state) {
  json again;
  try {
    again = io::parse_strict_json(state.dump(), "the state record", 60);
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("the state record can't be written as JSON: {}", error.what()));
  }
  if (again == state) return;
  const json difference = json::diff(state, again);
  const std::string where = difference.empty() ? "" : difference.front()["path"].get<std::string>();
  throw CheckpointError(fmt::format("the state record can't be written as JSON: {} would change (not a finite number?)",
                                    where.empty() ? "a value" : where));
}

/// A folder of this tag may be replaced only if it is a checkpoint, or empty.
void check_target(const fs::path& target) {
  const auto status = fs::symlink_status(target);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status) || (!fs::is_empty(target) && !fs::exists(target / manifest_name)))
    throw CheckpointError(
        fmt::format("{} is there already and isn't a checkpoint: it won't be replaced", target.string()));
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log::warn("can't remove {}: {}", path.string(), error.message());
}

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Removes the oldest good checkpoints of `tag`'s series beyond `keep`. Failing at that isn't failing to save.
void prune(const fs::path& folder, const std::string& tag, int keep) {
  if (keep <= 0) return;
  std::string latest;
  try {
    latest = latest_tag(folder);
  } catch (const CheckpointError&) {
    // Without `latest` nothing is named.
  }
  std::vector<std::pair<std::int64_t, std::string>> others;
  for (const std::string& other : list(folder).tags) {
    if (other == tag || series_of(other) != series_of(tag)) continue;
    try {
      others.emplace_back(read_manifest(folder / other).saved_at, other);
    } catch (const CheckpointError&) {
      log::warn("{} isn't a good checkpoint; keep_last doesn't count it, nor remove it", (folder / other).string());
    }
  }
  std::sort(others.rbegin(), others.rend());
  for (std::size_t i = static_cast<std::size_t>(keep) - 1; i < others.size(); ++i) {
    const std::string& old = others[i].second;
    if (old == latest) continue;
    // Under a temporary name first: a removal that is cut off mustn't leave a checkpoint with holes.
    const fs::path away = folder / fmt::format("{}{}removed-{}", old, temporary_mark, ::getpid());
    std::error_code error;
    fs::rename(folder / old, away, error);
    if (error)
      log::warn("the old checkpoint {} can't be removed: {}", (folder / old).string(), error.message());
    else
      remove_tree(away);
  }
}

}  // namespace

void check_folder(const fs::path& folder, std::uint64_t bytes) {
  try {
    make_folder(folder);
    { io::PendingFile(folder / "probe"); }
    need_free_space(folder, bytes);
  } catch (const base::IoError& error) {
    throw CheckpointError(fmt::format("checkpoints can't be saved: {}", error.what()));
  }
}

void save(comm::Group& group, const SaveOptions& options, const std::vector<Slice>& slices, const json& state) {
  const fs::path& folder = options.folder;
  const std::string& tag = options.tag;
  const bool first = group.rank() == 0;
  const fs::path target = folder / tag;
  const std::string asked = group.broadcast_text(first ? target.string() : "", 0);
  const std::string failed = fmt::format("checkpoint {} wasn't saved", asked);

  // Everything that can be known to be wrong before a byte is written.
  Held held;
  together(group, failed, [&] {
    if (asked != target.string())
      throw CheckpointError(fmt::format("rank 0 saves {}, this rank {}", asked, target.string()));
    if (const std::string problem = problem_of_tag(tag); !problem.empty())
      throw CheckpointError(fmt::format("the tag {} {}", io::in_quotes(tag), problem));
    held = gather_held(slices);
    if (first) check_state(state);
  });
  const std::vector<std::string> tables = gather_text(group, to_json(held.tensors).dump());
  const bool model_is_spread = group.any(
      !first && std::ranges::any_of(held.tensors, [](const auto& t) { return t.first.starts_with("model/"); }));

  FolderLock lock;
  bool made = false;
  fs::path temporary = folder / fmt::format("{}{}{}-{}", tag, temporary_mark, ::getpid(), nanoseconds_now());
  temporary = group.broadcast_text(first ? temporary.string() : "", 0);
  Manifest manifest;
  manifest.tag = tag;
  manifest.ranks = group.size();
  manifest.state = state;
  std::vector<std::map<std::string, Tensor>> of_ranks;
  try {
    together(group, failed, [&] {
      if (!first) return;
      std::uint64_t needed = 0;
      for (const std::string& table : tables) of_ranks.push_back(tensors_from_json(json::parse(table), "the slices"));
      const auto tensors = merge(of_ranks, std::vector<std::size_t>(of_ranks.size(), 0));
      validate_tensors(tensors, "the slices that the ranks gave");
      constexpr std::uint64_t per_file = 1 << 17, per_part = 8192;  // HDF5's structure, padding, the manifest
      for (const auto& [name, tensor] : tensors)
        needed +=
            static_cast<std::uint64_t>(tensor.numel) * base::size_of(tensor.type) + per_part * tensor.parts.size();
      needed += per_file * (2 * static_cast<std::uint64_t>(group.size()) + 1);
      make_folder(folder);
      check_target(target);
      lock.take(folder);
      remove_leftovers(folder);
      if (options.check_free_space) need_free_space(folder, needed);
      made = fs::create_directory(temporary);
      if (!made) throw CheckpointError(temporary.string() + " is there already");
    });

    std::vector<File> files;
    together(group, failed,
             [&] { files = write_files(temporary, held, group.rank(), model_is_spread, manifest.chunk_bytes); });

    json own_files = json::array();
    for (const File& file : files) own_files.push_back({file.name, file.rank, file.bytes, file.structure});
    const std::vector<std::string> written =
        gather_text(group, json{{"files", own_files}, {"tensors", to_json(held.tensors)}}.dump());
    together(group, failed, [&] {
      if (!first) return;
      of_ranks.clear();
      std::vector<std::size_t> file_offset;
      for (const std::string& text : written) {
        const json record = json::parse(text);
        file_offset.push_back(manifest.files.size());
        for (const json& file : record["files"])
          manifest.files.push_back({file[0].get<std::string>(), file[1].get<int>(), file[2].get<std::uint64_t>(),
                                    file[3].get<std::string>()});
        of_ranks.push_back(tensors_from_json(record["tensors"], "a rank's slices"));
      }
      manifest.tensors = merge(of_ranks, file_offset);
      manifest.saved_at = nanoseconds_now();
      validate(manifest, "what the ranks wrote");
      for (const File& file : manifest.files) {
        std::error_code error;
        if (fs::file_size(temporary / file.name, error) != file.bytes || error)
          throw CheckpointError(fmt::format(
              "{}, written by rank {}, isn't seen by rank 0: the folder must be on a file system that all ranks share",
              (temporary / file.name).string(), file.rank));
      }
      io::write_file_atomically(temporary / manifest_name, to_text(manifest));
      io::fsync_folder(temporary);
      const fs::path aside = folder / fmt::format("{}{}{}", tag, aside_mark, nanoseconds_now());
      if (const auto earlier = io::replace_folder(temporary, target, aside)) remove_tree(*earlier);
    });
  } catch (const CheckpointError&) {
    if (made) remove_tree(temporary);
    throw;
  }
  together(group, fmt::format("checkpoint {} is saved, but 'latest' doesn't name it", target.string()), [&] {
    if (!first || !options.save_latest) return;
    io::write_file_atomically(folder / latest_name, tag);
  });
  if (first) {
    try {
      prune(folder, tag, options.keep_last);
    } catch (const base::IoError& error) {
      log::warn("older checkpoints can't be looked through: {}", error.what());
    }
  }
}

}  // namespace deepspeed::checkpoint
