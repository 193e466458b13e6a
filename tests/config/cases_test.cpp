// SPDX-License-Identifier: Apache-2.0
// Failure kinds that users of DeepSpeed have met (C01, C02), the sources, names, "auto", --set and the reference texts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "base/dtype.h"
#include "config/keys.h"
#include "config/reader.h"
#include "config/reference.h"
#include "config/support.h"

namespace deepspeed::config {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// ---- C01 ----

TEST(C01, DerivesTheMissingOnTwoRanks) {
  const std::vector<std::tuple<const char*, int, int, int>> rows = {
      {R"({"train_batch_size":16})", 8, 1, 16},
      {R"({"train_micro_batch_size_per_gpu":4})", 4, 1, 8},
      {R"({"train_batch_size":16,"gradient_accumulation_steps":4})", 2, 4, 16},
      {R"({"train_batch_size":16,"train_micro_batch_size_per_gpu":2})", 2, 4, 16},
      {R"({"train_micro_batch_size_per_gpu":4,"gradient_accumulation_steps":8})", 4, 8, 64}};
  for (const auto& [text, micro, accumulation, train] : rows) {
    const Config config = parse(text, 2);
    EXPECT_EQ(config.get<std::int64_t>("train_micro_batch_size_per_gpu"), micro) << text;
    EXPECT_EQ(config.get<std::int64_t>("gradient_accumulation_steps"), accumulation) << text;
    EXPECT_EQ(config.get<std::int64_t>("train_batch_size"), train) << text;
  }
}

TEST(C01, RefusesWhatCannotHold) {
  EXPECT_THAT(refusal(R"({"train_batch_size":9})", 2),
              AllOf(HasSubstr("train_batch_size"), HasSubstr("9 != 4 * 1 * 2")));
  EXPECT_THAT(refusal(R"({"train_batch_size":16,"train_micro_batch_size_per_gpu":3})", 2),
              HasSubstr("16 != 3 * 2 * 2"));
  EXPECT_THAT(
      refusal(R"({"train_batch_size":16,"train_micro_batch_size_per_gpu":4,"gradient_accumulation_steps":4})", 2),
      HasSubstr("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
                "gradient_acc_step * world_size 16 != 4 * 4 * 2"));
  for (const char* text : {R"({"gradient_accumulation_steps":4})", "{}"})
    EXPECT_THAT(refusal(text, 2),
                HasSubstr("Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"));
  for (const std::string key : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
    for (const std::string value : {"0", "-4", "2.5"}) {
      json config = {{"train_batch_size", 16}};
      config[key] = json::parse(value);
      EXPECT_THAT(refusal(config.dump(), 2), HasSubstr(key + ": ")) << key << "=" << value;
    }
}

TEST(C01, HugeNumbersDontWrap) {
  EXPECT_THAT(
      refusal(R"({"train_micro_batch_size_per_gpu": 4611686018427387904, "gradient_accumulation_steps": 4})", 2),
      HasSubstr("doesn't fit in 64 bits"));
}

// ---- C02 ----

TEST(C02, ScientificNotationAutoAndWrongSections) {
  const Config a = parse(with(R"("zero_optimization":{"stage":2,"reduce_bucket_size":5e8})"));
  EXPECT_EQ(a.get<std::int64_t>("zero_optimization.reduce_bucket_size"), 500000000);
  EXPECT_TRUE(a.resolved().at("zero_optimization").at("reduce_bucket_size").is_number_integer());

  EXPECT_THAT(
      refusal(with(R"("zero_optimization":{"stage":3,"stage3_prefetch_bucket_size":15099494.4})")),
      AllOf(HasSubstr("zero_optimization.stage3_prefetch_bucket_size"), HasSubstr("15099494.4"), HasSubstr("integer")));
  EXPECT_THAT(refusal(with(R"("zero_optimization":{"stage":2,"reduce_bucket_size":"5e8"})")),
              AllOf(HasSubstr("zero_optimization.reduce_bucket_size"), HasSubstr("\"5e8\""), HasSubstr("wants integer"),
                    HasSubstr("numbers stand without quotes")));
  EXPECT_THAT(refusal(with(R"("gradient_clipping":"auto")")),
              AllOf(HasSubstr("gradient_clipping: \"auto\""), HasSubstr("write number")));
  EXPECT_THAT(refusal(with(R"("zero_optimization":{"stage":3,"aio":{"block_size":1048576}})")),
              AllOf(HasSubstr("zero_optimization.aio: unknown key"), HasSubstr("aio belongs at the top level")));
  EXPECT_THAT(
      refusal(R"({"train_batch_size": 8, "micro_batch_per_gpu":4})"),
      AllOf(HasSubstr("micro_batch_per_gpu: unknown key"), HasSubstr("did you mean train_micro_batch_size_per_gpu?")));
  EXPECT_THAT(refusal("{\"train_batch_size\": 8,\n\"steps_per_print\":10,\n\"steps_per_print\":20}"),
              HasSubstr("Duplicate keys in DeepSpeed config: ['steps_per_print']"));
}

// ---- reading ----

TEST(Reading, AllErrorsAreToldWithTheirLines) {
  const std::string message =
      refusal("{\n\"train_batch_size\": 8,\n\"bf16\": {\n\"enable\": true},\n\"steps_per_print\": 0}");
  EXPECT_THAT(message, HasSubstr("2 errors"));
  EXPECT_THAT(
      message,
      HasSubstr("ds.json:4: bf16.enable: unknown key (Extra inputs are not permitted); did you mean bf16.enabled?"));
  EXPECT_THAT(message, HasSubstr("ds.json:5: steps_per_print: Input should be greater than 0, got 0"));
}

TEST(Reading, DuplicatesAtEveryDepthAndInHjson) {
  EXPECT_THAT(refusal(with(R"("model": {"type": "gpt2", "rope": {"a": 1, "b": [{"c": 1, "c": 2}]}})")),
              HasSubstr("model.rope.b[0].c"));
  EXPECT_THAT(refusal("train_batch_size: 8\ntrain_batch_size: 9"), HasSubstr("['train_batch_size']"));
  EXPECT_THAT(refusal(with(R"("bf16": {"enabled": true}, "bfloat16": {"enabled": true})")), HasSubstr("given twice"));
}

TEST(Reading, Hjson) {
  const json value = read_document(R"(# comment
    // another
    a: 1, b: 2.5   /* and
    another */
    c: text up to the line's end, commas and } included
    'd': "quoted # no comment"
    e: [1, two
        3,]
    f: {g: null, h: true,}
    i:
      '''
      first
        second
      '''
    j: 5e8 # five
    k: it's
  )",
                                   "x")
                         .value;
  EXPECT_EQ(value, json::parse(R"({"a": 1, "b": 2.5, "c": "text up to the line's end, commas and } included",
    "d": "quoted # no comment", "e": [1, "two", 3], "f": {"g": null, "h": true}, "i": "first\n  second", "j": 5e8,
    "k": "it's"})"));
}

TEST(Reading, SyntaxErrorsAreJsonsWithTheirPlace) {
  for (const auto& [text, place] :
       std::vector<std::pair<std::string, std::string>>{{"{\n  \"a\": 8,\n  \"b\": }", "line 3, column 8"},
                                                        {"{\"a\": [1, 2", "line 1, column 12"},
                                                        {"[1}", "line 1, column 3"}}) {
    try {
      read_document(text, "x");
      ADD_FAILURE() << text;
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(place), HasSubstr("syntax error"))) << text;
    }
  }
}

