// SPDX-License-Identifier: Apache-2.0
// training.profile: the traces of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "workspace.h"

namespace deepspeed::train {
namespace {

using testing::HasSubstr;
using testing::Not;

/// What is compared of times that were rounded to a nanosecond, in microseconds.
constexpr double rounding = 0.002;

struct Span {
  std::string name, category;
  double begin, end;
  json arguments;
  bool holds(const Span& other) const { return begin <= other.begin + rounding && other.end <= end + rounding; }
};

/// One rank's file: ranges of its main thread, in the order of their beginnings, and those between threads.
struct Trace {
  std::vector<Span> ranges, flights;

  std::vector<Span> named(const std::string& name) const {
    std::vector<Span> found;
    for (const Span& span : ranges) {
      if (span.name == name) found.push_back(span);
    }
    return found;
  }
};

Trace read_trace(const Workspace& work, int rank) {
  const json whole = json::parse(work.read("run/trace_rank" + std::to_string(rank) + ".json"));
  EXPECT_EQ(whole["otherData"], (json{{"rank", rank}, {"dropped_events", 0}}));
  Trace trace;
  std::map<std::string, Span> open;
  std::map<int, std::string> threads;
  for (const json& event : whole["traceEvents"]) {
    EXPECT_EQ(event["pid"], rank);
    if (event["ph"] == "M") {
      if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
      continue;
    }
    const double at = event["ts"];
    if (event["ph"] == "e") {
      const auto begun = open.extract(event["id2"]["local"].get<std::string>());
      if (begun.empty()) {
        ADD_FAILURE() << event << " has no beginning";
        continue;
      }
      trace.flights.push_back(begun.mapped());
      trace.flights.back().end = at;
      continue;
    }
    const Span span{event["name"], event["cat"], at, at + event.value("dur", 0.0), event["args"]};
    if (event["ph"] == "b") {
      open.emplace(event["id2"]["local"], span);
    } else if (threads[event["tid"]] == "ds_train") {
      trace.ranges.push_back(span);
    }
  }
  EXPECT_TRUE(open.empty());
  std::stable_sort(trace.ranges.begin(), trace.ranges.end(), [](const Span& a, const Span& b) {
    return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
  });
  return trace;
}

/// Each range lies within another or beside it.
void expect_nested(const std::vector<Span>& ranges) {
  std::vector<Span> around;
  for (const Span& span : ranges) {
    while (!around.empty() && around.back().end <= span.begin + rounding) around.pop_back();
    if (!around.empty()) {
      EXPECT_TRUE(around.back().holds(span)) << span.name << " reaches out of " << around.back().name;
    }
    around.push_back(span);
  }
}

TEST(Profile, ShowsTheStepsOfEachRankAndChangesNothing) {
  const Workspace work;
  json config = tiny_config();
  config["training"].update({{"steps", 4}, {"activation_checkpointing", true}});
  config.update({{"gradient_accumulation_steps", 2},
                 {"zero_optimization", {{"stage", 3}, {"stage3_param_persistence_threshold", 0}}}});
  const Outcome run = work.train(2, config, {"--profile=2:3"});
  ASSERT_EQ(run.status, 0) << run;
  EXPECT_EQ(count(run.err, "profile: steps 2 to 3 of this run are in run/trace_rank0.json"), 1) << run;
  const Outcome plain = work.train(2, config, {"--output", "plain"});
  ASSERT_EQ(plain.status, 0) << plain;
  EXPECT_EQ(lasting(work.metrics("run")), lasting(work.metrics("plain")));
  EXPECT_FALSE(work.has("plain/trace_rank0.json"));

  std::vector<Span> second_steps;
  for (const int rank : {0, 1}) {
    const Trace trace = read_trace(work, rank);
    expect_nested(trace.ranges);
    EXPECT_TRUE(trace.named("step 1").empty());
    EXPECT_TRUE(trace.named("step 4").empty());
    for (const char* name : {"step 2", "step 3"}) {
      const std::vector<Span> steps = trace.named(name);
      ASSERT_EQ(steps.size(), 1U);
      const auto inside = [&](const std::string& what) {
        const std::vector<Span> all = trace.named(what);
        return std::count_if(all.begin(), all.end(), [&](const Span& span) { return steps[0].holds(span); });
      };
      for (const char* part : {"data", "forward", "backward"}) EXPECT_EQ(inside(part), 2) << part;
      EXPECT_EQ(inside("step"), 1);
      EXPECT_EQ(inside("update"), 1);
      EXPECT_EQ(inside("transformer.h.0"), 4);  // forward and backward of two micro batches
    }
    second_steps.push_back(trace.named("step 2")[0]);
    const std::vector<Span> backwards = trace.named("backward");
    for (const Span& unit : trace.named("transformer.h.0")) {
      const bool in_backward =
          std::any_of(backwards.begin(), backwards.end(), [&](const Span& span) { return span.holds(unit); });
      EXPECT_EQ(unit.category, in_backward ? "backward" : "forward");
    }
    EXPECT_EQ(trace.named("recompute").size(), 2U * 2 * 1);

    std::map<std::string, int> about_the_block;
    for (const Span& flight : trace.flights) {
      EXPECT_LE(flight.begin, flight.end);
      EXPECT_EQ(flight.category, "comm");
      if (flight.arguments.value("for", "") == "transformer.h.0") ++about_the_block[flight.name];
    }
    EXPECT_GE(about_the_block["all_gather"], 2 * 2);
    EXPECT_EQ(about_the_block["ordered_reduce_scatter"], 2 * 2);
  }
  // The ranks have one time axis.
  EXPECT_LT(second_steps[0].begin, second_steps[1].end);
  EXPECT_LT(second_steps[1].begin, second_steps[0].end);
}

TEST(Profile, ARunThatEndsEarlierTellsWhatItHas) {
  const Workspace work;
  const Outcome cut = work.train(0, tiny_config(), {"--profile=2:9", "--steps", "3"});
  ASSERT_EQ(cut.status, 0) << cut;
  EXPECT_THAT(cut.err, HasSubstr("profile: steps 2 to 3 of this run"));
  const Trace trace = read_trace(work, 0);
  EXPECT_EQ(trace.named("step 3").size(), 1U);
  EXPECT_EQ(trace.named("save").size(), 1U);

  // Steps count from where a run begins.
  const Outcome resumed = work.train(0, tiny_config(), {"--profile=1:1", "--steps", "5"});
  ASSERT_EQ(resumed.status, 0) << resumed;
  EXPECT_EQ(read_trace(work, 0).named("step 4").size(), 1U);

  const Outcome none = work.train(0, tiny_config(), {"--profile=3:4", "--steps", "7"});
  ASSERT_EQ(none.status, 0) << none;
  EXPECT_THAT(none.err, HasSubstr("training.profile: the run ended after 2 steps, before step 3"));
  EXPECT_THAT(none.err, Not(HasSubstr("profile: steps")));
}

}  // namespace
}  // namespace deepspeed::train
