// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/sources.h"

namespace deepspeed::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// llm.c, dev/data/data_common.py and llmc/dataloader.h: 256 int32 (magic, version, number of tokens, zeros), then the
// tokens. Both magics are pairs of ids beyond GPT-2's vocabulary, so no nanoGPT file of GPT-2 tokens starts so.
constexpr std::size_t llmc_header_bytes = 256 * sizeof(std::int32_t);
constexpr std::int32_t llmc_uint16_magic = 20240520;
constexpr std::int32_t llmc_uint32_magic = 20240801;
constexpr std::int32_t llmc_evaluation_magic = 20240522;

template <class Id>
class FixedWidthTokens final : public TokenSource {
 public:
  FixedWidthTokens(std::unique_ptr<MappedFile> file, std::size_t header_bytes)
      : file_(std::move(file)),
        first_(file_->data() + header_bytes),
        size_(static_cast<std::int64_t>((file_->size() - header_bytes) / sizeof(Id))) {}

  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return std::int64_t{1} << std::min<std::size_t>(8 * sizeof(Id), 31); }
  Place place(std::int64_t offset) const override { return {file_->path(), offset}; }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(file_->path(), offset, out.size(), size_);
    const char* from = first_ + static_cast<std::size_t>(offset) * sizeof(Id);
    for (std::size_t i = 0; i < out.size(); ++i) {
      Id id;
      std::memcpy(&id, from + i * sizeof(Id), sizeof(Id));
      if constexpr (sizeof(Id) > 2) {
        if (id >= (std::uint32_t{1} << 31)) {
          refuse_token(place(offset + static_cast<std::int64_t>(i)), id, "larger than any vocabulary's");
        }
      }
      out[i] = id;
    }
  }

 private:
  std::unique_ptr<MappedFile> file_;
  const char* first_;
  std::int64_t size_;
};

std::int32_t header_word(const MappedFile& file, std::size_t index) {
  std::int32_t word = 0;
  std::memcpy(&word, file.data() + index * sizeof(word), sizeof(word));
  return word;
}

template <class Id>
std::shared_ptr<TokenSource> open_llmc(std::unique_ptr<MappedFile> file, std::int32_t expected_version) {
  const std::string& path = file->path();
  if (file->size() < llmc_header_bytes) {
    throw base::DataError(fmt::format("{}: the llm.c header is cut off ({} of {} bytes); write the file again", path,
                                      file->size(), llmc_header_bytes));
  }
  const std::int32_t version = header_word(*file, 1);
  if (version != expected_version) {
    throw base::DataError(
        fmt::format("{}: llm.c token file of version {}, where {} is known; write it with llm.c's "
                    "present scripts",
                    path, version, expected_version));
  }
  const std::int64_t tokens = header_word(*file, 2);
  const std::int64_t bytes =
      static_cast<std::int64_t>(llmc_header_bytes + static_cast<std::size_t>(tokens) * sizeof(Id));
  if (tokens <= 0) throw base::DataError(fmt::format("{}: the llm.c header names {} tokens", path, tokens));
  if (static_cast<std::int64_t>(file->size()) != bytes) {
    throw base::DataError(
        fmt::format("{}: the llm.c header names {} tokens ({} bytes with the header), but the file has "
                    "{} bytes; it is cut off or damaged: write it again",
                    path, tokens, bytes, file->size()));
  }
  return std::make_shared<FixedWidthTokens<Id>>(std::move(file), llmc_header_bytes);
}

}  // namespace

bool has_llmc_magic(const MappedFile& file) {
  if (file.size() < sizeof(std::int32_t)) return false;
  const std::int32_t magic = header_word(file, 0);
  return magic == llmc_uint16_magic || magic == llmc_uint32_magic || magic == llmc_evaluation_magic;
}

std::shared_ptr<TokenSource> open_bin(std::unique_ptr<MappedFile> file) {
  const std::string& path = file->path();
  if (has_llmc_magic(*file)) {
    const std::int32_t magic = header_word(*file, 0);
    if (magic == llmc_uint16_magic) return open_llmc<std::uint16_t>(std::move(file), 1);
    if (magic == llmc_uint32_magic) return open_llmc<std::uint32_t>(std::move(file), 7);
    throw base::DataError(path + " is an llm.c file of multiple-choice questions; give one of its token files");
  }
  if (has_hdf5_magic(*file)) throw base::DataError(path + " is an HDF5 file; set data.format to \"hdf5\"");
  if (file->size() % sizeof(std::uint16_t) != 0) {
    throw base::DataError(
        fmt::format("{}: {} bytes are no whole number of uint16 tokens, and no llm.c header is there; "
                    "the file is cut off, or not a token file (data.format)",
                    path, file->size()));
  }
  return std::make_shared<FixedWidthTokens<std::uint16_t>>(std::move(file), 0);
}

}  // namespace deepspeed::data
