// SPDX-License-Identifier: Apache-2.0
#include "models/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace deepspeed::models {
namespace {

/// Evaluation mode until the end of the scope.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module) : module_(module), training_(module.is_training()) { module_.eval(); }
  ~Evaluating() { module_.train(training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  torch::nn::Module& module_;
  bool training_;
};

at::Device device_of(const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

}  // namespace

std::vector<std::int64_t> generate(CausalLM& model, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options) {
  if (prompt.empty()) throw base::DataError("the prompt must have at least one token");
  for (const std::int64_t id : prompt) {
    if (id < 0 || id >= model.vocab_size())
      throw base::DataError(
          fmt::format("the prompt has token {}: this model's tokens are 0 to {}", id, model.vocab_size() - 1));
  }
  if (!(options.temperature >= 0.0) || std::isinf(options.temperature))
    throw base::UsageError("the temperature must be 0 or a positive number");

  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  const at::Device device = device_of(model);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<std::int64_t> text = prompt;
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto length = std::min(static_cast<std::int64_t>(text.size()), model.context_length());
    const at::Tensor window = at::empty({1, length}, at::kLong);
    std::copy(text.end() - length, text.end(), window.mutable_data_ptr<std::int64_t>());
    const at::Tensor logits =
        model.forward(window.to(device)).logits.select(1, length - 1).select(0, 0).to(at::kCPU, at::kFloat);
    if (!std::isfinite(logits.sum().item<double>()))
      throw base::DataError("the model's logits are not finite: its weights are damaged or its training diverged");
    const at::Tensor next = options.temperature == 0.0
                                ? logits.argmax()
                                : (logits / options.temperature).softmax(0).multinomial(1, false, generator);
    text.push_back(next.item<std::int64_t>());
    if (text.back() == options.stop_token) break;
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace deepspeed::models
