// SPDX-License-Identifier: Apache-2.0
// What hangs on other keys or on the run: "auto", defaults of other keys, the batch triple.
#include <fmt/format.h>

#include "base/error.h"
#include "config/batch.h"
#include "config/validate.h"

namespace deepspeed::config {

using nlohmann::json;

namespace {

json& slot(json& root, std::string_view path) {
  json* value = &root;
  for (const std::string& part : split(path, '.')) value = &(*value)[part];
  return *value;
}

class Resolver {
 public:
  Resolver(json& resolved, const Canonical& user, const Facts& facts, Findings& findings)
      : resolved_(resolved), user_(user), facts_(facts), findings_(findings) {}

  void run(const std::vector<std::string>& autos) {
    for (const std::string& path : autos) resolve_auto(path);
    json& zero = resolved_["zero_optimization"];
    if (zero["overlap_comm"].is_null()) zero["overlap_comm"] = zero["stage"] == 3;
    follow_optimizer();
    batch();
  }

 private:
  const json* value(std::string_view path) const {
    const json* found = at_path(resolved_, path);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  /// What the user wrote there, unless it is "auto" or null.
  const json* written(std::string_view path) const {
    const json* found = at_path(user_.value, path);
    return found == nullptr || found->is_null() || *found == "auto" ? nullptr : found;
  }

  std::int64_t hidden_size() const {
    if (facts_.hidden_size > 0) return facts_.hidden_size;
    for (const char* path : {"model.hidden_size", "model.n_embd", "model.d_model"})
      if (const json* size = value(path); size != nullptr && size->is_number_integer() && *size > 0)
        return size->get<std::int64_t>();
    return 0;
  }

  std::string model_dtype() const {
    if (!facts_.model_dtype.empty()) return facts_.model_dtype;
    for (const char* path : {"model.dtype", "model.torch_dtype"})
      if (const json* type = value(path); type != nullptr && type->is_string()) return type->get<std::string>();
    return "";
  }

  void unresolved(const std::string& path, const std::string& what) {
    findings_.error(path, fmt::format("\"auto\" can't be resolved: {}", what));
  }

  // Hugging Face's rules for the stage-3 sizes; where the model isn't known the default stands, as it does in
  // DeepSpeed.
  void resolve_auto(const std::string& path) {
    json& target = slot(resolved_, path);
    const std::int64_t hidden = std::min<std::int64_t>(hidden_size(), std::int64_t{1} << 28);
    if (path == "zero_optimization.reduce_bucket_size") {
      if (hidden > 0) target = hidden * hidden;
    } else if (path == "zero_optimization.stage3_prefetch_bucket_size") {
      if (hidden > 0) target = hidden * hidden / 10 * 9 + hidden * hidden % 10 * 9 / 10;
    } else if (path == "zero_optimization.stage3_param_persistence_threshold") {
      if (hidden > 0) target = 10 * hidden;
    } else if (path == "fp16.enabled") {
      const std::string type = model_dtype();
      target = type == "float16" || type == "fp16" || type == "half" || type == "torch.float16";
    } else if (path == "bf16.enabled") {
      const std::string type = model_dtype();
      target = type == "bfloat16" || type == "bf16" || type == "torch.bfloat16";
    } else if (path == "optimizer.params.lr") {
      const json* rate = written("scheduler.params.warmup_max_lr");
      if (rate != nullptr && rate->is_number())
        target = rate->get<double>();
      else
        unresolved(path, "scheduler.params.warmup_max_lr doesn't give it; write the learning rate");
    } else if (path == "scheduler.params.warmup_max_lr") {
      const json* rate = written("optimizer.params.lr");
      if (rate != nullptr && rate->is_number())
        target = rate->get<double>();
      else
        unresolved(path, "optimizer.params.lr doesn't give it; write the learning rate");
    } else if (path == "scheduler.params.total_num_steps") {
      if (const json* steps = value("training.steps"))
        target = *steps;
      else
        unresolved(path, "training.steps doesn't give it; write the number of optimizer steps");
    }
    // The batch keys: "auto" is the same as left out. The rest keeps its default.
  }

  void follow_optimizer() {
    if (value("optimizer.type") == nullptr) return;
    const std::string type = *value("optimizer.type");
    json& params = resolved_["optimizer"]["params"];
    if (type == "AdamW") params["adam_w_mode"] = true;
    // torch.optim.AdamW, which torch_adam stands for, has a default of its own.
    const bool adam = type == "Adam" || type == "AdamW";
    if (adam && params["torch_adam"] == true && params["adam_w_mode"] == true &&
        at_path(user_.value, "optimizer.params.weight_decay") == nullptr)
      params["weight_decay"] = 0.01;
  }

  void batch() {
    std::int64_t ranks = facts_.world_size;
    if (const json* sequence = value("sequence_parallel_size"); sequence != nullptr) {
      const std::int64_t size = sequence->get<std::int64_t>();
      if (ranks % size != 0) {
        findings_.error("sequence_parallel_size",
                        fmt::format("world_size ({}) is not divisible by sequence_parallel_size {}", ranks, size));
        return;
      }
      ranks /= size;
      if (const json* data = value("data_parallel_size"); data != nullptr && *data != ranks)
        findings_.error("data_parallel_size",
                        fmt::format("{} x sequence_parallel_size {} is not the number of ranks, {}", data->dump(), size,
                                    facts_.world_size));
    }
    const auto read = [&](const char* path) -> std::optional<std::int64_t> {
      const json* found = value(path);
      return found == nullptr ? std::nullopt : std::optional(found->get<std::int64_t>());
    };
    try {
      const BatchTriple all = complete_batch(
          {read("train_batch_size"), read("train_micro_batch_size_per_gpu"), read("gradient_accumulation_steps")},
          ranks);
      resolved_["train_batch_size"] = *all.train;
      resolved_["train_micro_batch_size_per_gpu"] = *all.micro;
      resolved_["gradient_accumulation_steps"] = *all.accumulation;
    } catch (const base::ConfigError& error) {
      findings_.error("", error.what());
    }
  }

  json& resolved_;
  const Canonical& user_;
  const Facts& facts_;
  Findings& findings_;
};

}  // namespace

void resolve(json& resolved, const Canonical& user, const std::vector<std::string>& autos, const Facts& facts,
             Findings& findings) {
  Resolver(resolved, user, facts, findings).run(autos);
}

}  // namespace deepspeed::config
