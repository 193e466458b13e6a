// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "layout/memory_estimators.h"
#include "layout/memory_model.h"

namespace deepspeed::layout {
namespace {

nlohmann::json recorded() {
  std::ifstream file(std::string(DS_TEST_DATA) + "/layout/memory_estimators.json");
  return nlohmann::json::parse(file);
}

TEST(MemoryEstimators, GiveDeepSpeedsNumbers) {
  const nlohmann::json data = recorded();
  ASSERT_EQ(data.at("zero2").size(), 180U);
  ASSERT_EQ(data.at("zero3").size(), 480U);
  for (const auto& c : data.at("zero2")) {
    const MemoryNeeds needs = estimate_zero2_model_states_mem_needs(c[0], c[1], c[2], c[3], c[4]);
    EXPECT_EQ(nlohmann::json({needs.cpu, needs.gpu}), c[5]) << c;
  }
  for (const auto& c : data.at("zero3")) {
    const MemoryNeeds needs = estimate_zero3_model_states_mem_needs(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]);
    EXPECT_EQ(nlohmann::json({needs.cpu, needs.gpu, needs.largest_layer}), c[8]) << c;
  }
}

TEST(MemoryEstimators, PrintDeepSpeedsTables) {
  for (const auto& c : recorded().at("printed")) {
    const auto& args = c.at("args");
    std::string want = c.at("stdout");
    // Python 3.11 prints the enumeration's name, where the device's was meant.
    for (std::size_t at = 0; (at = want.find("OffloadDeviceEnum.cpu")) != std::string::npos;)
      want.replace(at, 21, "cpu ");
    const std::string got =
        c.at("fn") == "zero2_all_cold"
            ? estimate_zero2_model_states_mem_needs_all_cold(args.at("total_params"), args.at("num_gpus_per_node"),
                                                             args.at("num_nodes"))
            : estimate_zero3_model_states_mem_needs_all_cold(args.at("total_params"), args.at("largest_layer_params"),
                                                             args.at("num_gpus_per_node"), args.at("num_nodes"));
    EXPECT_EQ(got, want);
  }
}

/// `units` units of one parameter each.
std::vector<ParameterFacts> model(int units, std::int64_t numel) {
  std::vector<ParameterFacts> parameters(static_cast<std::size_t>(units));
  for (int u = 0; u < units; ++u) {
    parameters[static_cast<std::size_t>(u)].numel = numel;
    parameters[static_cast<std::size_t>(u)].units = {u};
    parameters[static_cast<std::size_t>(u)].type = base::Dtype::bf16;
  }
  return parameters;
}

TrainingShape mixed(int stage, int ranks) {
  TrainingShape shape;
  shape.placement = Placement::of_stage(stage);
  shape.ranks = ranks;
  shape.working = shape.accumulation = shape.communication = base::Dtype::bf16;
  return shape;
}

// Rajbhandari et al. 2020, figure 1: 16, 4 + 12 / N, 2 + 14 / N, 16 / N bytes a parameter.
TEST(MemoryModel, IsZerosForSixteenBytesAParameter) {
  const std::int64_t units = 100;
  const std::int64_t numel = 1 << 16;
  const double parameters = static_cast<double>(units * numel);
  const std::vector<ParameterFacts> facts = model(units, numel);
  for (const int ranks : {2, 4, 8, 16, 1024}) {
    const double n = ranks;
    const double want[] = {16, 4 + 12 / n, 2 + 14 / n, 16 / n};
    for (int stage = 0; stage < 4; ++stage) {
      TrainingShape shape = mixed(stage, ranks);
      shape.gradient_accumulation_steps = stage == 1 ? 2 : 1;
      const MemoryEstimate estimate = estimate_memory(facts, shape);
      const auto states = static_cast<double>(estimate.parameters + estimate.gradients + estimate.optimizer);
      EXPECT_NEAR(states / parameters, want[stage], 1e-9) << stage << " on " << ranks;
      EXPECT_LE(static_cast<double>(estimate.buckets + estimate.gathered) / parameters, 0.3);
    }
  }
}

TEST(MemoryModel, AHigherStageNeverHoldsMoreStates) {
  const std::vector<ParameterFacts> facts = model(7, 1001);
  for (const int ranks : {1, 2, 3, 10000}) {
    for (const std::int64_t accumulation : {1, 4}) {
      std::int64_t before = std::numeric_limits<std::int64_t>::max();
      for (int stage = 0; stage < 4; ++stage) {
        TrainingShape shape = mixed(stage, ranks);
        shape.gradient_accumulation_steps = accumulation;
        const MemoryEstimate estimate = estimate_memory(facts, shape);
        const std::int64_t states = estimate.parameters + estimate.gradients + estimate.optimizer;
        EXPECT_LE(states, before);
        before = states;
      }
    }
  }
}

// Section 7 of the paper: stages 1 and 2 send what plain data parallelism sends, stage 3 half as much again.
TEST(MemoryModel, TrafficIsThePapers) {
  const std::vector<ParameterFacts> facts = model(100, 1 << 16);
  const double once = 100.0 * (1 << 16) * 15 / 16;  // elements that one all-gather sends
  const auto elements = [&](int stage) {
    return static_cast<double>(estimate_traffic(facts, mixed(stage, 16)).total()) / 2 / once;
  };
  EXPECT_NEAR(elements(1), 2, 1e-9);
  EXPECT_NEAR(elements(2), 2, 1e-9);
  EXPECT_NEAR(elements(3), 3, 1e-9);
  EXPECT_EQ(estimate_traffic(facts, mixed(3, 1)).total(), 0);
}

}  // namespace
}  // namespace deepspeed::layout