TEST(Reading, LimitsAndMarks) {
  EXPECT_EQ(read_document("", "x").value, json::object());
  EXPECT_EQ(read_document("\xEF\xBB\xBF{\"a\": 1}", "x").value, json::parse(R"({"a": 1})"));
  EXPECT_EQ(read_document("9223372036854775807", "x").value, INT64_MAX);
  const auto refused = [](const std::string& text) -> std::string {
    try {
      read_document(text, "x");
    } catch (const base::ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused("{\"a\": {\"b\": 9223372036854775808}}"),
              HasSubstr("a.b: the integer 9223372036854775808 doesn't fit"));
  EXPECT_THAT(refused("{\"a\": -99999999999999999999}"), HasSubstr("doesn't fit in 64 bits"));
  EXPECT_THAT(refused("{\"a\": 1e999}"), Not(""));
  EXPECT_THAT(refused(std::string(100000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(refused(std::string(max_text_bytes + 1, ' ')), HasSubstr("larger than"));
  EXPECT_THAT(refused("{\"a\": \"\xFF\"}"), Not(""));
  for (const char* word : {"NaN", "Infinity", "-Infinity"})
    EXPECT_THAT(refusal(with(fmt::format("\"gradient_clipping\": {}\n", word))),
                HasSubstr("gradient_clipping: wants number"))
        << word;
}

TEST(Reading, Sources) {
  const std::string path = testing::TempDir() + "ds_config_source.json";
  std::ofstream(path) << R"({"train_batch_size": 12})";
  const auto train = [](const std::string& source) {
    return Config::load(source, {}, Facts{}).get<std::int64_t>("train_batch_size");
  };
  EXPECT_EQ(train(path), 12);
  std::remove(path.c_str());
  EXPECT_EQ(train(R"({"train_batch_size": 13})"), 13);
  EXPECT_EQ(train("train_batch_size: 14"), 14);
  EXPECT_EQ(train("eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="), 8);
  EXPECT_EQ(train("eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0"), 8);  // unpadded
  // {"train_batch_size": 8, "log_level": null} with a comment of ?>~ in it, whose base64 differs between the alphabets
  EXPECT_EQ(train("eyJ0cmFpbl9iYXRjaF9zaXplIjogOCwgIndhbmRiIjogeyJncm91cCI6ICI_Pn4_In19"), 8);
  EXPECT_EQ(train("eyJ0cmFpbl9iYXRjaF9zaXplIjogOCwgIndhbmRiIjogeyJncm91cCI6ICI/Pn4/In19"), 8);
  for (const char* source : {"does_not_exist.json", "no/such/file", "abcd"}) try {
      Config::load(source, {}, Facts{});
      ADD_FAILURE() << source;
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("Expected a string path to an existing deepspeed config, or a dictionary or a valid "
                            "base64. Received: " +
                            std::string(source)));
    }
  EXPECT_THROW(Config::load(testing::TempDir(), {}, Facts{}), base::ConfigError);
}

// ---- names ----

TEST(Names, DeprecatedOnesWarnAndMap) {
  const Config config = parse(with(R"("zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_param": true,
      "stage3_gather_fp16_weights_on_model_save": true, "prefetch_bucket_size": 7})"));
  EXPECT_EQ(config.get<std::string>("zero_optimization.offload_optimizer.device"), "cpu");
  EXPECT_EQ(config.get<std::string>("zero_optimization.offload_param.device"), "cpu");
  EXPECT_TRUE(config.get<bool>("zero_optimization.stage3_gather_16bit_weights_on_model_save"));
  EXPECT_EQ(config.get<std::int64_t>("zero_optimization.stage3_prefetch_bucket_size"), 7);
  EXPECT_THAT(config.warnings(),
              Contains(HasSubstr("Config parameter cpu_offload is deprecated use offload_optimizer instead")));
  EXPECT_THAT(refusal(with(R"("zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true,
                             "stage3_gather_16bit_weights_on_model_save": true})")),
              HasSubstr("Cannot provide deprecated parameter"));
  EXPECT_EQ(parse(with(R"("inference": {"mp_size": 2})")).get<std::int64_t>("inference.tensor_parallel.tp_size"), 2);
}

TEST(Names, ParametersOfAnotherTypeAreRefused) {
  EXPECT_THAT(refusal(with(R"("optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}})")),
              HasSubstr("optimizer.params.betas: SGD doesn't know this key"));
  EXPECT_THAT(refusal(with(R"("scheduler": {"type": "WarmupDecayLR", "params": {}})")),
              HasSubstr("scheduler.params.total_num_steps: Field required"));
  const Config adam = parse(with(R"("optimizer": {"type": "adamw"}, "scheduler": {"type": "WarmupLR"})"));
  EXPECT_EQ(adam.get<std::string>("optimizer.type"), "AdamW");
  EXPECT_EQ(adam.find<double>("optimizer.params.momentum"), std::nullopt);
  EXPECT_EQ(adam.find<double>("scheduler.params.warmup_max_lr"), std::nullopt);
  EXPECT_EQ(parse(with(R"("optimizer": {"type": "Adam", "params": {"torch_adam": true}})"))
                .get<double>("optimizer.params.weight_decay"),
            0.01);
  EXPECT_EQ(parse(with(R"("optimizer": {"type": "Muon"})")).get<double>("optimizer.params.lr"), 0.02);
  // torch's own: the keys are theirs, and the type is refused by check_supported().
  EXPECT_THAT(unsupported(with(R"("optimizer": {"type": "RMSprop", "params": {"alpha": 0.9}})")),
              HasSubstr("optimizer.type"));
  EXPECT_THAT(refusal(with(R"("optimizer": {"type": "Adan"})")),
              HasSubstr("Adan is not a supported DeepSpeed Optimizer; did you mean Adam?"));
}

TEST(Names, WarmupOfZeroStepsIsRefusedInAllThree) {
  for (const char* type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
    EXPECT_THAT(
        refusal(with(fmt::format(
            R"("scheduler": {{"type": "{}", "params": {{"warmup_num_steps": 0, "total_num_steps": 10}}}})", type))),
        HasSubstr("warmup_num_steps must be a positive integer, got 0"))
        << type;
}

// ---- "auto" ----

TEST(Auto, IsResolvedWhereSomethingGivesIt) {
  const Config config = parse(R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
    "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
    "model": {"type": "llama", "hidden_size": 100, "torch_dtype": "bfloat16"}, "training": {"steps": 77},
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto", "warmup_min_lr": "auto",
                                                       "total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                          "stage3_param_persistence_threshold": "auto", "sub_group_size": "auto"}})",
                              4);
  EXPECT_EQ(config.get<std::int64_t>("train_batch_size"), 8);
  EXPECT_FALSE(config.get<bool>("fp16.enabled"));
  EXPECT_TRUE(config.get<bool>("bf16.enabled"));
  EXPECT_EQ(config.get<double>("scheduler.params.warmup_max_lr"), 5e-5);
  EXPECT_EQ(config.get<double>("scheduler.params.warmup_min_lr"), 0.0);
  EXPECT_EQ(config.get<std::int64_t>("scheduler.params.total_num_steps"), 77);
  EXPECT_EQ(config.get<std::int64_t>("zero_optimization.reduce_bucket_size"), 10000);
  EXPECT_EQ(config.get<std::int64_t>("zero_optimization.stage3_prefetch_bucket_size"), 9000);
  EXPECT_EQ(config.get<std::int64_t>("zero_optimization.stage3_param_persistence_threshold"), 1000);
  EXPECT_EQ(config.get<std::int64_t>("zero_optimization.sub_group_size"), 1000000000);
}

TEST(Auto, IsRefusedByNameElsewhere) {
  EXPECT_THAT(refusal(with(R"("optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1}})")),
              HasSubstr("optimizer.params.lr: \"auto\" can't be resolved"));
  EXPECT_THAT(refusal(with(R"("optimizer": {"type": "AdamW", "params": {"weight_decay": "auto"}})")),
              HasSubstr("optimizer.params.weight_decay: \"auto\" can't be resolved"));
  EXPECT_THAT(refusal(with(R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}})")),
              HasSubstr("training.steps doesn't give it"));
  EXPECT_THAT(refusal(with(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}})")),
              HasSubstr("scheduler.params.warmup_num_steps: \"auto\""));
}

