// SPDX-License-Identifier: Apache-2.0
// Trains a tiny recorded model on the recorded tokens: what the engine's tests share.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/group.h"
#include "engine/engine.h"
#include "models/models.h"

namespace deepspeed::engine::testing {

/// All ranks of the test, through the real back end.
std::shared_ptr<comm::Group> world();

inline std::filesystem::path data_folder() {
  return DS_TEST_DATA;
}

/// A folder that all ranks see, empty at first and gone with the object. Collective.
struct Folder {
  std::filesystem::path path;
  explicit Folder(const std::string& name);
  ~Folder();
};

/// The recorded micro batch `index`: this rank's rows of [8, 64] tokens.
at::Tensor recorded_tokens(std::int64_t index, int rank, int ranks);

/// An engine for a test: at stage 3 also small parameters are sharded unless the config says otherwise.
std::unique_ptr<Engine> engine_for(const std::shared_ptr<torch::nn::Module>& model, nlohmann::json config,
                                   const std::shared_ptr<comm::Group>& group = world());

/// An engine over the model in tests/data/models/NAME. `overrides` replace top-level keys of `config`.
struct Case {
  std::shared_ptr<models::CausalLM> model;
  std::unique_ptr<Engine> engine;

  Case(const std::string& model_name, nlohmann::json config, std::shared_ptr<comm::Group> group);
  /// One optimizer step from recorded batches; returns this rank's loss of each micro batch.
  std::vector<double> step();
  std::int64_t next_batch = 0;
};

/// The mean over ranks.
double mean(comm::Group& group, double value);

/// All weights as fp32, one row, in the order of the state dict.
std::vector<float> weights_of(const Engine& engine);
/// All bytes of weights, masters and optimizer states that this rank holds.
std::string fingerprint(Engine& engine);

}  // namespace deepspeed::engine::testing
