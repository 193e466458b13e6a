// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/sources.h"
#include "io/hdf5.h"

namespace deepspeed::data {
namespace {

constexpr const char* dataset = "tokens";

class Hdf5Tokens final : public TokenSource {
 public:
  explicit Hdf5Tokens(const std::string& path) : path_(path), file_(io::Hdf5File::open(path)) {
    const std::vector<std::string> names = file_.datasets();
    require(std::find(names.begin(), names.end(), dataset) != names.end(),
            "there is no dataset \"tokens\"; store the ids under that name");
    vocab_size_ = std::min(file_.largest_integer(dataset), (std::int64_t{1} << 31) - 1) + 1;
    const std::vector<std::int64_t> shape = file_.shape(dataset);
    require(shape.size() == 1,
            fmt::format("the dataset \"tokens\" has {} dimensions; store the ids as one row", shape.size()));
    size_ = shape.front();
    require(size_ > 0, "the dataset \"tokens\" is empty; give a file with data, or leave it out");
  }

  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  Place place(std::int64_t offset) const override { return {path_, offset}; }

  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(path_, offset, out.size(), size_);
    try {
      file_.read(dataset, offset, {out.data(), static_cast<std::int64_t>(out.size()), base::Dtype::i64});
    } catch (const base::IoError& error) {
      throw base::DataError(error.what());
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
  io::Hdf5File file_;
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
  try {
    return std::make_shared<Hdf5Tokens>(file->path());
  } catch (const base::IoError& error) {
    throw base::DataError(std::string(error.what()) +
                          "; write the file again, with ids in an integer dataset \"tokens\"");
  }
}

}  // namespace deepspeed::data