// ---- --set ----

TEST(Set, OverridesBeforeTheChecks) {
  const std::string text = R"({"train_batch_size": 8, "bfloat16": {"enabled": true}, "model": {"type": "gpt2"}})";
  const Config config =
      parse(text, 1,
            {"train_batch_size=16", "bf16.enabled=false", "training.output=runs/a b", "model.n_layer=3",
             "optimizer.type=AdamW", "optimizer.params.betas=[0.5, 0.6]", "data.train=[\"a\",\"b\"]"});
  EXPECT_EQ(config.get<std::int64_t>("train_batch_size"), 16);
  EXPECT_FALSE(config.get<bool>("bf16.enabled"));
  EXPECT_EQ(config.get<std::string>("training.output"), "runs/a b");
  EXPECT_EQ(config.resolved().at("model").at("n_layer"), 3);
  EXPECT_EQ(config.get<std::vector<double>>("optimizer.params.betas"), (std::vector<double>{0.5, 0.6}));
  EXPECT_EQ(config.get<std::vector<std::string>>("data.train"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(config.given("optimizer.params.betas"));
  EXPECT_THAT(refusal(text, 1, {"zero_optimization.stag=1"}),
              HasSubstr("--set zero_optimization.stag: unknown key; did you mean"));
  EXPECT_THAT(refusal(text, 1, {"train_batch_size"}), HasSubstr("wants path=value"));
  EXPECT_THAT(refusal(text, 1, {"train_batch_size.x=1"}), HasSubstr("--set train_batch_size.x: unknown key"));
  EXPECT_THAT(refusal(text, 1, {"steps_per_print=0"}),
              HasSubstr("--set: steps_per_print: Input should be greater than 0"));
}

// ---- conflicts ----

TEST(Conflicts, SayDeepSpeedsWords) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {R"("gradient_predivide_factor": 2, "zero_optimization": {"stage": 2})",
       "gradient_predivide_factor != 1.0 is not yet supported with ZeRO-2 with reduce scatter enabled"},
      {R"("prescale_gradients": true, "zero_optimization": {"stage": 1})",
       "pre-scale gradients is not yet supported with ZeRO-1"},
      {R"("zero_optimization": {"stage": 2, "allgather_bucket_size": 3})",
       "allgather_bucket_size must be a multiple of nccl_start_alignment_factor, 2"},
      {R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}})",
       "Partial offloading only supported for ZeRO Stage 3."},
      {R"("zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}})", "only offloaded with ZeRO stage 3"},
      {R"("zero_optimization": {"stage": 2, "zenflow": {}})", "Zenflow must be used with cpu offload"},
      {R"("zero_optimization": {"legacy_stage1": true})", "The deprecated version of ZeRO Stage 1 is not supported"},
      {R"("zero_optimization": {"stage": 3}, "optimizer": {"type": "Muon"})",
       "Muon and reduce scatter cannot be used together"},
      {R"("fp16": {"enabled": true, "loss_scale_window": 0})",
       "fp16.loss_scale_window must be > 0 when dynamic loss scaling is enabled (loss_scale=0)"},
      {R"("fp16": {"loss_scale": true})", "fp16.loss_scale must be a number, not bool"},
      {R"("bf16": {"enabled": true}, "data_types": {"param_dtype": "fp16"})",
       "conflicts with the enabled precision mode"},
      {R"("data_types": {"grad_accum_dtype": "int7"})", "'int7' is not a valid DtypeEnum"},
      {R"("activation_checkpointing": {"contiguous_memory_optimization": true})",
       "Contiguous Checkpointing is only available with partitioned activations."},
      {R"("torch_autocast": {"enabled": true}, "zero_optimization": {"stage": 3, "zero_quantized_weights": true})",
       "Cannot enable both torch autocast and zero quantized weights"},
      {R"("amp": {"enabled": true}, "bf16": {"enabled": true})",
       "Cannot enable both amp with (legacy) fp16 or bfloat16 mode"},
      {R"("sequence_parallel_size": 2)", "world_size (1) is not divisible by sequence_parallel_size 2"},
      {R"("tensor_parallel": {"autotp_size": 4, "tp": {"tp_size": 2}})",
       "tensor_parallel.tp.tp_size (2) does not match tensor_parallel.autotp_size (4)."},
      {R"("curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 64,
           "schedule_type": "fixed_root", "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8}})",
       "Curriculum learning with fixed_root schedule requires the schedule_config 'root_degree'"},
      {R"("optimizer": {"type": "Adam", "params": {"amsgrad": true}})",
       "FusedAdam does not support the AMSGrad variant."},
      {R"("zero_optimization": {"leaf_module": []})",
       "leaf_module configuration must be a mapping of fields to values"},
      {R"("model": {"path": "a", "type": "gpt2"})", "a model has either a path or a type"},
      {R"("training": {"profile": [4, 2]})", "training.profile: wants two steps, [first, last], got [4,2]"},
      {R"("training": {"profile": [2]})", "training.profile: wants two steps, [first, last], got [2]"},
      {R"("training": {"time_limit": "1:2"})", "wants seconds or \"HH:MM:SS\""},
  };
  for (const auto& [members, words] : rows) EXPECT_THAT(refusal(with(members)), HasSubstr(words)) << members;
}

