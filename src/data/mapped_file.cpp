// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.h"

#include <filesystem>

#include "base/error.h"

namespace deepspeed::data {
namespace {

io::Mapping map(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw base::DataError(path + " is a directory; name the data files in it");
  }
  try {
    return io::Mapping(path);
  } catch (const base::IoError& error) {
    throw base::DataError(std::string(error.what()) + "; give a data file that this rank can read");
  }
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path), mapping_(map(path)) {
  if (mapping_.size() == 0) throw base::DataError(path + " is empty; give a file with data, or leave it out");
}

}  // namespace deepspeed::data
