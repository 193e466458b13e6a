// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/handle.h"
#include "data/sources.h"

namespace deepspeed::data {
namespace {

template <herr_t (*Close)(hid_t)>
void close_id(hid_t id) {
  Close(id);
}
template <herr_t (*Close)(hid_t)>
using Id = base::Handle<hid_t, close_id<Close>, hid_t{H5I_INVALID_HID}>;

/// The library isn't thread-safe.
std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Keeps the library from printing its error stack; we throw.
class Quiet {
 public:
  Quiet() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Quiet() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

class Hdf5Tokens final : public TokenSource {
 public:
  explicit Hdf5Tokens(std::string path) : path_(std::move(path)) {
    const std::lock_guard lock(library_mutex());
    const Quiet quiet;
    file_.reset(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
    require(file_.get() >= 0, "the HDF5 library can't open it; it is damaged or still open for writing");
    dataset_.reset(H5Dopen2(file_.get(), "tokens", H5P_DEFAULT));
    require(dataset_.get() >= 0, "there is no dataset \"tokens\"; store the ids under that name");
    const Id<H5Tclose> type(H5Dget_type(dataset_.get()));
    require(H5Tget_class(type.get()) == H5T_INTEGER, "the dataset \"tokens\" is not of an integer type");
    const bool is_signed = H5Tget_sign(type.get()) == H5T_SGN_2;
    vocab_size_ = std::int64_t{1} << std::min<std::size_t>(H5Tget_precision(type.get()) - (is_signed ? 1 : 0), 31);
    const Id<H5Sclose> space(H5Dget_space(dataset_.get()));
    const int rank = H5Sget_simple_extent_ndims(space.get());
    require(rank == 1, fmt::format("the dataset \"tokens\" has {} dimensions; store the ids as one row", rank));
    size_ = H5Sget_simple_extent_npoints(space.get());
    require(size_ > 0, "the dataset \"tokens\" is empty; give a file with data, or leave it out");
  }

  ~Hdf5Tokens() override {
    const std::lock_guard lock(library_mutex());
    dataset_.reset();
    file_.reset();
  }

  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  Place place(std::int64_t offset) const override { return {path_, offset}; }

  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(path_, offset, out.size(), size_);
    if (out.empty()) return;
    {
      const std::lock_guard lock(library_mutex());
      const Quiet quiet;
      const auto start = static_cast<hsize_t>(offset);
      const auto count = static_cast<hsize_t>(out.size());
      const Id<H5Sclose> memory(H5Screate_simple(1, &count, nullptr));
      const Id<H5Sclose> space(H5Dget_space(dataset_.get()));
      const bool read =
          H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr) >= 0 &&
          H5Dread(dataset_.get(), H5T_NATIVE_INT64, memory.get(), space.get(), H5P_DEFAULT, out.data()) >= 0;
      require(read,
              fmt::format("tokens {} to {} can't be read; the file is damaged or its compression filter is missing",
                          offset, offset + static_cast<std::int64_t>(out.size())));
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0 && out[i] < vocab_size_) continue;
      refuse_token(place(offset + static_cast<std::int64_t>(i)), out[i],
                   out[i] < 0 ? "negative" : "larger than any vocabulary's");
    }
  }

 private:
  void require(bool holds, const std::string& otherwise) const {
    if (!holds) throw base::DataError(path_ + ": " + otherwise);
  }

  std::string path_;
  Id<H5Fclose> file_;
  Id<H5Dclose> dataset_;
  std::int64_t size_ = 0;
  std::int64_t vocab_size_ = 0;
};

}  // namespace

bool has_hdf5_magic(const MappedFile& file) {
  return file.view().substr(0, 8) == "\x89HDF\r\n\x1a\n";
}

std::shared_ptr<TokenSource> open_hdf5(std::unique_ptr<MappedFile> file) {
  if (!has_hdf5_magic(*file)) {
    throw base::DataError(file->path() + " is no HDF5 file (its first bytes are others); see data.format");
  }
  return std::make_shared<Hdf5Tokens>(file->path());
}

}  // namespace deepspeed::data
