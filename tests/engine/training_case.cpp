// SPDX-License-Identifier: Apache-2.0
#include "engine/training_case.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "comm/process.h"
#include "config/config.h"
#include "io/safetensors.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::engine::testing {

namespace {

// Made before the tests and gone before the main ends MPI.
std::unique_ptr<comm::Process> process;

class ProcessEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { process = std::make_unique<comm::Process>(nullptr, nullptr); }
  void TearDown() override { process.reset(); }
};

[[maybe_unused]] const auto* const environment = ::testing::AddGlobalTestEnvironment(new ProcessEnvironment);

}  // namespace

std::shared_ptr<comm::Group> world() {
  return process->world();
}

at::Tensor recorded_tokens(std::int64_t index, int rank, int ranks) {
  constexpr std::int64_t rows = 8;
  constexpr std::int64_t length = 64;
  static const io::SafeTensors file(data_folder() / "train" / "tokens.safetensors");
  const auto* tokens = static_cast<const std::int64_t*>(file.at("tokens").data.data);
  const std::int64_t own = rows / ranks;
  at::Tensor batch = at::empty({own, length}, at::kLong);
  std::memcpy(batch.data_ptr(), tokens + (index * rows + rank * own) * length,
              static_cast<std::size_t>(own * length) * sizeof(std::int64_t));
  return batch;
}

std::unique_ptr<Engine> engine_for(const std::shared_ptr<torch::nn::Module>& model, nlohmann::json config,
                                   const std::shared_ptr<comm::Group>& group) {
  if (config.contains("zero_optimization")) {
    nlohmann::json& zero = config.at("zero_optimization");
    if (!zero.contains("stage3_param_persistence_threshold")) zero["stage3_param_persistence_threshold"] = 0;
  }
  config::Facts facts;
  facts.world_size = group->size();
  facts.accelerator = true;
  return initialize(model, config::Config::parse(config.dump(), "test", {}, facts), group);
}

Case::Case(const std::string& model_name, nlohmann::json config, std::shared_ptr<comm::Group> group) {
  model = models::load_model(data_folder() / "models" / model_name);
  engine = engine_for(model, std::move(config), group);
  engine->train();
}

std::vector<double> Case::step() {
  std::vector<double> losses;
  for (std::int64_t micro = 0; micro < engine->gradient_accumulation_steps(); ++micro) {
    const at::Tensor ids = recorded_tokens(next_batch++, engine->global_rank(), engine->world_size());
    const at::Tensor loss = engine->forward([&] { return model->forward(ids, ids).loss; });
    losses.push_back(loss.item<double>());
    engine->backward(loss);
    engine->step();
  }
  return losses;
}

double mean(comm::Group& group, double value) {
  return group.all_reduce_value(value) / group.size();
}

Folder::Folder(const std::string& name) {
  path = std::filesystem::path(DS_BINARY_DIR) / "tests" / (name + std::to_string(world()->size()));
  if (world()->rank() == 0) std::filesystem::remove_all(path);
  world()->barrier().wait();
}

Folder::~Folder() {
  world()->barrier().wait();
  if (world()->rank() == 0) std::filesystem::remove_all(path);
}

std::vector<float> weights_of(const Engine& engine) {
  std::vector<float> all;
  for (const auto& [name, tensor] : engine.module_state_dict()) {
    const at::Tensor row = tensor.to(at::kFloat).contiguous();
    const auto* values = static_cast<const float*>(row.data_ptr());
    all.insert(all.end(), values, values + row.numel());
  }
  return all;
}

std::string fingerprint(Engine& engine) {
  std::string bytes;
  const auto add = [&bytes](const base::Buffer& b) { bytes.append(static_cast<const char*>(b.data), b.bytes()); };
  for (const auto& group : engine.optimizer().rows()) {
    add(group->row().weights());
    add(group->master());
    for (const at::Tensor& state : group->states) add(nn::view(state));
  }
  return bytes;
}

}  // namespace deepspeed::engine::testing
