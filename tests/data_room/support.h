// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/data.h"

namespace deepspeed::data {

/// A folder that goes when the test does.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ds_data_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::vector<std::int64_t> read_all(const TokenSource& source) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

inline std::string text_of(const std::vector<std::int64_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

/// The tokens 0, 1, 2, ... with any vocabulary: a token tells its place.
class Counting final : public TokenSource {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return size_; }
  Place place(std::int64_t offset) const override { return {"counting", offset}; }
  void read(std::int64_t offset, std::span<std::int64_t> out) const override {
    for (std::int64_t& token : out) token = offset++;
    if (offset > size_) throw base::DataError("read beyond the end");
  }

 private:
  std::int64_t size_;
};

/// Expects a DataError whose message holds each of the parts.
template <class Action>
void expect_refused(Action action, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "not refused; expected: " << testing::PrintToString(parts);
  } catch (const base::DataError& error) {
    for (const std::string& part : parts) EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

}  // namespace deepspeed::data
