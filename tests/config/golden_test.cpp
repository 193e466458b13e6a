// SPDX-License-Identifier: Apache-2.0
// Against what DeepSpeed 0.19.8 itself made of 118 configurations, 1890 batch triples, and its defaults.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "config/batch.h"
#include "config/support.h"

namespace deepspeed::config {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json golden(const std::string& name) {
  return json::parse(read_file(std::string(DS_TEST_DATA) + "/config/" + name));
}

/// The triple, or the error, by the arithmetic alone.
json complete(const json& row) {
  const auto given = [&](std::size_t i) {
    return row[i].is_null() ? std::nullopt : std::optional(row[i].get<std::int64_t>());
  };
  try {
    const BatchTriple all = complete_batch({given(1), given(2), given(3)}, row[0]);
    return {*all.train, *all.micro, *all.accumulation};
  } catch (const base::ConfigError& error) {
    return error.what();
  }
}

/// The same through a whole configuration.
json configure(const json& row) {
  json config = json::object();
  const std::vector<std::string> keys = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps"};
  for (std::size_t i = 0; i < 3; ++i)
    if (!row[i + 1].is_null()) config[keys[i]] = row[i + 1];
  if (const std::string message = refusal(config.dump(), row[0]); !message.empty()) return message;
  const Config ours = parse(config.dump(), row[0]);
  return {ours.get<std::int64_t>(keys[0]), ours.get<std::int64_t>(keys[1]), ours.get<std::int64_t>(keys[2])};
}

void expect_golden(const json& ours, const json& golden_outcome) {
  if (golden_outcome.is_array()) {
    EXPECT_EQ(ours, golden_outcome);
    return;
  }
  std::string wanted = golden_outcome;
  if (wanted == "zero")
    wanted = ": 0 has to be greater than 0";  // DeepSpeed divides by it; the error names the key instead
  else if (wanted == "either")
    wanted = "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided";
  else if (wanted.rfind("identity ", 0) == 0)
    wanted =
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
        "world_size " +
        wanted.substr(9);
  ASSERT_TRUE(ours.is_string()) << ours;
  EXPECT_THAT(ours.get<std::string>(), HasSubstr(wanted));
}

TEST(Golden, BatchGrid) {
  const json grid = golden("batch_grid.json");
  const json& rows = grid.at("rows");
  EXPECT_EQ(rows.size(), 1890U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].dump());
    expect_golden(complete(rows[i]), rows[i][4]);
    if (i % 13 == 0) expect_golden(configure(rows[i]), rows[i][4]);
  }
}

/// Where we refuse by design what DeepSpeed's configuration object let through, and why.
const std::map<std::string, std::string> stricter = {
    {"unknown_top_key", "the guide: unknown keys are rejected, its example is a top-level one"},
    {"flops_profiler_unknown", "the guide: unknown keys are rejected"},
    {"aio_unknown", "the guide: unknown keys are rejected"},
    {"timers_unknown", "the guide: unknown keys are rejected"},
    {"aio_str", "the guide: sections are strictly validated"},
    {"optimizer_max_grad_norm", "the guide quotes the error; DeepSpeed's engine raises it a little later"},
    {"optimizer_unknown_type", "DeepSpeed's engine refuses it a little later, with the same words"},
    {"scheduler_unknown", "DeepSpeed's engine refuses it a little later, with the same words"},
    {"gradient_clipping_str", "DeepSpeed's engine fails with it later, as a comparison of string and number"},
    {"gradient_clipping_neg", "a negative norm bound fails in DeepSpeed's engine or turns the gradient around"},
    {"offload_nvme_nopath", "without a folder there is nowhere to swap to; DeepSpeed fails when it builds the model"},
    {"zero_elastic_checkpoint", "the guide quotes the error; DeepSpeed warns, and raises it at the first checkpoint"},
};

/// Features that 0.19.8 no longer has and that the guide still lists: read here, and refused by check_supported()
/// until they are built.
const std::map<std::string, std::string> removed = {
    {"mics", "zero_optimization.mics_shard_size"},
    {"amp_enabled", "amp.enabled"},
    {"sparse_attention", "sparse_attention"},
    {"quantize_training", "quantize_training.enabled"},
    {"curriculum_legacy", "curriculum_learning.enabled"},
    {"nebula", "nebula.enabled"},
};

