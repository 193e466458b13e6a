// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/handle.h"

/// Files as the checkpoint and model readers need them: whole reads and writes at an offset, temporaries that become
/// visible by rename only, flushed folders. Everything throws IoError with the path and the system's own words.
namespace deepspeed::io {

using Bytes = std::span<const std::byte>;

void close_descriptor(int descriptor);
using Descriptor = base::Handle<int, close_descriptor, -1>;

/// Throws IoError "WHAT PATH: system error".
[[noreturn]] void throw_system_error(std::string_view what, const std::filesystem::path& path, int error_number);

/// Opens a regular file to be read. A folder, pipe or device is refused rather than waited for.
Descriptor open_to_read(const std::filesystem::path& path);
/// Makes a new file; it must not exist yet.
Descriptor create_file(const std::filesystem::path& path);
std::uint64_t size_of_file(int descriptor, const std::filesystem::path& path);

/// Reads exactly out.size() bytes; a file that ends earlier is an error.
void read_at(int descriptor, std::span<std::byte> out, std::uint64_t offset, const std::filesystem::path& path);
/// Writes the pieces one behind the other.
void write_at(int descriptor, std::span<const Bytes> pieces, std::uint64_t offset, const std::filesystem::path& path);
void write_at(int descriptor, Bytes bytes, std::uint64_t offset, const std::filesystem::path& path);

/// The whole of a regular file, which may have at most `limit` bytes.
std::string read_whole_file(const std::filesystem::path& path, std::uint64_t limit = std::uint64_t{1} << 30);

/// Puts a file's data and size on the disk.
void flush_file(int descriptor, const std::filesystem::path& path);
/// Puts a folder's entries on the disk: what a rename needs before it survives a power cut.
void fsync_folder(const std::filesystem::path& folder);

/// Replaces a file in one step: a temporary beside it, fsync, rename, fsync of the folder. Readers see the old or the
/// new content, whenever this process is stopped.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// Puts folder `fresh` in the place of folder `name`, which may exist. Returns where the earlier one is now, for the
/// caller to remove. Where the file system can exchange names there is no moment without `name`; elsewhere the earlier
/// one is first set aside as `aside` (which a reader must know to look for). The parent folder is flushed.
std::optional<std::filesystem::path> replace_folder(const std::filesystem::path& fresh,
                                                    const std::filesystem::path& name,
                                                    const std::filesystem::path& aside, bool may_exchange = true);

/// Bytes that an ordinary user can still write to the file system of this folder.
std::uint64_t free_bytes(const std::filesystem::path& folder);

/// A file under a temporary name in the folder of `path`. `commit` flushes it and renames it to `path`; without that
/// the temporary is removed.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path path);
  ~PendingFile();
  PendingFile(PendingFile&&) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  int descriptor() const { return descriptor_.get(); }
  const std::filesystem::path& path() const { return path_; }
  /// Flushes and closes the temporary; the rename is still to come. For several files that become visible together.
  void flush();
  /// Renames (after `flush` if that wasn't called). The folder is flushed by the caller.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  Descriptor descriptor_;
};

/// A read-only map of a whole file. A file that another process cuts short while it is mapped ends this one (SIGBUS):
/// what this library writes is replaced by rename, never changed in place.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  const std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// True for a name that stays in its folder: not empty, "." or "..", no '/', no control character, at most 255 bytes.
bool is_plain_name(std::string_view name);
/// For messages about names from files: in quotes, control characters as \xNN, cut at 200 bytes.
std::string in_quotes(std::string_view name);
/// "3.2 GiB", "17 bytes".
std::string human_bytes(std::uint64_t bytes);

}  // namespace deepspeed::io
