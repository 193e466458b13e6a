// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/sources.h"

namespace deepspeed::data {
namespace {

/// A line of the file, and where the tokens of its document start.
struct Document {
  std::size_t begin = 0;
  std::size_t length = 0;
  std::int64_t first_token = 0;
};

/// The document of one line with the newline that follows it. Throws DataError with file and line.
std::string parse_document(const std::string& file, std::int64_t line_number, std::string_view line) {
  const auto refuse = [&](std::string_view reason) {
    throw base::DataError(
        fmt::format("{}:{}: {}; each line must be a JSON object with a string \"text\"", file, line_number, reason));
  };
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    // The library's message begins with its own identifier in brackets.
    std::string_view reason = error.what();
    if (const auto end = reason.find("] "); end != std::string_view::npos) reason.remove_prefix(end + 2);
    refuse(reason);
  }
  if (!object.is_object()) refuse(fmt::format("this is no object but {} {}", object.type_name(), "value"));
  const auto text = object.find("text");
  if (text == object.end()) refuse("there is no \"text\"");
  if (!text->is_string()) refuse(fmt::format("\"text\" is no string but of type {}", text->type_name()));
  std::string document = std::move(text->get_ref<std::string&>());
  document += '\n';
  return document;
}

/// Calls use(line number from 1, first byte, line) for each line that isn't blank.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    ++number;
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) use(number, begin, line);
    begin = end + 1;
  }
}

void require_documents(const std::string& file, bool any) {
  if (!any) throw base::DataError(file + " holds blank lines only; give a file with documents, or leave it out");
}

/// Byte tokens of the documents. Only where each document starts is kept in memory; a read parses its line anew, which
/// for runs of reads in one document the last one parsed saves.
class ByteDocuments final : public TokenSource {
 public:
  explicit ByteDocuments(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {
    for_each_line(file_->view(), [&](std::int64_t number, std::size_t begin, std::string_view line) {
      const std::string text = parse_document(file_->path(), number, line);
      documents_.push_back({begin, line.size(), size_});
      size_ += static_cast<std::int64_t>(text.size());
    });
    require_documents(file_->path(), !documents_.empty());
  }

  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return 256; }
  Place place(std::int64_t offset) const override { return {file_->path(), offset}; }

  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    check_range(file_->path(), offset, out.size(), size_);
    auto after = std::upper_bound(documents_.begin(), documents_.end(), offset,
                                  [](std::int64_t token, const Document& d) { return token < d.first_token; });
    for (std::size_t index = static_cast<std::size_t>(after - documents_.begin()) - 1; !out.empty(); ++index) {
      const std::shared_ptr<const std::string> text = document(index);
      const auto skip = static_cast<std::size_t>(offset - documents_[index].first_token);
      const std::size_t count = std::min(text->size() - skip, out.size());
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<unsigned char>((*text)[skip + i]);
      out = out.subspan(count);
      offset += static_cast<std::int64_t>(count);
    }
  }

 private:
  std::shared_ptr<const std::string> document(std::size_t index) const {
    const std::lock_guard lock(mutex_);
    if (last_text_ == nullptr || last_index_ != index) {
      const Document& d = documents_[index];
      last_text_ = std::make_shared<const std::string>(
          parse_document(file_->path(), 0, file_->view().substr(d.begin, d.length)));
      last_index_ = index;
    }
    return last_text_;
  }

  std::unique_ptr<MappedFile> file_;
  std::vector<Document> documents_;
  std::int64_t size_ = 0;
  mutable std::mutex mutex_;
  mutable std::size_t last_index_ = 0;
  mutable std::shared_ptr<const std::string> last_text_;
};

}  // namespace

std::shared_ptr<TokenSource> open_jsonl(std::unique_ptr<MappedFile> file, const Tokenizer& tokenizer) {
  if (tokenizer.tokens_are_bytes()) return std::make_shared<ByteDocuments>(std::move(file));
  std::vector<std::int32_t> tokens;
  for_each_line(file->view(), [&](std::int64_t number, std::size_t, std::string_view line) {
    const std::vector<std::int32_t> ids = tokenizer.encode(parse_document(file->path(), number, line));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  });
  require_documents(file->path(), !tokens.empty());
  return memory_tokens(file->path(), std::move(tokens), tokenizer.vocab_size());
}

}  // namespace deepspeed::data
