// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

namespace deepspeed::base::trace {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

/// The events that aren't metadata, and what stands beside them.
struct Recorded {
  std::vector<json> events;
  json other;
};
Recorded recorded() {
  const json whole = json::parse(base::trace::json());
  Recorded found{{}, whole["otherData"]};
  for (const json& event : whole["traceEvents"]) {
    if (event["ph"] != "M") found.events.push_back(event);
  }
  return found;
}
double end_of(const json& event) {
  return event["ts"].get<double>() + event["dur"].get<double>();
}

TEST(Trace, RecordsNothingUntilItIsStarted) {
  start({});
  stop();
  { const Range range("idle"); }
  EXPECT_FALSE(AsyncRange("idle", "comm"));
  EXPECT_TRUE(recorded().events.empty());
}

TEST(Trace, RangesNestOnTheirThread) {
  start({});
  {
    const Range step("step", "run", {{"number", 3}});
    { const Range forward("forward", "unit", {{"unit", "a \"b\"\\\n"}, {"numel", std::int64_t{1} << 40}}); }
    std::thread([] { const Range other("elsewhere"); }).join();
  }
  stop();
  const std::vector<json> events = recorded().events;
  ASSERT_EQ(events.size(), 3U);
  const json& forward = events[0];
  const json& elsewhere = events[1];
  const json& step = events[2];
  EXPECT_EQ(forward["name"], "forward");
  EXPECT_EQ(forward["cat"], "unit");
  EXPECT_EQ(forward["args"], (json{{"unit", "a \"b\"\\\n"}, {"numel", std::int64_t{1} << 40}}));
  EXPECT_EQ(step["args"]["number"], 3);
  EXPECT_EQ(step["ph"], "X");
  EXPECT_EQ(step["tid"], forward["tid"]);
  EXPECT_NE(step["tid"], elsewhere["tid"]);
  EXPECT_LE(step["ts"], forward["ts"]);
  // Times are rounded to a nanosecond each.
  EXPECT_LE(end_of(forward), end_of(step) + 0.002);
  EXPECT_LE(end_of(forward), elsewhere["ts"].get<double>() + 0.002);
}

TEST(Trace, AsynchronousRangesEndAnywhere) {
  start({});
  {
    std::optional<Subject> subject("layer.1");
    AsyncRange first("gather", "comm", {{"bytes", 8}});
    subject.reset();
    AsyncRange second("gather", "comm");
    EXPECT_TRUE(first);
    std::thread([range = std::move(first)]() mutable {
      range.add({"waited_us", 5});
      range.end();
      range.end();
    }).join();
    second = AsyncRange();
    EXPECT_FALSE(second);
  }
  stop();
  const std::vector<json> events = recorded().events;
  ASSERT_EQ(events.size(), 4U);
  std::map<std::string, std::vector<json>> by_id;
  for (const json& event : events) by_id[event["id2"]["local"]].push_back(event);
  ASSERT_EQ(by_id.size(), 2U);
  for (const auto& [id, pair] : by_id) {
    ASSERT_EQ(pair.size(), 2U);
    EXPECT_EQ(pair[0]["ph"], "b");
    EXPECT_EQ(pair[1]["ph"], "e");
    EXPECT_LE(pair[0]["ts"], pair[1]["ts"]);
  }
  EXPECT_EQ(events[0]["args"], (json{{"for", "layer.1"}, {"bytes", 8}, {"waited_us", 5}}));
  EXPECT_EQ(events[2]["args"], json::object());
  EXPECT_LE(events[0]["ts"], events[2]["ts"]);  // they overlap
}

TEST(Trace, AFullTraceSaysWhatItLeftOut) {
  start({.most_events = 3});
  for (int i = 0; i < 5; ++i) const Range range("r");
  EXPECT_EQ(dropped(), 2U);
  EXPECT_EQ(recorded().events.size(), 3U);
  EXPECT_EQ(recorded().other["dropped_events"], 2);
  start({});
  EXPECT_EQ(dropped(), 0U);
  EXPECT_TRUE(recorded().events.empty());
  stop();
}

TEST(Trace, WhatWasBegunInAnotherRecordingIsLeftOut) {
  start({});
  std::optional<Range> early(std::in_place, "early");
  start({});
  early.reset();
  std::optional<Range> late(std::in_place, "late");
  stop();
  late.reset();
  EXPECT_TRUE(recorded().events.empty());
}

TEST(Trace, TimesCountFromTheGivenOrigin) {
  const std::int64_t now = system_time();
  start({.origin = now - 5'000'000'000});
  { const Range range("r"); }
  stop();
  const double at = recorded().events.at(0)["ts"];
  EXPECT_GE(at, 5e6 - 1e3);
  EXPECT_LE(at, 15e6);
}

TEST(Trace, ManyThreadsAtOnce) {
  start({});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) {
        const Range range("r");
        AsyncRange("a", "comm").end();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop();
  EXPECT_EQ(recorded().events.size(), 4U * 500 * 3);
}

}  // namespace
}  // namespace deepspeed::base::trace
