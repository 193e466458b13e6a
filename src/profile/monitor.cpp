// SPDX-License-Identifier: Apache-2.0
#include "profile/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace deepspeed::profile {
namespace {

/// The field as a CSV reader gives it back.
std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::optional<std::int64_t> step_of_row(std::string_view row) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(row.data(), row.data() + row.size(), step);
  if (error != std::errc{} || end == row.data() + row.size() || *end != ',') return std::nullopt;
  return step;
}

}  // namespace

void Monitors::write(std::string_view tag, double value, std::int64_t step) {
  for (const auto& monitor : monitors_) monitor->write(tag, value, step);
}

void Monitors::flush() {
  for (const auto& monitor : monitors_) monitor->flush();
}

CsvMonitor::CsvMonitor(std::string folder, std::optional<std::int64_t> resumed_at)
    : folder_(std::move(folder)), resumed_at_(resumed_at) {}

AppendFile& CsvMonitor::file_of(std::string_view tag) {
  if (const auto known = files_.find(tag); known != files_.end()) return known->second;
  std::string name(tag);
  std::replace(name.begin(), name.end(), '/', '_');
  std::replace(name.begin(), name.end(), ' ', '_');
  const std::string prefix = folder_.empty() ? "" : folder_ + "/";
  AppendFile& file = files_.emplace(tag, AppendFile(prefix + name + ".csv")).first->second;
  if (resumed_at_) cut_lines_after(file, *resumed_at_, step_of_row);
  if (!resumed_at_ || file.size() == 0) {
    file.append(fmt::format("step,{}\r\n", csv_field(tag.substr(tag.rfind('/') + 1))));
  }
  return file;
}

void CsvMonitor::write(std::string_view tag, double value, std::int64_t step) {
  std::string number = fmt::format("{}", value);
  if (number.find_first_not_of("-0123456789") == std::string::npos) number += ".0";  // as Python writes it
  file_of(tag).append(fmt::format("{},{}\r\n", step, number));
}

}  // namespace deepspeed::profile
