// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>

#include "profile/monitor.h"

namespace deepspeed::profile {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Protocol Buffers wire format: just the field types that an event needs. Each field is a key (number and wire type)
/// and a value. https://protobuf.dev/programming-guides/encoding/
class Message {
 public:
  Message& integer(unsigned field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& fixed64(unsigned field, double value) {
    key(field, 1);
    raw(value);
    return *this;
  }
  Message& bytes(unsigned field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& fixed32(unsigned field, float value) {
    key(field, 5);
    raw(value);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void key(unsigned field, unsigned wire_type) { varint(field << 3 | wire_type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  template <class T>
  void raw(T value) {
    static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");
    std::array<char, sizeof(T)> memory;
    std::memcpy(memory.data(), &value, sizeof(T));
    text_.append(memory.data(), memory.size());
  }

  std::string text_;
};

// Field numbers of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
namespace event {
constexpr unsigned wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace session_log {
constexpr unsigned status = 1;
constexpr std::int64_t start = 1;
}  // namespace session_log
namespace summary {
constexpr unsigned value = 1;
}
namespace value {
constexpr unsigned tag = 1, simple_value = 2;
}

std::string little_endian(std::uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

/// TFRecord: length, its checksum, data, its checksum. The checksums are rotated and offset, so that one over data that
/// holds checksums stays useful (tensorflow/core/lib/hash/crc32c.h).
std::string record(std::string_view data) {
  const auto checksum = [](std::string_view bytes) {
    return little_endian(static_cast<std::uint32_t>(std::rotr(crc32c(bytes), 15) + 0xa282ead8U), 4);
  };
  const std::string length = little_endian(data.size(), 8);
  return length + checksum(length) + std::string(data) + checksum(data);
}

std::string file_name(const std::string& folder) {
  static std::atomic<int> number = 0;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder.empty() ? "." : folder,
                     static_cast<std::int64_t>(wall_seconds()), host.data(), ::getpid(), number++);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t entry = i;
      for (int bit = 0; bit < 8; ++bit) entry = (entry >> 1) ^ ((entry & 1) != 0 ? 0x82f63b78U : 0);
      entries[i] = entry;
    }
    return entries;
  }();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

TensorBoardMonitor::TensorBoardMonitor(const std::string& folder, std::optional<std::int64_t> resumed_at)
    : file_(file_name(folder)) {
  pending_ =
      record(Message().fixed64(event::wall_time, wall_seconds()).bytes(event::file_version, "brain.Event:2").text());
  if (resumed_at) {
    pending_ += record(Message()
                           .fixed64(event::wall_time, wall_seconds())
                           .integer(event::step, *resumed_at + 1)
                           .bytes(event::session_log, Message().integer(session_log::status, session_log::start).text())
                           .text());
  }
  flush();
}

TensorBoardMonitor::~TensorBoardMonitor() {
  try {
    flush();
  } catch (...) {  // the last values of a run that ends because the disk is full
  }
}

void TensorBoardMonitor::write(std::string_view tag, double value, std::int64_t step) {
  const double now = wall_seconds();
  const std::string scalar =
      Message().bytes(value::tag, tag).fixed32(value::simple_value, static_cast<float>(value)).text();
  pending_ += record(Message()
                         .fixed64(event::wall_time, now)
                         .integer(event::step, step)
                         .bytes(event::summary, Message().bytes(summary::value, scalar).text())
                         .text());
  if (now - flushed_ > 2.0) flush();
}

void TensorBoardMonitor::flush() {
  flushed_ = wall_seconds();
  file_.append(std::exchange(pending_, {}));
}

}  // namespace deepspeed::profile
