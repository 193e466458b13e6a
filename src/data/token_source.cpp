// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "data/sources.h"

namespace deepspeed::data {
namespace {

class MemoryTokens final : public TokenSource {
 public:
  MemoryTokens(std::string file, std::vector<std::int32_t> tokens, std::int64_t vocab_size)
      : file_(std::move(file)), tokens_(std::move(tokens)), vocab_size_(vocab_size) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t vocab_size() const override { return vocab_size_; }
  Place place(std::int64_t offset) const override { return {file_, offset}; }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(file_, offset, out.size(), size());
    std::copy_n(tokens_.begin() + offset, out.size(), out.begin());
  }

 private:
  std::string file_;
  std::vector<std::int32_t> tokens_;
  std::int64_t vocab_size_;
};

class Chain final : public TokenSource {
 public:
  explicit Chain(std::vector<std::shared_ptr<TokenSource>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      starts_.push_back(size_);
      size_ += part->size();
      vocab_size_ = std::max(vocab_size_, part->vocab_size());
    }
  }
  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  Place place(std::int64_t offset) const override {
    const std::size_t part = part_of(offset);
    return parts_[part]->place(offset - starts_[part]);
  }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(parts_.front()->place(0).file + " and the files after it", offset, out.size(), size_);
    for (std::size_t part = part_of(offset); !out.empty(); ++part) {
      const std::int64_t skip = offset - starts_[part];
      const std::size_t count = std::min(out.size(), static_cast<std::size_t>(parts_[part]->size() - skip));
      parts_[part]->read(skip, out.first(count));
      out = out.subspan(count);
      offset += static_cast<std::int64_t>(count);
    }
  }

 private:
  std::size_t part_of(std::int64_t offset) const {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin()) - 1;
  }

  std::vector<std::shared_ptr<TokenSource>> parts_;
  std::vector<std::int64_t> starts_;
  std::int64_t size_ = 0;
  std::int64_t vocab_size_ = 0;
};

class Slice final : public TokenSource {
 public:
  Slice(std::shared_ptr<TokenSource> source, std::int64_t begin, std::int64_t end)
      : source_(std::move(source)), begin_(begin), size_(end - begin) {}
  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return source_->vocab_size(); }
  Place place(std::int64_t offset) const override { return source_->place(begin_ + offset); }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(place(0).file, offset, out.size(), size_);
    source_->read(begin_ + offset, out);
  }

 private:
  std::shared_ptr<TokenSource> source_;
  std::int64_t begin_;
  std::int64_t size_;
};

class LimitedVocab final : public TokenSource {
 public:
  LimitedVocab(std::shared_ptr<TokenSource> source, std::int64_t vocab_size)
      : source_(std::move(source)), vocab_size_(vocab_size) {}
  std::int64_t size() const override { return source_->size(); }
  std::int64_t vocab_size() const override { return vocab_size_; }
  Place place(std::int64_t offset) const override { return source_->place(offset); }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    source_->read(offset, out);
    const auto beyond = std::find_if(out.begin(), out.end(), [&](std::int64_t id) { return id >= vocab_size_; });
    if (beyond == out.end()) return;
    refuse_token(place(offset + (beyond - out.begin())), *beyond,
                 fmt::format("outside the model's vocabulary of {}; use the model that the file was tokenized for",
                             vocab_size_));
  }

 private:
  std::shared_ptr<TokenSource> source_;
  std::int64_t vocab_size_;
};

std::string format_of(const MappedFile& file) {
  const std::string suffix = std::filesystem::path(file.path()).extension().string();
  if (suffix == ".jsonl" || suffix == ".ndjson") return "jsonl";
  if (suffix == ".h5" || suffix == ".hdf5" || has_hdf5_magic(file)) return "hdf5";
  if (suffix == ".bin" || has_llmc_magic(file)) return "bin";
  return "text";
}