TEST(Conflicts, Fp16NeedsAnAccelerator) {
  Facts facts;
  for (const auto& [stage, words] : std::vector<std::pair<int, const char*>>{
           {0, "Cannot use fp16 without accelerator."},
           {2, "Accelerator is not detected, cannot perform low precision training"},
           {3, "Cannot use fp16 without accelerator."}}) {
    const Config config =
        parse(with(fmt::format(R"("fp16": {{"enabled": true}}, "zero_optimization": {{"stage": {}}})", stage)));
    try {
      check_accelerator(config, facts);
      ADD_FAILURE();
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
  EXPECT_NO_THROW(check_accelerator(parse(with(R"("bf16": {"enabled": true})")), facts));
}

// ---- what is off isn't refused, what is on is ----

TEST(Supported, EveryUnsupportedSwitchIsRefusedByName) {
  for (const auto& child : table().children) {
    const Key* key = child->row();
    if (key == nullptr || key->gate.empty() || key->status != Status::unsupported) continue;
    json config = {{"train_batch_size", 8}};
    config[child->name][key->gate] = child->exact(key->gate)->row()->kinds & boolean ? json(true) : json(2);
    const std::string refused = refusal(config.dump());
    EXPECT_THAT(refused.empty() ? unsupported(config.dump()) : refused, HasSubstr(child->name)) << config.dump();
    config[child->name][key->gate] = child->exact(key->gate)->row()->fallback;
    EXPECT_EQ(unsupported(config.dump()), "") << config.dump();
  }
  EXPECT_EQ(
      unsupported(with(R"("zero_optimization": {"offload_optimizer": {"device": "none"}}, "aio": {"queue_depth": 4},
                                "flops_profiler": {"enabled": false, "profile_step": 3}, "datastates_ckpt": false,
                                "sequence_parallel_size": 1, "tensor_parallel": {"autotp_size": 1})")),
      "");
  EXPECT_THAT(unsupported(with(R"("training": {"deterministic": false})")), HasSubstr("training.deterministic: false"));
  EXPECT_EQ(unsupported(with(R"("training": {"deterministic": true})")), "");
  EXPECT_THAT(unsupported(with(R"("graph_harvesting": true, "zero_optimization": {"zero_hpz_partition_size": 2})")),
              AllOf(HasSubstr("graph_harvesting: true"), HasSubstr("zero_hpz_partition_size: 2")));
}

// ---- the table ----

TEST(Table, RowsAreSound) {
  int keys = 0;
  for_each(table(), [&](const Node& node) {
    for (const Key& key : node.rows) {
      ++keys;
      EXPECT_NE(key.kinds, 0U) << key.path;
      EXPECT_EQ(key.doc.find('|'), std::string::npos) << key.path;
      EXPECT_TRUE(!key.doc.empty() && key.doc.back() == '.') << key.path << ": " << key.doc;
      for (const std::string& one : key.later) {
        const bool declared = std::find(key.choices.begin(), key.choices.end(), one) != key.choices.end();
        EXPECT_TRUE(declared || (key.kinds & boolean) != 0) << key.path;
      }
      if (!key.gate.empty()) {
        ASSERT_NE(node.exact(key.gate), nullptr) << key.path;
      }
      if (!key.replaced_by.empty() && key.replaced_by != "-") {
        EXPECT_NE(find_node(node.parent->path + "." + key.replaced_by), nullptr) << key.path;
      }
    }
    for (const auto& child : node.children)
      if (child->name != "*" && child->name != "[]") {
        EXPECT_EQ(node.exact(child->name), child.get()) << child->path << ": its name is another key's other name";
      }
  });
  EXPECT_GT(keys, 480);
}

TEST(Table, EveryDefaultObeysItsOwnRow) {
  // Writing every default out is a configuration with the same meaning; so each default passes its own check.
  for (const char* text :
       {R"({"train_batch_size": 8})",
        R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR"},
                              "inference": {}, "inference_v2": {}, "compression_training": {}, "sparse_attention": {},
                              "checkpoint": {"writer": {}}, "autotuning": {"model_info": {}},
                              "tensor_parallel": {"partition_config": {"layer_specs": [{"patterns": ["a"]}]}},
                              "zero_optimization": {"stage": 3, "offload_param": {},
                                "offload_optimizer": {"device": "cpu"}, "zenflow": {}}})",
        R"({"train_batch_size": 8, "optimizer": {"type": "OneBitLamb"}, "scheduler": {"type": "LRRangeTest"}})",
        R"({"train_batch_size": 8, "optimizer": {"type": "Muon"}, "scheduler": {"type": "OneCycle",
                              "params": {"cycle_min_lr": 0.1, "cycle_max_lr": [0.2]}}})",
        R"({"train_batch_size": 8, "optimizer": {"type": "ZeroOneAdam"}, "scheduler": {"type":
                              "WarmupCosineLR", "params": {"total_num_steps": 2000}}})"}) {
    const Config config = parse(text);
    EXPECT_EQ(refusal(config.text()), "") << text;
    EXPECT_EQ(parse(config.text()).resolved(), config.resolved()) << text;
    EXPECT_EQ(config.warnings(), std::vector<std::string>{}) << text;
  }
}

