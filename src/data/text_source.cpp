// SPDX-License-Identifier: Apache-2.0
#include "data/sources.h"

namespace deepspeed::data {
namespace {

class ByteText final : public TokenSource {
 public:
  explicit ByteText(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(file_->size()); }
  std::int64_t vocab_size() const override { return 256; }
  Place place(std::int64_t offset) const override { return {file_->path(), offset}; }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(file_->path(), offset, out.size(), size());
    const char* from = file_->data() + offset;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(from[i]);
  }

 private:
  std::unique_ptr<MappedFile> file_;
};

}  // namespace

std::shared_ptr<TokenSource> open_text(std::unique_ptr<MappedFile> file, const Tokenizer& tokenizer) {
  if (tokenizer.tokens_are_bytes()) return std::make_shared<ByteText>(std::move(file));
  return memory_tokens(file->path(), tokenizer.encode(file->view()), tokenizer.vocab_size());
}

}  // namespace deepspeed::data