/// Byte tokens would take a compressed file without a word.
void refuse_compressed(const MappedFile& file) {
  using namespace std::string_view_literals;
  static constexpr std::pair<std::string_view, const char*> magics[] = {
      {"\x1f\x8b"sv, "gzip"}, {"\x28\xb5\x2f\xfd"sv, "zstd"}, {"\xfd\x37zXZ\0"sv, "xz"},
      {"BZh"sv, "bzip2"},     {"PK\x03\x04"sv, "zip"},        {"\x93NUMPY"sv, "NumPy"}};
  for (const auto& [magic, name] : magics) {
    if (file.view().substr(0, magic.size()) == magic) {
      throw base::DataError(
          fmt::format("{} is a {} file; unpack it first, or set data.format if that is meant", file.path(), name));
    }
  }
}

std::shared_ptr<TokenSource> open_file(const std::string& path, const std::string& format, const Tokenizer& tokenizer) {
  auto file = std::make_unique<MappedFile>(path);
  std::string found = format;
  if (format == "auto") {
    found = format_of(*file);
    if (found == "text" || found == "jsonl") refuse_compressed(*file);
  }
  if (found == "text") return open_text(std::move(file), tokenizer);
  if (found == "jsonl") return open_jsonl(std::move(file), tokenizer);
  if (found == "bin") return open_bin(std::move(file));
  if (found == "hdf5") return open_hdf5(std::move(file));
  throw base::DataError(fmt::format(
      "data.format: there is no format \"{}\"; use \"auto\", \"text\", \"jsonl\", \"bin\" or \"hdf5\"", format));
}

}  // namespace

std::shared_ptr<TokenSource> memory_tokens(std::string file, std::vector<std::int32_t> tokens,
                                           std::int64_t vocab_size) {
  return std::make_shared<MemoryTokens>(std::move(file), std::move(tokens), vocab_size);
}

void check_range(const std::string& file, std::int64_t offset, std::size_t count, std::int64_t size) {
  if (offset >= 0 && offset <= size && count <= static_cast<std::size_t>(size - offset)) return;
  throw base::DataError(
      fmt::format("{}: {} tokens from token {} asked for, but there are {} in all", file, count, offset, size));
}

void refuse_token(const Place& place, std::int64_t id, const std::string& why) {
  throw base::DataError(fmt::format("{}, token {}: id {} is {}", place.file, place.token, id, why));
}

std::shared_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths, const std::string& format,
                                         const Tokenizer& tokenizer) {
  if (paths.empty()) throw base::DataError("no data file is named; set data.train, or give --train FILE");
  std::vector<std::shared_ptr<TokenSource>> parts;
  parts.reserve(paths.size());
  for (const std::string& path : paths) parts.push_back(open_file(path, format, tokenizer));
  if (parts.size() == 1) return parts.front();
  return std::make_shared<Chain>(std::move(parts));
}

std::shared_ptr<TokenSource> slice_tokens(std::shared_ptr<TokenSource> source, std::int64_t begin, std::int64_t end) {
  check_range(source->place(0).file, begin, static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0)),
              source->size());
  return std::make_shared<Slice>(std::move(source), begin, std::max(begin, end));
}

std::shared_ptr<TokenSource> limit_vocab(std::shared_ptr<TokenSource> source, std::int64_t vocab_size) {
  if (source->vocab_size() <= vocab_size) return source;
  return std::make_shared<LimitedVocab>(std::move(source), vocab_size);
}

std::int64_t sample_count(std::int64_t tokens, std::int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

std::pair<std::shared_ptr<TokenSource>, std::shared_ptr<TokenSource>> split(const std::shared_ptr<TokenSource>& source,
                                                                            double fraction,
                                                                            std::int64_t sequence_length) {
  if (!(fraction > 0.0 && fraction < 1.0)) {
    throw base::DataError(fmt::format("data.validation: {} is no fraction between 0 and 1", fraction));
  }
  const std::int64_t samples = sample_count(source->size(), sequence_length);
  const std::int64_t validation = std::llround(fraction * static_cast<double>(samples));
  if (validation == 0 || validation == samples) {
    throw base::DataError(fmt::format(
        "data.validation: of {} samples (data.sequence_length {}) in {}, {} is {} for validation and {} for training; "
        "both need one: change the fraction, give more data, or shorten the sequence",
        samples, sequence_length, source->place(0).file, fraction, validation, samples - validation));
  }
  const std::int64_t border = (samples - validation) * sequence_length;
  return {slice_tokens(source, 0, border + 1), slice_tokens(source, border, samples * sequence_length + 1)};
}

}  // namespace deepspeed::data