TEST(Table, NearestNames) {
  EXPECT_EQ(nearest("stgae", {"stage", "storage"}).front(), "stage");
  EXPECT_EQ(nearest("xyzzy", {"stage", "storage"}), std::vector<std::string>{});
  EXPECT_THAT(hint(*find_node("fp16"), "block_size", ""), HasSubstr("aio.block_size"));
}

TEST(Table, GetRefusesWhatIsntDeclared) {
  const Config config = parse(R"({"train_batch_size": 8})");
  EXPECT_THROW(config.get<bool>("no.such"), std::logic_error);
  EXPECT_THROW(config.get<bool>("train_batch_size"), std::logic_error);
  EXPECT_THROW(config.get<std::int64_t>("training.steps"), std::logic_error);
  EXPECT_THROW(config.given("no.such"), std::logic_error);
}

TEST(Ready, ShippedConfigurationsAreGood) {
  const std::filesystem::path folder = std::filesystem::path(DS_SOURCE_DIR) / "share/configs";
  ASSERT_TRUE(std::filesystem::exists(folder)) << folder;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".json" && file.path().extension() != ".hjson") continue;
    Facts facts;
    facts.world_size = 2;
    EXPECT_NO_THROW(check_supported(Config::load(file.path().string(), {}, facts))) << file.path();
  }
}

