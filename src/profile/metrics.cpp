// SPDX-License-Identifier: Apache-2.0
#include "profile/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace deepspeed::profile {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::optional<std::int64_t> step_of_object(std::string_view line) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, std::optional<std::int64_t> resumed_at) : file_(path) {
  if (resumed_at) {
    cut_lines_after(file_, *resumed_at, step_of_object);
  } else {
    file_.cut(0);
  }
}

void MetricsWriter::write(const StepMetrics& m) {
  std::string memory;
  for (const auto& [name, bytes] : m.memory) {
    memory += fmt::format("{}{}: {}", memory.empty() ? "" : ", ", nlohmann::json(name).dump(), bytes);
  }
  file_.append(fmt::format(
      R"({{"step": {}, "loss": {}, "lr": {}, "grad_norm": {}, "loss_scale": {}, "skipped": {}, "tokens": {}, )"
      R"("tokens_per_s": {}, "step_ms": {}, "peak_host_bytes": {}, "peak_device_bytes": {}, "memory": {{{}}}}})"
      "\n",
      m.step, number(m.loss), number(m.lr), m.grad_norm ? number(*m.grad_norm) : "null", number(m.loss_scale),
      m.skipped, m.tokens, number(m.tokens_per_s), number(m.step_ms), m.peak_host_bytes, m.peak_device_bytes, memory));
}

void MetricsWriter::write(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& values) {
  std::string line = fmt::format("{{\"step\": {}", step);
  for (const auto& [name, value] : values) {
    line += fmt::format(", {}: {}", nlohmann::json(name).dump(), number(value));
  }
  file_.append(line + "}\n");
}

}  // namespace deepspeed::profile
