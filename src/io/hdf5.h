// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"

/// HDF5 files, without HDF5's (and its MPI's) headers. The library as distributions build it isn't safe for threads:
/// one lock in the process serves every call here. Its printing of errors is off; the text of its error stack goes into
/// the IoError instead.
namespace deepspeed::io {

class Hdf5File {
 public:
  /// Makes a new file. Objects are aligned to 4096 bytes, carry no time stamps (equal content gives equal files) and
  /// use HDF5 1.8 to 1.10 structures, which allow attributes above 64 KB.
  static Hdf5File create(const std::filesystem::path& path);
  /// Opens a file to be read.
  static Hdf5File open(const std::filesystem::path& path);
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) noexcept;

  /// A contiguous dataset whose room in the file is given now and never filled: its data is written behind HDF5's back,
  /// with pwrite at `offset`, after `close`. Groups in the name ("model/wte") are made. Types of the file are
  /// little-endian; bf16 is a float of 8 exponent and 7 mantissa bits, bool the enumeration of bytes that h5py uses.
  void create_dataset(const std::string& name, base::Dtype type, const std::vector<std::int64_t>& shape);
  /// Attributes of a dataset or group ("/" is the file itself).
  void set_attribute(const std::string& object, const std::string& name, const std::string& text);
  /// `columns` > 0 makes a table of that many columns.
  void set_attribute(const std::string& object, const std::string& name, const std::vector<std::int64_t>& values,
                     std::int64_t columns = 0);
  /// Where a dataset's data begins in the file, in bytes. A dataset without elements has no place: throws.
  std::uint64_t offset(const std::string& name) const;
  /// Writes a made file's structure to its path, with holes where data will be; errors of the disk show here. Without
  /// it no file is left.
  void close();

  /// Full names of all datasets, in the order of names; links to other places aren't followed.
  std::vector<std::string> datasets() const;
  std::vector<std::int64_t> shape(const std::string& name) const;
  /// The dataset's type; throws if it is none of base::Dtype.
  base::Dtype type(const std::string& name) const;
  /// The largest value (at most 2^63 - 1) of the dataset's integer type, of whatever width; throws if it isn't one.
  std::int64_t largest_integer(const std::string& name) const;
  /// Elements [start, start + out.numel) of a dataset in row-major order, converted to out.type by HDF5.
  void read(const std::string& name, std::int64_t start, base::Buffer out) const;
  std::string text_attribute(const std::string& object, const std::string& name) const;
  std::vector<std::int64_t> integer_attribute(const std::string& object, const std::string& name) const;

 private:
  struct Impl;
  explicit Hdf5File(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepspeed::io
