// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace deepspeed::data {

/// Turns text into token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};
/// "bytes" (256 ids); more names later. Unknown names throw DataError.
std::shared_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// A long row of token ids, read at any place.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Reads tokens [offset, offset + out.size()).
  virtual void read(std::int64_t offset, std::span<std::int64_t> out) const = 0;
  /// One more than the largest id that may occur (256 for bytes, 65536 for uint16 files where nothing better is known).
  virtual std::int64_t vocab_size() const = 0;
};
/// Opens files (several are one after another). format: "auto" (by suffix and magic), "text", "jsonl", "bin", "hdf5".
std::shared_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths, const std::string& format,
                                         const Tokenizer& tokenizer);
/// Tokens [begin, end) of another source.
std::shared_ptr<TokenSource> slice_tokens(std::shared_ptr<TokenSource> source, std::int64_t begin, std::int64_t end);

/// Which sample a step takes: a pure function of (seed, position); no hidden state, no table in memory.
/// Samples are the windows [iL, iL + L), i < samples. With shuffle, each epoch is a seeded permutation.
class Sampler {
 public:
  Sampler(std::int64_t samples, bool shuffle, std::uint64_t seed);
  /// The window that the `position`-th sample of the whole run (all epochs) takes.
  std::int64_t at(std::int64_t position) const;

 private:
  std::int64_t samples_;
  bool shuffle_;
  std::uint64_t seed_;
};

}  // namespace deepspeed::data
