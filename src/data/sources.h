// SPDX-License-Identifier: Apache-2.0
// What the formats share; not for other rooms.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/data.h"
#include "data/mapped_file.h"

namespace deepspeed::data {

std::shared_ptr<TokenSource> open_text(std::unique_ptr<MappedFile> file, const Tokenizer& tokenizer);
std::shared_ptr<TokenSource> open_jsonl(std::unique_ptr<MappedFile> file, const Tokenizer& tokenizer);
std::shared_ptr<TokenSource> open_bin(std::unique_ptr<MappedFile> file);
std::shared_ptr<TokenSource> open_hdf5(std::unique_ptr<MappedFile> file);

/// Whether the file begins as one of llm.c's, of whatever version.
bool has_llmc_magic(const MappedFile& file);
bool has_hdf5_magic(const MappedFile& file);

/// Tokens of one file that were encoded into memory.
std::shared_ptr<TokenSource> memory_tokens(std::string file, std::vector<std::int32_t> tokens, std::int64_t vocab_size);

/// Throws DataError unless [offset, offset + count) lies in [0, size).
void check_range(const std::string& file, std::int64_t offset, std::size_t count, std::int64_t size);
[[noreturn]] void refuse_token(const Place& place, std::int64_t id, const std::string& why);

}  // namespace deepspeed::data
