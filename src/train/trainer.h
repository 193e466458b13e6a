// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/group.h"
#include "config/config.h"
#include "data/batches.h"
#include "engine/engine.h"
#include "models/models.h"
#include "train/run_folder.h"
#include "train/signals.h"

namespace deepspeed::train {

/// What a pass over an evaluation set gives.
struct Evaluation {
  double loss = 0;  ///< nats a token
  std::int64_t tokens = 0;
  double perplexity() const;
};

/// What a Trainer is made for: to evaluate, no training data is needed, and nothing is ever written.
enum class Purpose { train, evaluate };

/// The loop of ds_train: data, evaluation, checkpoints, metrics, stop requests.
class Trainer {
 public:
  /// Collective. Opens data and model as the config says; nothing is written yet.
  Trainer(std::shared_ptr<comm::Group> group, config::Config config, Purpose purpose = Purpose::train);
  ~Trainer();

  /// Collective: trains up to the configured end. Returns the exit code: 0, or 75 after a stop request and a
  /// checkpoint.
  int run();
  /// Collective: loads what training.resume names, as run() does by itself, and returns in words what the weights are
  /// then. Throws where it is named and not there, and where "never" meets the checkpoints of an earlier run.
  std::string load_weights();
  /// Collective: loss of the model on the validation set (to evaluate, without one: on the training data); nullopt if a
  /// stop was requested meanwhile.
  std::optional<Evaluation> evaluate();

 private:
  void open_data();
  void log_start();
  /// One optimizer step; this rank's mean loss.
  double train_step();
  void report(const Evaluation& evaluation);
  void save();
  /// What one checkpoint takes at least.
  std::uint64_t checkpoint_bytes() const;
  void set_notice();
  void export_model(const std::string& folder);

  std::shared_ptr<comm::Group> group_;
  config::Config config_;
  Purpose purpose_;
  double time_limit_ = 0;  ///< seconds; 0 = none
  std::int64_t sequence_length_ = 0;
  std::int64_t steps_ = 0;
  std::uint64_t seed_ = 0;
  std::shared_ptr<models::CausalLM> model_;
  std::shared_ptr<data::Tokenizer> tokenizer_;
  std::shared_ptr<data::TokenSource> text_;  ///< all of data.train, for its statistics
  std::shared_ptr<data::TokenSource> train_tokens_;
  std::shared_ptr<data::TokenSource> validation_tokens_;
  std::unique_ptr<data::BatchReader> batches_;
  std::unique_ptr<engine::Engine> engine_;
  StopSignals signals_;
  RunFolder folder_;
  std::string checkpoint_;  ///< tag of the last good one in folder_
  std::int64_t saved_step_ = -1;
  bool evaluation_due_ = false;  ///< the step that was just done is to be followed by an evaluation
  double bigram_entropy_ = 0;    ///< of text_, on rank 0 where it could be counted
};

}  // namespace deepspeed::train
