// SPDX-License-Identifier: Apache-2.0
#include "profile/monitor.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "profile/support.h"

namespace deepspeed::profile {
namespace {

using testing::ElementsAre;

TEST(CsvMonitor, WritesDeepSpeedsLayout) {
  const Folder folder;
  {
    CsvMonitor monitor(folder / "logs/job");
    monitor.write("Train/Samples/train_loss", 2.5, 16);
    monitor.write("Train/Samples/lr", 1e-5, 16);
    monitor.write("Train/Samples/train_loss", 0.1, 32);
    monitor.write("Train/Samples/loss_scale", 65536, 16);
    monitor.write("my loss, \"raw\"", std::numeric_limits<double>::infinity(), 1);
  }
  EXPECT_EQ(contents(folder / "logs/job/Train_Samples_train_loss.csv"), "step,train_loss\r\n16,2.5\r\n32,0.1\r\n");
  EXPECT_EQ(contents(folder / "logs/job/Train_Samples_lr.csv"), "step,lr\r\n16,1e-05\r\n");
  EXPECT_EQ(contents(folder / "logs/job/Train_Samples_loss_scale.csv"), "step,loss_scale\r\n16,65536.0\r\n");
  EXPECT_EQ(contents(folder / "logs/job/my_loss,_\"raw\".csv"), "step,\"my loss, \"\"raw\"\"\"\r\n1,inf\r\n");
}

TEST(CsvMonitor, ResumesWithoutTheRowsAfterTheCheckpoint) {
  const Folder folder;
  const std::string file = folder / "loss.csv";
  {
    CsvMonitor monitor(folder / "");
    for (int step = 1; step <= 4; ++step) monitor.write("loss", step, step);
  }
  {
    CsvMonitor monitor(folder / "", 2);
    monitor.write("loss", 33, 3);
    monitor.write("loss", 44, 4);
  }
  EXPECT_EQ(contents(file), "step,loss\r\n1,1.0\r\n2,2.0\r\n3,33.0\r\n4,44.0\r\n");
  // A run of its own in the same folder adds a header, as DeepSpeed's does.
  CsvMonitor(folder / "").write("loss", 5, 1);
  EXPECT_THAT(contents(file), testing::EndsWith("4,44.0\r\nstep,loss\r\n1,5.0\r\n"));
}

TEST(CsvMonitor, NamesTheFileThatCantBeWritten) {
  CsvMonitor monitor("/proc/no");
  try {
    monitor.write("loss", 1, 1);
    FAIL() << "not refused";
  } catch (const base::IoError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/proc/no"));
  }
}

TEST(Crc32c, OfTheStandardsExamples) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

/// A second reading of the formats, by other means than the writer's: bit-wise CRC, a walk over the fields.
struct ReadEvent {
  double wall_time = 0.0;
  std::int64_t step = 0;
  std::string file_version;
  std::string tag;
  float value = 0.0F;
  std::int64_t session_status = 0;
};

std::uint32_t slow_masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (static_cast<unsigned char>(byte) >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82f63b78U : 0U);
    }
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <class T>
T take(std::string_view& bytes) {
  T number{};
  EXPECT_GE(bytes.size(), sizeof(T));
  std::memcpy(&number, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return number;
}

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t number = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    number |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return number;
  }
}

/// Calls use(field, number, bytes) for each field of a message.
template <class Use>
void for_each_field(std::string_view message, Use use) {
  while (!message.empty()) {
    const std::uint64_t key = take_varint(message);
    std::uint64_t number = 0;
    std::string_view bytes;
    switch (key & 7) {
      case 0:
        number = take_varint(message);
        break;
      case 1:
        number = take<std::uint64_t>(message);
        break;
      case 2: {
        const std::uint64_t size = take_varint(message);
        ASSERT_LE(size, message.size());
        bytes = message.substr(0, size);
        message.remove_prefix(size);
        break;
      }
      case 5:
        number = take<std::uint32_t>(message);
        break;
      default:
        FAIL() << "wire type " << (key & 7);
    }
    use(key >> 3, number, bytes);
  }
}