/// Read and refused like in 0.19.8, with other words than its "has been removed".
const std::map<std::string, std::string> other_words = {
    {"sparse_attention_bad", "Given sparsity mode, nope, has not been implemented yet!"},
    {"eigenvalue", "Eigenvalue based MoQ is temporarily disabled"},
    {"progressive_layer_drop", "progressive_layer_drop.gamma: Field required"},
    {"elasticity_on", "One or more batch related parameters were found in your ds_config"},
    {"train_batch_str", "train_batch_size: Input should be a valid integer, unable to parse string as an integer"},
    {"train_batch_auto", "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"},
    {"zero_int", "zero_optimization: must be a mapping (an object of keys), not 2"},
    {"zero_list", "zero_optimization: must be a mapping (an object of keys), not [1]"},
    {"fp16_bool", "fp16: must be a mapping (an object of keys), not true"},
    {"json_array", "the configuration must be an object of keys, not [1,2]"},
    {"broken_json", "ds.json, line 1, column 23: syntax error while parsing object"},
    {"flops_profiler_str", "flops_profiler.enabled: Input should be a valid boolean"},
    {"train_batch_null", "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"},
    // The stages are 0 to 3; DeepSpeed's list names 3 once more for its alias "weights".
    {"stage_5", "zero_optimization.stage: Input should be 0, 1, 2 or 3"},
    {"stage_neg", "zero_optimization.stage: Input should be 0, 1, 2 or 3"},
    {"stage_str_bad", "zero_optimization.stage: Input should be 0, 1, 2 or 3"},
    {"stage_float_bad",
     "zero_optimization.stage: Input should be a valid integer, got a number with a fractional part"},
    // Elastic training takes the batch from its own section; without the solver there is no batch.
    {"elasticity_on_no_batch", "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"},
};

TEST(Golden, Snippets) {
  std::size_t differences = 0;
  const json recorded = golden("snippets.json");
  for (const json& snippet : recorded.at("snippets")) {
    const std::string name = snippet.at("name");
    SCOPED_TRACE(name);
    const std::string text =
        snippet.contains("text") ? snippet["text"].get<std::string>() : snippet.at("config").dump();
    const int world = snippet.value("world_size", 1);
    const std::string message = refusal(text, world);
    if (stricter.count(name) != 0) {
      ++differences;
      EXPECT_TRUE(snippet.at("ok").get<bool>());
      EXPECT_NE(message, "");
    } else if (removed.count(name) != 0) {
      ++differences;
      EXPECT_FALSE(snippet.at("ok").get<bool>());
      EXPECT_EQ(message, "");
      EXPECT_THAT(unsupported(text), HasSubstr(removed.at(name) + ": "));
    } else if (name == "elasticity_ignore_batch") {
      // As `removed`; the batch is that of the batch keys until the solver chooses it.
      ++differences;
      EXPECT_EQ(message, "");
      EXPECT_THAT(unsupported(text), HasSubstr("elasticity.enabled: "));
    } else if (name == "compression" || name == "sparse_gradients") {
      // 0.19.8 refuses the compression section's presence; everything in it is off here, so nothing is ignored. It no
      // longer has sparse_gradients, which the guide still lists.
      ++differences;
      EXPECT_EQ(message, "");
      EXPECT_EQ(unsupported(text), "");
    } else if (other_words.count(name) != 0) {
      EXPECT_FALSE(snippet.at("ok").get<bool>());
      EXPECT_THAT(message, HasSubstr(other_words.at(name)));
    } else if (snippet.at("ok").get<bool>()) {
      ASSERT_EQ(message, "");
      const Config config = parse(text, world);
      EXPECT_EQ(config.get<std::int64_t>("train_batch_size"), snippet["resolved"][0].get<std::int64_t>());
      EXPECT_EQ(config.get<std::int64_t>("train_micro_batch_size_per_gpu"), snippet["resolved"][1].get<std::int64_t>());
      EXPECT_EQ(config.get<std::int64_t>("gradient_accumulation_steps"), snippet["resolved"][2].get<std::int64_t>());
      for (const json& warning : snippet.value("warnings", json::array())) {
        std::string wanted = warning;
        if (name == "gather_fp16_alias")
          wanted = "Config parameter stage3_gather_fp16_weights_on_model_save is deprecated";
        EXPECT_THAT(config.warnings(),
                    testing::Contains(HasSubstr(wanted.substr(0, wanted.find_last_not_of(" :") + 1))));
      }
    } else {
      for (const json& error : snippet.at("errors")) {
        std::string place = error[0];
        EXPECT_THAT(message, HasSubstr(place)) << "the key's name";
        EXPECT_THAT(message, HasSubstr(error[1].get<std::string>()));
      }
    }
  }
  EXPECT_EQ(differences, stricter.size() + removed.size() + 3);
}

