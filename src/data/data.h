// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepspeed::data {

/// Turns text into token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Throws DataError for an id outside [0, vocab_size()).
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Whether a token is a byte of the text: such text is read straight from the file, without an encoded copy.
  virtual bool tokens_are_bytes() const { return false; }
};
/// "bytes" (256 ids); more names later. Unknown names throw DataError.
std::shared_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// A place in the files of a source.
struct Place {
  std::string file;
  std::int64_t token = 0;  ///< counted from the start of that file
};

/// A long row of token ids, read at any place. Reading is safe from several threads at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Reads tokens [offset, offset + out.size()). Throws DataError for a range outside the source, and for an id that no
  /// vocabulary can have (negative, or 2^31 and more), naming file and position.
  virtual void read(std::int64_t offset, std::span<std::int64_t> out) const = 0;
  /// One more than the largest id that may occur (256 for bytes, 65536 for uint16 files where nothing better is known).
  virtual std::int64_t vocab_size() const = 0;
  /// Where token `offset` comes from, for messages.
  virtual Place place(std::int64_t offset) const = 0;
};

/// Opens files (several are one after another). Formats:
///   "text"   the file's text, tokenized.
///   "jsonl"  one JSON object a line, whose string "text" is a document; each document is followed by one newline.
///            Blank lines are skipped; every line is checked when the file is opened.
///   "bin"    little-endian token ids: nanoGPT's (plain uint16), or llm.c's (a header of 256 int32, whose first is
///            20240520 with version 1 and uint16 tokens, or 20240801 with version 7 and uint32 tokens).
///   "hdf5"   the one-dimensional integer dataset "tokens".
///   "auto"   by suffix (.jsonl .ndjson .bin .h5 .hdf5), else by the file's first bytes, else text; for each file.
/// The tokenizer serves text and jsonl only. Where its tokens are bytes these are read from the file at each use; any
/// other tokenizer encodes the whole file into memory now (4 bytes a token). Throws DataError for a file that is
/// missing, a directory, unreadable, empty, truncated or of another format.
std::shared_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths, const std::string& format,
                                         const Tokenizer& tokenizer);
/// Tokens [begin, end) of another source.
std::shared_ptr<TokenSource> slice_tokens(std::shared_ptr<TokenSource> source, std::int64_t begin, std::int64_t end);

/// The same tokens for a model of `vocab_size` ids: a read that meets a larger id throws DataError with its file and
/// position.
std::shared_ptr<TokenSource> limit_vocab(std::shared_ptr<TokenSource> source, std::int64_t vocab_size);

/// Samples that a source of `tokens` holds. Sample i is the window [iL, iL + L]: L inputs and, one further, L targets,
/// so neighbours share a token. A tail that doesn't fill a window is left out.
std::int64_t sample_count(std::int64_t tokens, std::int64_t sequence_length);

/// Training part, then validation part. Validation is the last `fraction` of the samples, rounded to the nearest whole
/// one; together the parts hold each sample of the source once. Throws DataError for a fraction outside (0, 1) and
/// where a part would be empty.
std::pair<std::shared_ptr<TokenSource>, std::shared_ptr<TokenSource>> split(const std::shared_ptr<TokenSource>& source,
                                                                            double fraction,
                                                                            std::int64_t sequence_length);

/// Which sample a step takes: a pure function of (seed, position); no hidden state, no table in memory.
/// With shuffle, each epoch is a seeded permutation of its own: a Feistel network over the next power of four, walked
/// until it falls among the samples (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 3).
class Sampler {
 public:
  Sampler(std::int64_t samples, bool shuffle, std::uint64_t seed);
  /// The sample that the `position`-th place of the whole run (all epochs) takes.
  std::int64_t at(std::int64_t position) const;

 private:
  std::int64_t samples_;
  bool shuffle_;
  std::uint64_t seed_;
};

}  // namespace deepspeed::data