// ---- texts ----

TEST(Reference, PageIsUpToDate) {
  const std::string path = std::string(DS_SOURCE_DIR) + "/docs/config.md";
  if (std::getenv("DS_UPDATE_DOCS") != nullptr) std::ofstream(path, std::ios::binary) << reference_page();
  EXPECT_EQ(read_file(path), reference_page()) << "rewrite it: DS_UPDATE_DOCS=1 config_test";
}

TEST(Reference, HelpOfAllOneSectionOneKey) {
  EXPECT_THAT(help(std::nullopt), AllOf(HasSubstr("zero_optimization"), HasSubstr("train_batch_size")));
  EXPECT_THAT(help("zero_optimization"), HasSubstr("reduce_bucket_size"));
  EXPECT_THAT(help("zero_optimization.stage"), AllOf(HasSubstr("default: 0"), HasSubstr("allowed: 0, 1, 2, 3")));
  EXPECT_THAT(help("zero_optimization.offload_param.device"), HasSubstr("not yet: cpu, nvme"));
  EXPECT_THAT(help("bfloat16.enabled"), HasSubstr("bf16.enabled"));
  try {
    help("zero_optimization.stagee");
    ADD_FAILURE();
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean zero_optimization.stage?"));
  }
}

TEST(Reference, SchemaHoldsEveryKey) {
  const nlohmann::ordered_json root = schema();
  const auto& zero = root.at("properties").at("zero_optimization");
  EXPECT_EQ(zero.at("additionalProperties"), false);
  EXPECT_EQ(zero.at("properties").at("stage").at("enum"), nlohmann::ordered_json::parse("[0, 1, 2, 3]"));
  EXPECT_EQ(zero.at("properties").at("offload_optimizer").at("properties").at("device").at("enum"),
            nlohmann::ordered_json::parse(R"(["none", "cpu", "nvme"])"));
  for_each(table(), [&](const Node& node) {
    const nlohmann::ordered_json* at = &root;
    for (const std::string& part : split(node.path, '.')) {
      if (part == "[]")
        at = &at->at("items");
      else if (part == "*")
        at = &at->at("additionalProperties");
      else
        at = &at->at("properties").at(part);
    }
    if (!node.rows.empty() && node.rows.size() == 1) {
      EXPECT_THAT(at->at("description").get<std::string>(), HasSubstr(node.rows.front().doc));
    }
  });
}

}  // namespace
}  // namespace deepspeed::config
