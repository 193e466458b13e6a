// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profile/append_file.h"

/// Where a run's scalars go. Rank 0 alone makes monitors. Tags are DeepSpeed's ("Train/Samples/train_loss"), whose step
/// is the number of samples so far. Files that can't be written throw IoError.
namespace deepspeed::profile {

class Monitor {
 public:
  virtual ~Monitor() = default;
  virtual void write(std::string_view tag, double value, std::int64_t step) = 0;
  /// Makes what was written visible to readers.
  virtual void flush() = 0;
};

/// Several monitors as one.
class Monitors final : public Monitor {
 public:
  void add(std::unique_ptr<Monitor> monitor) { monitors_.push_back(std::move(monitor)); }
  bool empty() const { return monitors_.empty(); }
  void write(std::string_view tag, double value, std::int64_t step) override;
  void flush() override;

 private:
  std::vector<std::unique_ptr<Monitor>> monitors_;
};

/// DeepSpeed's csv_monitor: FOLDER/TAG.csv (in TAG "/" and " " become "_"), a header "step,LAST PART OF TAG", a row for
/// each value, lines ended as RFC 4180 says. FOLDER is output_path/job_name. As there, each new run adds its header and
/// rows; a resumed one cuts rows of steps after `resumed_at` and goes on without a second header.
class CsvMonitor final : public Monitor {
 public:
  explicit CsvMonitor(std::string folder, std::optional<std::int64_t> resumed_at = std::nullopt);
  void write(std::string_view tag, double value, std::int64_t step) override;
  void flush() override {}

 private:
  AppendFile& file_of(std::string_view tag);

  std::string folder_;
  std::optional<std::int64_t> resumed_at_;
  std::map<std::string, AppendFile, std::less<>> files_;
};

/// A TensorBoard event file FOLDER/events.out.tfevents.TIME.HOST.PID.NUMBER: TFRecords (length and data, each with a
/// masked CRC-32C) of Event messages (tensorflow/core/util/event.proto). A resumed run writes a file of its own that
/// begins with a session start, at which TensorBoard drops the earlier files' values of steps after `resumed_at`.
/// Values are on the disk after `flush`, and at the latest 2 s later at the next value.
class TensorBoardMonitor final : public Monitor {
 public:
  explicit TensorBoardMonitor(const std::string& folder, std::optional<std::int64_t> resumed_at = std::nullopt);
  ~TensorBoardMonitor() override;
  void write(std::string_view tag, double value, std::int64_t step) override;
  void flush() override;
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
  std::string pending_;
  double flushed_ = 0.0;  // seconds of wall time
};

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);

}  // namespace deepspeed::profile
