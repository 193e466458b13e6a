// SPDX-License-Identifier: Apache-2.0
#include "train/plan.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "engine/engine.h"
#include "layout/memory_model.h"
#include "models/footprint.h"
#include "profile/throughput.h"

namespace deepspeed::train {
namespace {

using nlohmann::json;

std::string bytes_text(const json& bytes) {
  return profile::format_count(bytes.get<double>()) + "B";
}

json estimate(const config::Config& config, const models::DecoderConfig& model, int ranks, bool checkpointing) {
  const layout::TrainingShape shape = engine::training_shape(config, ranks);
  const auto facts = models::parameter_facts(model, shape.working);
  const layout::MemoryEstimate memory = layout::estimate_memory(facts, shape);
  const layout::TrafficEstimate traffic = layout::estimate_traffic(facts, shape);
  const std::int64_t activations = models::activation_bytes(
      model, config.get<std::int64_t>("train_micro_batch_size_per_gpu"),
      config.find<std::int64_t>("data.sequence_length").value_or(model.context), shape.working, checkpointing);
  return {{"checkpointing", checkpointing},
          {"bytes",
           {{"parameters", memory.parameters},
            {"gathered", memory.gathered},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"buckets", memory.buckets},
            {"activations", activations},
            {"total", memory.total() + activations}}},
          {"sent_per_step",
           {{"gradients", traffic.gradients},
            {"gathers", traffic.gathers},
            {"updates", traffic.updates},
            {"total", traffic.total()}}}};
}

}  // namespace

json plan(const std::function<config::Config(int, const std::vector<std::string>&)>& load,
          const std::vector<int>& ranks, std::optional<std::int64_t> memory) {
  json result{{"memory_limit", memory ? json(*memory) : json()}, {"plans", json::array()}};
  for (const int n : ranks) {
    const config::Config config = load(n, {});
    const auto section = config.find<json>("model");
    if (!section || section->is_null()) {
      throw base::ConfigError(
          "model: no model to plan for; give a Hugging Face folder with --model DIR, or model.type");
    }
    const models::DecoderConfig model = models::describe_model(*section);
    const auto stage = config.get<std::int64_t>("zero_optimization.stage");
    const bool checkpointing = config.get<bool>("training.activation_checkpointing");
    result["model"] = {{"type", model.family},
                       {"parameters", models::parameter_count(model)},
                       {"dtype", std::string(base::name_of(engine::training_shape(config, n).working))}};
    json one{{"ranks", n},
             {"configured_stage", stage},
             {"micro_batch", config.get<std::int64_t>("train_micro_batch_size_per_gpu")},
             {"gradient_accumulation_steps", config.get<std::int64_t>("gradient_accumulation_steps")},
             {"sequence_length", config.find<std::int64_t>("data.sequence_length").value_or(model.context)},
             {"fits", nullptr},
             {"stages", json::array()}};
    // The order in which one would try them: the least exchange first.
    for (const bool recompute : {false, true}) {
      for (int s = 0; s < 4; ++s) {
        json row = estimate(load(n, {fmt::format("zero_optimization.stage={}", s)}), model, n, recompute);
        row["stage"] = s;
        row["configured"] = s == stage && recompute == checkpointing;
        if (memory && one["fits"].is_null() && row.at("bytes").at("total") <= *memory) {
          one["fits"] = {{"stage", s}, {"checkpointing", recompute}, {"total", row.at("bytes").at("total")}};
        }
        one["stages"].push_back(std::move(row));
      }
    }
    result["plans"].push_back(std::move(one));
  }
  return result;
}

std::string plan_text(const json& plan) {
  const json& model = plan.at("model");
  std::string text =
      fmt::format("{}, {} parameters in {}; bytes on the rank that holds most\n", model.at("type").get<std::string>(),
                  profile::format_count(model.at("parameters").get<double>()), model.at("dtype").get<std::string>());
  const std::vector<std::string> categories{"parameters", "gathered",    "gradients", "optimizer",
                                            "buckets",    "activations", "total"};
  for (const json& one : plan.at("plans")) {
    text += fmt::format("\n{} rank{} x micro batch {} x accumulation {}, {} tokens each\n", one.at("ranks").get<int>(),
                        one.at("ranks") == 1 ? "" : "s", one.at("micro_batch").get<int>(),
                        one.at("gradient_accumulation_steps").get<int>(), one.at("sequence_length").get<int>());
    text += fmt::format("  {:<22}", "ZeRO stage");
    for (const std::string& category : categories) text += fmt::format("{:>13}", category);
    text += fmt::format("{:>14}\n", "sent a step");
    for (const json& row : one.at("stages")) {
      text += fmt::format("{} {:<22}", row.at("configured").get<bool>() ? '>' : ' ',
                          fmt::format("{}{}", row.at("stage").get<int>(),
                                      row.at("checkpointing").get<bool>() ? ", checkpointing" : ""));
      for (const std::string& category : categories) {
        text += fmt::format("{:>13}", bytes_text(row.at("bytes").at(category)));
      }
      text += fmt::format("{:>14}\n", bytes_text(row.at("sent_per_step").at("total")));
    }
    if (plan.at("memory_limit").is_null()) continue;
    const std::string limit = bytes_text(plan.at("memory_limit"));
    const json& fits = one.at("fits");
    if (fits.is_null()) {
      text += fmt::format(
          "  nothing above fits in {} a rank: take more ranks, a smaller micro batch or shorter samples\n", limit);
    } else {
      text += fmt::format("  fits in {} a rank: zero_optimization.stage {}{}, with {}\n", limit,
                          fits.at("stage").get<int>(),
                          fits.at("checkpointing").get<bool>() ? " and training.activation_checkpointing" : "",
                          bytes_text(fits.at("total")));
    }
  }
  text += "> the configuration as it is. What the process itself takes (libraries, MPI, data) comes on top.\n";
  return text;
}

std::int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double> units{{"", 1},
                                                   {"B", 1},
                                                   {"kB", 1e3},
                                                   {"KB", 1e3},
                                                   {"MB", 1e6},
                                                   {"GB", 1e9},
                                                   {"TB", 1e12},
                                                   {"KiB", 1024},
                                                   {"MiB", 1048576.0},
                                                   {"GiB", 1073741824.0},
                                                   {"TiB", 1099511627776.0},
                                                   {"K", 1024},
                                                   {"M", 1048576.0},
                                                   {"G", 1073741824.0},
                                                   {"T", 1099511627776.0}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  const auto found = units.find(unit);
  if (end == text.c_str() || found == units.end() || !(number > 0) || !(number * found->second < 9e18)) {
    throw base::UsageError(fmt::format("--memory: '{}' is no amount of memory; give for example 80GB or 512MiB", text));
  }
  return static_cast<std::int64_t>(number * found->second);
}

}  // namespace deepspeed::train