ReadEvent read_event(std::string_view message) {
  ReadEvent event;
  for_each_field(message, [&](std::uint64_t field, std::uint64_t number, std::string_view bytes) {
    if (field == 1) event.wall_time = std::bit_cast<double>(number);
    if (field == 2) event.step = static_cast<std::int64_t>(number);
    if (field == 3) event.file_version = bytes;
    if (field == 7) {
      for_each_field(bytes, [&](std::uint64_t inner, std::uint64_t status, std::string_view) {
        if (inner == 1) event.session_status = static_cast<std::int64_t>(status);
      });
    }
    if (field != 5) return;
    for_each_field(bytes, [&](std::uint64_t, std::uint64_t, std::string_view value) {
      for_each_field(value, [&](std::uint64_t inner, std::uint64_t bits, std::string_view text) {
        if (inner == 1) event.tag = text;
        if (inner == 2) event.value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      });
    });
  });
  return event;
}

std::vector<ReadEvent> read_events(const std::string& path) {
  const std::string file = contents(path);
  std::string_view bytes = file;
  std::vector<ReadEvent> events;
  while (!bytes.empty()) {
    const std::string_view length_bytes = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    EXPECT_EQ(take<std::uint32_t>(bytes), slow_masked_crc(length_bytes));
    if (length > bytes.size()) {
      ADD_FAILURE() << "a record of " << length << " bytes";
      break;
    }
    const std::string_view data = bytes.substr(0, length);
    bytes.remove_prefix(length);
    EXPECT_EQ(take<std::uint32_t>(bytes), slow_masked_crc(data));
    events.push_back(read_event(data));
  }
  return events;
}

TEST(TensorBoardMonitor, WritesEventsThatAReaderUnderstands) {
  const Folder folder;
  TensorBoardMonitor monitor(folder / "job");
  EXPECT_THAT(monitor.path(), testing::MatchesRegex(".*/job/events\\.out\\.tfevents\\.[0-9]+\\..+"));
  EXPECT_EQ(read_events(monitor.path()).size(), 1U) << "the version is there at once";
  monitor.write("Train/Samples/train_loss", 2.5, 16);
  monitor.write("Train/Samples/lr", std::nan(""), std::int64_t{1} << 40);
  monitor.flush();
  const auto events = read_events(monitor.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].tag, "Train/Samples/train_loss");
  EXPECT_EQ(events[1].value, 2.5F);
  EXPECT_EQ(events[1].step, 16);
  EXPECT_GT(events[1].wall_time, 1.6e9);
  EXPECT_GE(events[1].wall_time, events[0].wall_time);
  EXPECT_TRUE(std::isnan(events[2].value));
  EXPECT_EQ(events[2].step, std::int64_t{1} << 40);
}

TEST(TensorBoardMonitor, ResumesWithASessionStart) {
  const Folder folder;
  std::string path;
  {
    TensorBoardMonitor first(folder / "job");
    TensorBoardMonitor resumed(folder / "job", 32);
    EXPECT_NE(first.path(), resumed.path());
    path = resumed.path();
    resumed.write("loss", 1.0, 33);
  }
  const auto events = read_events(path);
  ASSERT_EQ(events.size(), 3U) << "the destructor writes what is left";
  EXPECT_EQ(events[1].session_status, 1);
  EXPECT_EQ(events[1].step, 33);
  EXPECT_EQ(events[2].tag, "loss");
}

TEST(Monitors, PassOnToAll) {
  struct Recording final : Monitor {
    explicit Recording(std::vector<std::string>& to) : log(to) {}
    void write(std::string_view tag, double, std::int64_t) override { log.emplace_back(tag); }
    void flush() override { log.emplace_back("flush"); }
    std::vector<std::string>& log;
  };
  std::vector<std::string> log;
  Monitors monitors;
  EXPECT_TRUE(monitors.empty());
  monitors.add(std::make_unique<Recording>(log));
  monitors.add(std::make_unique<Recording>(log));
  monitors.write("a", 1, 1);
  monitors.flush();
  EXPECT_THAT(log, ElementsAre("a", "a", "flush", "flush"));
}

}  // namespace
}  // namespace deepspeed::profile
