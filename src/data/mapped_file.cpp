// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/handle.h"

namespace deepspeed::data {
namespace {

void close_descriptor(int descriptor) {
  ::close(descriptor);
}
using Descriptor = base::Handle<int, close_descriptor, -1>;

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor) {
    throw base::DataError(base::system_error(path, errno) + "; give a data file that this rank can read");
  }
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) throw base::DataError(base::system_error(path, errno));
  if (S_ISDIR(status.st_mode)) throw base::DataError(path + " is a directory; name the data files in it");
  if (!S_ISREG(status.st_mode)) throw base::DataError(path + " is no regular file; write the data to a file first");
  if (status.st_size == 0) throw base::DataError(path + " is empty; give a file with data, or leave it out");
  size_ = static_cast<std::size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (memory == MAP_FAILED) throw base::DataError(base::system_error(path, errno));
  data_ = static_cast<const char*>(memory);
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace deepspeed::data
