// SPDX-License-Identifier: Apache-2.0
#include "workspace.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

namespace deepspeed::train {
namespace {

/// Something with a structure that can be learned: words of a small vocabulary in random order.
std::string make_text(std::size_t bytes) {
  constexpr const char* words[] = {"many",  "ranks", "reduce", "their",  "gradients", "and",   "nobody",
                                   "waits", "while", "a",      "shard",  "of",        "state", "sleeps",
                                   "on",    "disk",  "until",  "called", "back",      "home"};
  std::mt19937 random(7);
  std::string text;
  while (text.size() < bytes) {
    text += words[random() % std::size(words)];
    text += random() % 9 == 0 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

}  // namespace

json tiny_config() {
  return {{"model",
           {{"type", "gpt2"},
            {"n_layer", 1},
            {"n_head", 2},
            {"n_embd", 16},
            {"n_positions", 32},
            {"vocab_size", 256},
            {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0}}},
          {"data", {{"train", "text.txt"}, {"validation", 0.1}, {"sequence_length", 16}, {"shuffle", true}}},
          {"training", {{"steps", 20}, {"seed", 7}, {"output", "run"}}},
          {"train_batch_size", 8},
          {"gradient_clipping", 1.0},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
          {"scheduler",
           {{"type", "WarmupDecayLR"},
            {"params", {{"warmup_num_steps", 4}, {"total_num_steps", 20}, {"warmup_type", "linear"}}}}},
          {"steps_per_print", 10}};
}

Workspace::Workspace() : folder_(DS_BINARY_DIR) {
  write("text.txt", make_text(8000));
}

void Workspace::write(const std::string& name, const std::string& text) const {
  std::filesystem::create_directories((folder_ / name).parent_path());
  std::ofstream(folder_ / name, std::ios::binary) << text;
}

std::string Workspace::read(const std::string& name) const {
  std::ifstream file(folder_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> Workspace::names(const std::string& folder) const {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / folder))
    all.push_back(entry.path().filename().string());
  std::sort(all.begin(), all.end());
  return all;
}

Start Workspace::start(int ranks, const std::string& program, const std::vector<std::string>& arguments) const {
  Start start;
  start.folder = folder_.path();
  if (ranks > 0) {
    start.command = {DS_MPIRUN, "--oversubscribe", "--bind-to", "none", "-q", "-n", std::to_string(ranks)};
  }
  start.command.push_back(program);
  start.command.insert(start.command.end(), arguments.begin(), arguments.end());
  return start;
}

Outcome Workspace::run(int ranks, const std::string& program, const std::vector<std::string>& arguments,
                       const std::string& input) const {
  Start what = start(ranks, program, arguments);
  what.input = input;
  return testing_support::run(what);
}

Start Workspace::training(int ranks, const json& config, const std::vector<std::string>& arguments) const {
  std::vector<std::string> all{config.dump()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return start(ranks, DS_TRAIN, all);
}

Outcome Workspace::train(int ranks, const json& config, const std::vector<std::string>& arguments) const {
  return testing_support::run(training(ranks, config, arguments));
}

Outcome Workspace::generate(const std::vector<std::string>& arguments, const std::string& input) const {
  return run(0, DS_GENERATE, arguments, input);
}

std::vector<json> Workspace::metrics(const std::string& name) const {
  std::ifstream file(folder_ / name / "metrics.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

std::int64_t Workspace::last_step(const std::string& name) const {
  const std::string text = read(name + "/metrics.jsonl");
  const std::string key = "{\"step\": ";
  const std::size_t at = text.rfind(key);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + key.size());
}

std::vector<json> lasting(std::vector<json> metrics) {
  for (json& line : metrics) {
    for (const char* key : {"tokens_per_s", "step_ms", "peak_host_bytes", "peak_device_bytes", "memory"})
      line.erase(key);
  }
  return metrics;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

}  // namespace deepspeed::train
