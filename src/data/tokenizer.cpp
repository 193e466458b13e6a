// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "data/data.h"

namespace deepspeed::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text(ids.size(), '\0');
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] > 255) {
        throw base::DataError(
            fmt::format("token {} at place {} is no byte; decode it with its model's tokenizer", ids[i], i));
      }
      text[i] = static_cast<char>(ids[i]);
    }
    return text;
  }
  bool tokens_are_bytes() const override { return true; }
};

}  // namespace

std::shared_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  throw base::DataError(fmt::format(
      "data.tokenizer: there is no tokenizer \"{}\"; use \"bytes\", or give token files (.bin, .h5)", name));
}

}  // namespace deepspeed::data
