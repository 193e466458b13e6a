// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deepspeed::data {

/// A whole file as read-only memory. Pages come in as they are read, and all ranks of a node share them.
class MappedFile {
 public:
  /// Throws DataError for a file that is missing, unreadable, empty, or no regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::size_t size() const { return size_; }
  const char* data() const { return data_; }
  std::string_view view() const { return {data_, size_}; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace deepspeed::data
