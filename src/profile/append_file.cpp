// SPDX-License-Identifier: Apache-2.0
#include "profile/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"

namespace deepspeed::profile {

AppendFile::AppendFile(const std::string& path) : path_(path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw base::IoError(folder.string() + ": " + error.message());
  descriptor_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!descriptor_) io::throw_system_error("can't open", path, errno);
}

std::uint64_t AppendFile::size() const {
  return io::size_of_file(descriptor_.get(), path_);
}

void AppendFile::append(std::string_view records) {
  while (!records.empty()) {
    const ssize_t written = ::write(descriptor_.get(), records.data(), records.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) io::throw_system_error("can't write", path_, errno);
    records.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AppendFile::cut(std::uint64_t size) {
  if (::ftruncate(descriptor_.get(), static_cast<off_t>(size)) != 0) io::throw_system_error("can't cut", path_, errno);
}

void cut_lines_after(AppendFile& file, std::int64_t last_step, const StepOf& step_of) {
  const io::Mapping mapping(file.path());
  const std::string_view text(reinterpret_cast<const char*>(mapping.data()), mapping.size());
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const std::optional<std::int64_t> step = step_of(text.substr(begin, end - begin));
    if (step && *step > last_step) break;
    begin = end + 1;
  }
  if (begin < text.size()) file.cut(begin);
}

}  // namespace deepspeed::profile