/// Where DeepSpeed's object keeps a key under another name than the configuration file has.
const std::map<std::string, std::string> renamed = {
    {"activation_checkpointing_config", "activation_checkpointing"},
    {"aio_config", "aio"},
    {"autotuning_config", "autotuning"},
    {"bfloat16_config", "bf16"},
    {"buffer_dtype", "data_types.buffer_dtype"},
    {"checkpoint_config", "checkpoint"},
    {"checkpoint_parallel_write_pipeline", "checkpoint.parallel_write.pipeline_stage"},
    {"comms_config.comms_logger_enabled", "comms_logger.enabled"},
    {"compile_config", "compile"},
    {"data_efficiency_config", "data_efficiency"},
    {"data_efficiency_enabled", "data_efficiency.enabled"},
    {"float16_config", "fp16"},
    {"flops_profiler_config", "flops_profiler"},
    {"grad_accum_dtype", "data_types.grad_accum_dtype"},
    {"keep_in_fp32_modules", "data_types.keep_in_fp32_modules"},
    {"load_universal_checkpoint", "checkpoint.load_universal"},
    {"monitor_config.comet", "comet"},
    {"monitor_config.csv_monitor", "csv_monitor"},
    {"monitor_config.tensorboard", "tensorboard"},
    {"monitor_config.wandb", "wandb"},
    {"optimizer_name", "optimizer.type"},
    {"optimizer_params", "optimizer.params"},
    {"scheduler_name", "scheduler.type"},
    {"scheduler_params", "scheduler.params"},
    {"param_dtype", "data_types.param_dtype"},
    {"tensor_parallel_config", "tensor_parallel"},
    {"tensor_parallel_config.tensor_parallel", "tensor_parallel.tp"},
    {"timers_config", "timers.throughput"},
    {"torch_autocast_dtype", "torch_autocast.dtype"},
    {"torch_autocast_enabled", "torch_autocast.enabled"},
    {"torch_autocast_lower_precision_safe_modules", "torch_autocast.lower_precision_safe_modules"},
    {"use_data_before_expert_parallel_", "use_data_before_expert_parallelism"},
    {"use_node_local_storage", "checkpoint.use_node_local_storage"},
    {"zero_config", "zero_optimization"},
    {"zero_optimization_stage", "zero_optimization.stage"},
};

/// Attributes that stand for no key of a configuration file, or whose default we chose on purpose.
const std::map<std::string, std::string> not_keys = {
    {"autotuning_config.start_step", "internal: the tuner's own"},
    {"autotuning_config.end_step", "internal: the tuner's own"},
    {"checkpoint_tag_validation_enabled", "derived from checkpoint.tag_validation"},
    {"checkpoint_tag_validation_fail", "derived from checkpoint.tag_validation"},
    {"datastates_config", "derived from datastates_ckpt"},
    {"expert_parallel_config", "printed as a Python object"},
    {"global_rank", "the run, not the configuration"},
    {"world_size", "the run, not the configuration"},
    {"optimizer_legacy_fusion", "optimizer.legacy_fusion where there is an optimizer"},
    {"seq_parallel_communication_data_type", "printed as torch.float32; fp32 here"},
    {"tensor_parallel_config.dtype", "printed as torch.float16; fp16 here"},
    {"weight_quantization_config", "an empty section here"},
    {"zero_config.cpu_offload", "a deprecated name, gone after reading"},
    {"zero_config.cpu_offload_param", "a deprecated name, gone after reading"},
    {"zero_config.cpu_offload_use_pin_memory", "a deprecated name, gone after reading"},
    {"zero_config.stage3_gather_fp16_weights_on_model_save", "a deprecated name, gone after reading"},
    {"zero_enabled", "derived from zero_optimization.stage"},
};

/// Compares each leaf of DeepSpeed's object with ours; counts them.
int compare(const Config& config, const json& theirs, const std::string& attribute, const std::string& path) {
  if (attribute == "_zero_config_stage3" || not_keys.count(attribute) != 0) return 0;
  if (theirs.is_object() && !theirs.empty()) {
    int count = 0;
    for (const auto& [name, value] : theirs.items()) {
      const std::string below = attribute.empty() ? name : attribute + "." + name;
      const auto other = renamed.find(below);
      std::string key = other != renamed.end() ? other->second : path.empty() ? name : path + "." + name;
      count += compare(config, value, below, key);
    }
    return count;
  }
  SCOPED_TRACE(attribute);
  std::string key = path;
  // Fields of the zero section whose file name has stage3_ before it.
  try {
    config.find<json>(key);
  } catch (const std::logic_error&) {
    ADD_FAILURE() << key << " isn't declared";
    return 0;
  }
  static const std::vector<std::string> stage3 = {"prefetch_bucket_size",         "param_persistence_threshold",
                                                  "model_persistence_threshold",  "max_live_parameters",
                                                  "max_reuse_distance",           "gather_16bit_weights_on_model_save",
                                                  "module_granularity_threshold", "use_all_reduce_for_fetch_params",
                                                  "allgather_sequential"};
  const std::size_t dot = key.rfind('.');
  if (key.rfind("zero_optimization.", 0) == 0 &&
      std::find(stage3.begin(), stage3.end(), key.substr(dot + 1)) != stage3.end())
    key = "zero_optimization.stage3_" + key.substr(dot + 1);
  EXPECT_EQ(config.find<json>(key).value_or(json()), theirs) << key;
  return 1;
}

TEST(Golden, Defaults) {
  const json theirs = golden("defaults.json").at("defaults");
  const Config config = parse(R"({"train_batch_size": 8})");
  EXPECT_EQ(compare(config, theirs, "", ""), 216);
  const Config stage3 = parse(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3}})");
  EXPECT_EQ(compare(stage3, theirs.at("_zero_config_stage3"), "zero_config", "zero_optimization"), 41);
}

}  // namespace
}  // namespace deepspeed::config
