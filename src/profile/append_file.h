// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"

namespace deepspeed::profile {

/// A file that grows at its end. Each `append` is one write of whole records, so that a reader, or a run that was
/// killed and resumed, never finds two records mixed.
class AppendFile {
 public:
  /// Opens or makes the file, and its folders. Throws IoError.
  explicit AppendFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const;
  void append(std::string_view records);
  /// Drops what lies behind the first `size` bytes.
  void cut(std::uint64_t size);

 private:
  std::string path_;
  io::Descriptor descriptor_;
};

/// The step that a line belongs to; none for one that has no step (a header).
using StepOf = std::function<std::optional<std::int64_t>(std::string_view line)>;

/// Cuts a file of lines in ascending steps before its first line of a step later than `last_step`, and a last line that
/// has no end.
void cut_lines_after(AppendFile& file, std::int64_t last_step, const StepOf& step_of);

}  // namespace deepspeed::profile
