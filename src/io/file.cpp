// SPDX-License-Identifier: Apache-2.0
#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/error.h"

namespace deepspeed::io {

namespace fs = std::filesystem;

void close_descriptor(int descriptor) {
  ::close(descriptor);
}

void throw_system_error(std::string_view what, const fs::path& path, int error_number) {
  throw base::IoError(base::system_error(fmt::format("{} {}", what, path.string()), error_number));
}

Descriptor open_to_read(const fs::path& path) {
  // Without O_NONBLOCK the opening of a named pipe would wait for a writer.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_system_error("can't open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_system_error("can't look at", path, errno);
  if (S_ISDIR(status.st_mode)) throw_system_error("can't read", path, EISDIR);
  if (!S_ISREG(status.st_mode)) throw base::IoError(fmt::format("{} isn't a regular file", path.string()));
  return file;
}

Descriptor create_file(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) throw_system_error("can't create", path, errno);
  return file;
}

std::uint64_t size_of_file(int descriptor, const fs::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_system_error("can't look at", path, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void read_at(int descriptor, std::span<std::byte> out, std::uint64_t offset, const fs::path& path) {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_system_error("can't read", path, errno);
    }
    if (got == 0)
      throw base::IoError(
          fmt::format("{} ends at byte {}, but {} more bytes should follow", path.string(), offset, out.size()));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void write_at(int descriptor, std::span<const Bytes> pieces, std::uint64_t offset, const fs::path& path) {
  std::size_t piece = 0, done = 0;  // `done` bytes of pieces[piece] are written
  std::array<iovec, 256> vectors{};
  while (true) {
    std::size_t count = 0;
    for (std::size_t i = piece; i < pieces.size() && count < vectors.size(); ++i) {
      const Bytes rest = i == piece ? pieces[i].subspan(done) : pieces[i];
      if (!rest.empty()) vectors[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    if (count == 0) return;
    const ssize_t wrote = ::pwritev(descriptor, vectors.data(), static_cast<int>(count), static_cast<off_t>(offset));
    if (wrote < 0) {
      if (errno == EINTR) continue;
      throw_system_error("can't write", path, errno);
    }
    offset += static_cast<std::uint64_t>(wrote);
    done += static_cast<std::size_t>(wrote);
    while (piece < pieces.size() && done >= pieces[piece].size()) done -= pieces[piece++].size();
  }
}

void write_at(int descriptor, Bytes bytes, std::uint64_t offset, const fs::path& path) {
  write_at(descriptor, std::span<const Bytes>(&bytes, 1), offset, path);
}

std::string read_whole_file(const fs::path& path, std::uint64_t limit) {
  const Descriptor file = open_to_read(path);
  const std::uint64_t size = size_of_file(file.get(), path);
  if (size > limit)
    throw base::IoError(
        fmt::format("{} has {}; at most {} are read", path.string(), human_bytes(size), human_bytes(limit)));
  std::string text(size, '\0');
  read_at(file.get(), std::as_writable_bytes(std::span(text)), 0, path);
  return text;
}

void flush_file(int descriptor, const fs::path& path) {
  while (::fsync(descriptor) != 0)
    if (errno != EINTR) throw_system_error("can't flush", path, errno);
}

void fsync_folder(const fs::path& folder) {
  const fs::path path = folder.empty() ? fs::path(".") : folder;
  const Descriptor opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) throw_system_error("can't open folder", path, errno);
  // Some network file systems can't flush a folder; their renames are synchronous.
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw_system_error("can't flush folder", path, errno);
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  PendingFile file(path);
  write_at(file.descriptor(), std::as_bytes(std::span(bytes)), 0, path);
  file.commit();
  fsync_folder(path.parent_path());
}

std::optional<fs::path> replace_folder(const fs::path& fresh, const fs::path& name, const fs::path& aside,
                                       bool may_exchange) {
  const auto rename = [](const fs::path& from, const fs::path& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) throw_system_error("can't rename to", to, errno);
  };
  std::optional<fs::path> earlier;
  if (!fs::exists(fs::symlink_status(name))) {
    rename(fresh, name);
  } else if (may_exchange && ::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) == 0) {
    earlier = fresh;
  } else {
    rename(name, aside);
    try {
      rename(fresh, name);
    } catch (const base::IoError&) {
      ::rename(aside.c_str(), name.c_str());
      throw;
    }
    earlier = aside;
  }
  fsync_folder(name.parent_path());
  return earlier;
}

std::uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) throw_system_error("can't ask for the free space of", folder, errno);
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

PendingFile::PendingFile(fs::path path) : path_(std::move(path)) {
  static std::atomic<unsigned> counter{0};
  temporary_ =
      path_.parent_path() / fmt::format(".{}.tmp-{}-{}", path_.filename().string(), ::getpid(), counter.fetch_add(1));
  // A dead process of the same id may have left one.
  ::unlink(temporary_.c_str());
  descriptor_ = create_file(temporary_);
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::move(other.descriptor_)) {}

PendingFile::~PendingFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void PendingFile::flush() {
  if (!descriptor_) return;
  flush_file(descriptor_.get(), path_);
  // A network file system may tell of a full disk only here.
  if (::close(descriptor_.release()) != 0) throw_system_error("can't close", path_, errno);
}

void PendingFile::commit() {
  flush();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw_system_error("can't rename to", path_, errno);
  temporary_.clear();
}

Mapping::Mapping(const fs::path& path) {
  const Descriptor file = open_to_read(path);
  size_ = size_of_file(file.get(), path);
  if (size_ == 0) return;  // an empty file can't be mapped
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) throw_system_error("can't map", path, errno);
  data_ = static_cast<const std::byte*>(memory);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

namespace {
bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}
}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || is_control(c); });
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t longest = 200;
  std::string text = "'";
  for (const char c : name.substr(0, longest)) {
    if (is_control(c))
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      text += c;
  }
  return text + (name.size() > longest ? "...'" : "'");
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace deepspeed::io
