// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "io/file.h"

namespace deepspeed::data {

/// A whole data file as read-only memory. Pages come in as they are read, and all ranks of a node share them.
class MappedFile {
 public:
  /// Throws DataError for a file that is missing, unreadable, empty, or no regular file.
  explicit MappedFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::size_t size() const { return mapping_.size(); }
  const char* data() const { return reinterpret_cast<const char*>(mapping_.data()); }
  std::string_view view() const { return {data(), size()}; }

 private:
  std::string path_;
  io::Mapping mapping_;
};

}  // namespace deepspeed::data
