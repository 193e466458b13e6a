// SPDX-License-Identifier: Apache-2.0
#include "profile/metrics.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "profile/memory.h"
#include "profile/support.h"
#include "profile/throughput.h"

namespace deepspeed::profile {
namespace {

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(contents(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(MetricsWriter, OneObjectALine) {
  const Folder folder;
  const std::string path = folder / "runs/demo/metrics.jsonl";
  MetricsWriter writer(path);
  writer.write({.step = 1,
                .loss = 0.1 + 0.2,
                .lr = 3e-4,
                .grad_norm = 1.5,
                .loss_scale = 65536,
                .skipped = true,
                .tokens = 4096,
                .tokens_per_s = 1e4,
                .step_ms = 409.6,
                .peak_host_bytes = 1 << 30,
                .peak_device_bytes = 7,
                .memory = {{"gradients", 12}, {"total", 30}}});
  writer.write({.step = 2, .loss = std::nan(""), .grad_norm = std::numeric_limits<double>::infinity()});
  writer.write({.step = 3});
  writer.write(3, {{"validation_loss", 2.25}, {"validation_perplexity", -INFINITY}});

  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(
      lines[0].dump(),
      R"({"grad_norm":1.5,"loss":0.30000000000000004,"loss_scale":65536,"lr":0.0003,"memory":{"gradients":12,"total":30},"peak_device_bytes":7,)"
      R"("peak_host_bytes":1073741824,"skipped":true,"step":1,"step_ms":409.6,"tokens":4096,"tokens_per_s":10000})");
  EXPECT_EQ(lines[0]["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_TRUE(lines[1]["loss"].is_null());
  EXPECT_TRUE(lines[1]["grad_norm"].is_null());
  EXPECT_TRUE(lines[2]["grad_norm"].is_null());
  EXPECT_EQ(lines[3].dump(), R"({"step":3,"validation_loss":2.25,"validation_perplexity":null})");
}

TEST(MetricsWriter, ResumesAtACheckpoint) {
  const Folder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsWriter writer(path);
    for (int step = 1; step <= 5; ++step) {
      writer.write({.step = step});
      writer.write(step, {{"validation_loss", 1.0}});
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"lo";  // killed in the middle of a line
  {
    MetricsWriter writer(path, 3);
    writer.write({.step = 4, .loss = 44});
  }
  auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[5]["step"], 3);
  EXPECT_EQ(lines[6]["step"], 4);
  EXPECT_EQ(lines[6]["loss"], 44);

  // Only the half line goes where all steps are before the checkpoint; and a file may be missing or empty.
  std::ofstream(path, std::ios::app) << "{\"step\": 5";
  MetricsWriter(path, 100).write({.step = 5});
  EXPECT_EQ(lines_of(path).size(), 8U);
  MetricsWriter(folder / "new.jsonl", 3).write({.step = 4});
  EXPECT_EQ(lines_of(folder / "new.jsonl").size(), 1U);

  MetricsWriter(path).write({.step = 1});
  EXPECT_EQ(lines_of(path).size(), 1U) << "a fresh run begins anew";
}

TEST(Memory, PeakFollowsWhatIsTouched) {
  const std::int64_t before = peak_host_bytes();
  EXPECT_GT(before, 1 << 20);
  constexpr std::size_t size = 256 << 20;
  {
    std::vector<char> memory(size, 1);
    EXPECT_GT(host_bytes(), static_cast<std::int64_t>(size));
    EXPECT_GE(peak_host_bytes(), host_bytes() - (1 << 20));
  }
  EXPECT_GE(peak_host_bytes(), std::max(before, static_cast<std::int64_t>(size)));
  EXPECT_LT(host_bytes(), peak_host_bytes());
}

TEST(Throughput, LeavesTheFirstStepOut) {
  Throughput throughput(3);
  EXPECT_EQ(throughput.tokens_per_second(), 0.0);
  EXPECT_EQ(throughput.remaining_seconds(10), 0.0);
  throughput.add(100, 10.0);
  EXPECT_DOUBLE_EQ(throughput.tokens_per_second(), 10.0);
  throughput.add(100, 1.0);
  EXPECT_DOUBLE_EQ(throughput.tokens_per_second(), 100.0);
  throughput.add(100, 3.0);
  EXPECT_DOUBLE_EQ(throughput.tokens_per_second(), 50.0);
  EXPECT_DOUBLE_EQ(throughput.remaining_seconds(10), 20.0);
  for (int i = 0; i < 3; ++i) throughput.add(300, 1.0);
  EXPECT_DOUBLE_EQ(throughput.tokens_per_second(), 300.0) << "older steps leave the window";
  EXPECT_DOUBLE_EQ(model_flops_utilization(1000.0, 1e9, 4e12), 0.25);
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.4), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(3600.0 + 125), "1h02m");
  EXPECT_EQ(format_duration(86400.0 * 2 + 3 * 3600 + 59), "2d03h");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(INFINITY), "?");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(5238), "5.24k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(465000), "465k");
  EXPECT_EQ(format_count(1.2e6), "1.20M");
  EXPECT_EQ(format_count(9996), "10.0k");
}

}  // namespace
}  // namespace deepspeed::profile
