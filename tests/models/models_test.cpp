// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "models/decoder.h"
#include "models/generate.h"

namespace deepspeed::models {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path data = fs::path(DS_TEST_DATA) / "models";

at::Tensor tensor_of(const io::NamedTensor& stored) {
  const auto type = stored.data.type == base::Dtype::f32    ? at::kFloat
                    : stored.data.type == base::Dtype::bf16 ? at::kBFloat16
                                                            : at::kLong;
  const at::Tensor tensor = at::empty(stored.shape, type);
  std::memcpy(tensor.data_ptr(), stored.data.data, stored.data.bytes());
  return tensor;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

std::shared_ptr<Decoder> decoder(const std::shared_ptr<CausalLM>& model) {
  return std::dynamic_pointer_cast<Decoder>(model);
}

const nlohmann::json gpt2 = {{"type", "gpt2"}, {"vocab_size", 31}, {"n_positions", 12},
                             {"n_embd", 16},   {"n_layer", 2},     {"n_head", 2}};
const nlohmann::json llama = {{"type", "llama"},          {"vocab_size", 31},        {"max_position_embeddings", 12},
                              {"hidden_size", 16},        {"intermediate_size", 24}, {"num_hidden_layers", 2},
                              {"num_attention_heads", 4}, {"num_key_value_heads", 2}};

nlohmann::json with(nlohmann::json base, const nlohmann::json& changes) {
  base.update(changes);
  return base;
}

nlohmann::json without(nlohmann::json base, const std::string& key) {
  base.erase(key);
  return base;
}

at::Tensor some_ids(std::int64_t rows = 2, std::int64_t columns = 12, std::int64_t vocab = 31) {
  at::manual_seed(5);
  return at::randint(vocab, {rows, columns}, at::kLong);
}

/// A folder that is removed at the end.
struct Scratch {
  fs::path path;
  Scratch() {
    std::string name = (fs::temp_directory_path() / "models_test_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Scratch() { fs::remove_all(path); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

nlohmann::json read_json(const fs::path& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

template <class Error, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("another error: ") + e.what();
  }
  return "no error";
}

// --- against transformers --------------------------------------------------------------------------------------------

class Golden : public testing::TestWithParam<std::string> {
 protected:
  Golden() : model(decoder(load_model(data / GetParam()))), io(data / GetParam() / "io.safetensors") { model->eval(); }
  at::Tensor of(const std::string& name) const { return tensor_of(io.at(name)); }
  std::shared_ptr<Decoder> model;
  io::SafeTensors io;
};

TEST_P(Golden, LogitsHiddenStatesAndLoss) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = of("input_ids");
  const Output out = model->forward(ids, ids);
  EXPECT_LT(distance(out.logits, of("logits")), 2e-5);
  EXPECT_NEAR(out.loss.item<double>(), of("loss_labels_eq_inputs").item<double>(), 2e-6);
  const std::vector<at::Tensor> states = model->hidden_states(ids);
  ASSERT_EQ(states.size(), 3U);
  for (std::size_t i = 0; i < states.size(); ++i)
    EXPECT_LT(distance(states[i], of("hidden_states." + std::to_string(i))), 2e-5) << i;
}

TEST_P(Golden, MaskedLogits) {
  const at::NoGradGuard no_grad;
  const at::Tensor mask = of("attention_mask");
  const at::Tensor logits = model->forward(of("input_ids"), {}, mask).logits;
  const at::Tensor kept = mask.to(at::kBool).unsqueeze(-1);
  EXPECT_LT(distance(logits.masked_fill(~kept, 0), of("logits_masked").masked_fill(~kept, 0)), 2e-5);
}

TEST_P(Golden, GreedyText) {
  const at::Tensor prompts = of("greedy_prompt");
  const at::Tensor whole = of("greedy_output");
  for (std::int64_t row = 0; row < prompts.size(0); ++row) {
    const at::Tensor prompt = prompts[row].contiguous();
    const std::vector<std::int64_t> ids(prompt.data_ptr<std::int64_t>(), prompt.data_ptr<std::int64_t>() + 8);
    std::vector<std::int64_t> text = ids;
    for (const std::int64_t id : generate(*model, ids, {.max_new_tokens = 16, .stop_token = {}})) text.push_back(id);
    const at::Tensor expected = whole[row].contiguous();
    EXPECT_EQ(text,
              std::vector<std::int64_t>(expected.data_ptr<std::int64_t>(), expected.data_ptr<std::int64_t>() + 24));
  }
}

TEST_P(Golden, WrittenBackAndReadAgain) {
  const Scratch scratch;
  save_model(*model, scratch.path, base::Dtype::f32);
  const auto again = load_model(scratch.path);
  const auto before = model->named_parameters();
  const auto after = again->named_parameters();
  ASSERT_EQ(before.keys(), after.keys());
  for (const auto& parameter : before) EXPECT_TRUE(at::equal(parameter.value(), after[parameter.key()]));

  // Not a byte of what the original says is lost, and what is added is known.
  nlohmann::json original = read_json(data / GetParam() / "config.json");
  nlohmann::json written = read_json(scratch.path / "config.json");
  EXPECT_EQ(written["torch_dtype"], "float32");
  for (const char* added : {"torch_dtype", "rope_theta", "rope_scaling"}) written.erase(added);
  EXPECT_EQ(original, written);
  const io::SafeTensors file(scratch.path);
  EXPECT_EQ(file.find("lm_head.weight") == nullptr, model->config().tied_head);
  EXPECT_TRUE(fs::exists(scratch.path / "generation_config.json"));

  save_model(*again, scratch.path, base::Dtype::bf16);  // over the old one
  const auto rounded = load_model(scratch.path);
  for (const auto& parameter : rounded->named_parameters())
    EXPECT_TRUE(at::equal(parameter.value(), before[parameter.key()].to(at::kBFloat16).to(at::kFloat)));
  EXPECT_EQ(decoder(rounded)->config().dtype, "bfloat16");
}

INSTANTIATE_TEST_SUITE_P(Transformers, Golden, testing::Values("gpt2-tiny", "gpt2-tiny-rand", "llama-tiny"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// --- from scratch ----------------------------------------------------------------------------------------------------

TEST(Names, AreHuggingFacesInItsOrder) {
  EXPECT_THAT(
      make_model(with(gpt2, {{"n_layer", 1}}), 1)->named_parameters().keys(),
      ElementsAre("transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight",
                  "transformer.h.0.ln_1.bias", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
                  "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
                  "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias", "transformer.h.0.mlp.c_fc.weight",
                  "transformer.h.0.mlp.c_fc.bias", "transformer.h.0.mlp.c_proj.weight",
                  "transformer.h.0.mlp.c_proj.bias", "transformer.ln_f.weight", "transformer.ln_f.bias"));
  EXPECT_THAT(make_model(with(llama, {{"num_hidden_layers", 1}}), 1)->named_parameters().keys(),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
                          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
                          "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
                          "model.norm.weight", "lm_head.weight"));
  const auto model = make_model(gpt2, 1);
  EXPECT_EQ(model->named_parameters()["transformer.h.1.attn.c_attn.weight"].sizes(), at::IntArrayRef({16, 48}));
  EXPECT_EQ(nn::units_of(*model).size(), 6U);
}

TEST(Names, TheListWithoutAModelIsTheSame) {
  for (const nlohmann::json& section : {gpt2, llama, with(llama, {{"attention_bias", true}, {"mlp_bias", true}}),
                                        with(gpt2, {{"tie_word_embeddings", false}})}) {
    const auto model = decoder(make_model(section, 1));
    const std::vector<ParameterSpec> specs = parameter_specs(model->config());
    const auto parameters = model->named_parameters();
    ASSERT_EQ(specs.size(), parameters.size());
    std::int64_t count = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(specs[i].name, parameters[i].key());
      EXPECT_EQ(specs[i].shape, parameters[i].value().sizes().vec());
      count += parameters[i].value().numel();
    }
    EXPECT_EQ(parameter_count(model->config()), count);
  }
}

TEST(Describe, ReadsNoWeights) {
  EXPECT_EQ(describe_model(gpt2).hidden, 16);
  const Scratch scratch;
  fs::copy_file(data / "llama-tiny" / "config.json", scratch.path / "config.json");
  const DecoderConfig config = describe_model({{"path", scratch.path.string()}});
  EXPECT_EQ(parameter_count(config), 125248);
  EXPECT_EQ(config.dtype, "float32");
  EXPECT_EQ(config.kv_heads, 2);
}

TEST(Initialization, IsHuggingFacesAndDependsOnTheSeedAlone) {
  const nlohmann::json section = with(gpt2, {{"n_embd", 64}, {"n_layer", 8}, {"vocab_size", 500}});
  const auto a = make_model(section, 3)->named_parameters();
  at::manual_seed(99);
  const auto b = make_model(section, 3)->named_parameters();
  const auto c = make_model(section, 4)->named_parameters();
  for (const auto& parameter : a) {
    EXPECT_TRUE(at::equal(parameter.value(), b[parameter.key()]));
    const double deviation = parameter.value().std().item<double>();
    const double mean = parameter.value().mean().item<double>();
    if (parameter.key().ends_with("bias")) {
      EXPECT_EQ(parameter.value().abs().max().item<double>(), 0.0);
    } else if (parameter.key().find("ln_") != std::string::npos) {
      EXPECT_TRUE(at::equal(parameter.value(), at::ones_like(parameter.value())));
    } else {
      const bool residual = parameter.key().ends_with("c_proj.weight");
      const double expected = residual ? 0.02 / 4.0 : 0.02;  // sqrt(2 * 8) = 4
      EXPECT_NEAR(deviation, expected, expected * 0.06) << parameter.key();
      EXPECT_NEAR(mean, 0.0, expected * 0.06) << parameter.key();
      EXPECT_FALSE(at::equal(parameter.value(), c[parameter.key()]));
    }
  }
  EXPECT_FALSE(at::equal(a["transformer.h.0.mlp.c_fc.weight"], a["transformer.h.1.mlp.c_fc.weight"]));
  // More layers leave the others' values alone (but for the residual outputs' width).
  const auto deeper = make_model(with(section, {{"n_layer", 9}}), 3)->named_parameters();
  EXPECT_TRUE(at::equal(a["transformer.h.0.mlp.c_fc.weight"], deeper["transformer.h.0.mlp.c_fc.weight"]));
}

TEST(Decoder, LooksBackOnly) {
  const at::NoGradGuard no_grad;
  for (const nlohmann::json& section : {gpt2, llama}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {  // the attention's kernels differ
      const auto model = make_model(with(section, {{"initializer_range", 0.3}}), 1);
      model->to(type);
      const at::Tensor ids = some_ids();
      at::Tensor changed = ids.clone();
      changed.select(1, 7).add_(1).remainder_(31);
      const at::Tensor a = model->forward(ids).logits;
      const at::Tensor b = model->forward(changed).logits;
      EXPECT_LT(distance(a.narrow(1, 0, 7), b.narrow(1, 0, 7)), type == at::kFloat ? 1e-6 : 1e-2);
      EXPECT_GT(distance(a.narrow(1, 7, 1), b.narrow(1, 7, 1)), 0.05);
      EXPECT_GT(distance(a.narrow(1, 8, 4), b.narrow(1, 8, 4)), 0.05);
    }
  }
}

TEST(Decoder, LabelsMayBeShiftedOrHoldTheNextToken) {
  const auto model = make_model(gpt2, 1);
  const at::Tensor tokens = some_ids(3, 13);
  const at::Tensor ids = tokens.narrow(1, 0, 12);
  const Output shifted = model->forward(ids, ids);
  const Output whole = model->forward(ids, tokens);
  const auto cross_entropy = [](const at::Tensor& logits, const at::Tensor& targets) {
    return at::cross_entropy_loss(logits.reshape({-1, 31}), targets.reshape({-1})).item<double>();
  };
  EXPECT_NEAR(shifted.loss.item<double>(), cross_entropy(shifted.logits.narrow(1, 0, 11), tokens.narrow(1, 1, 11)),
              1e-6);
  EXPECT_NEAR(whole.loss.item<double>(), cross_entropy(whole.logits, tokens.narrow(1, 1, 12)), 1e-6);

  at::Tensor partly = ids.clone();
  partly.narrow(1, 4, 8).fill_(-100);
  EXPECT_NEAR(model->forward(ids, partly).loss.item<double>(),
              cross_entropy(shifted.logits.narrow(1, 0, 3), tokens.narrow(1, 1, 3)), 1e-6);
  EXPECT_FALSE(model->forward(ids).loss.defined());
  EXPECT_NEAR(model->forward(ids.to(at::kInt), ids.to(at::kInt)).loss.item<double>(), shifted.loss.item<double>(), 0);
}

TEST(Decoder, LossIsFp32InHalfPrecision) {
  const auto model = make_model(gpt2, 1);
  model->to(at::kBFloat16);
  const Output out = model->forward(some_ids(), some_ids());
  EXPECT_EQ(out.logits.scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.loss.scalar_type(), at::kFloat);
  out.loss.backward();
  for (const auto& parameter : model->named_parameters())
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
}

TEST(Decoder, Bf16FollowsFp32) {
  for (const nlohmann::json& section : {gpt2, llama}) {
    const auto exact = make_model(with(section, {{"initializer_range", 0.2}}), 1);
    const auto half = make_model(with(section, {{"initializer_range", 0.2}}), 1);
    half->to(at::kBFloat16);
    exact->to(at::kBFloat16);
    exact->to(at::kFloat);  // the same rounded weights
    const at::Tensor ids = some_ids();
    const Output a = exact->forward(ids, ids);
    const Output b = half->forward(ids, ids);
    const Output masked = half->forward(ids, {}, at::ones_like(ids));  // another attention kernel on the CPU
    const auto off = [](const at::Tensor& truth, const at::Tensor& value) {
      return (truth - value).norm().item<double>() / (truth.norm().item<double>() + 1e-2);
    };
    EXPECT_LT(off(a.logits, b.logits), 0.04);
    EXPECT_LT(off(a.logits, masked.logits), 0.04);
    a.loss.backward();
    b.loss.backward();
    const auto expected = exact->named_parameters();
    for (const auto& parameter : half->named_parameters()) {
      EXPECT_LT(off(expected[parameter.key()].grad(), parameter.value().grad()), 0.08) << parameter.key();
    }
  }
}

TEST(Decoder, WrongInputsAreRefused) {
  const auto model = make_model(gpt2, 1);
  EXPECT_THROW(model->forward(some_ids(2, 13)), base::DataError);
  EXPECT_THROW(model->forward(some_ids().view({-1})), base::DataError);
  EXPECT_THROW(model->forward(some_ids().to(at::kFloat)), base::DataError);
  EXPECT_THROW(model->forward(some_ids(), some_ids(2, 11)), base::DataError);
  EXPECT_THROW(model->forward(some_ids(), {}, some_ids(2, 11)), base::DataError);
}

/// Loss and gradients with every dropout on, from one random state.
std::vector<at::Tensor> step(CausalLM& model, bool checkpointing) {
  for (const auto& unit : nn::units_of(model)) unit->set_checkpointing(checkpointing);
  at::manual_seed(17);
  const at::Tensor ids = some_ids(2, 12);
  const at::Tensor loss = model.forward(ids, ids).loss;
  loss.backward();
  std::vector<at::Tensor> seen = {loss.detach(), at::rand({3})};
  for (const at::Tensor& parameter : model.parameters()) {
    seen.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return seen;
}

TEST(Decoder, CheckpointingWithDropoutChangesNoBit) {  // C26
  for (const nlohmann::json& section : {with(gpt2, {{"embd_pdrop", 0.3}, {"attn_pdrop", 0.3}, {"resid_pdrop", 0.3}}),
                                        with(llama, {{"attention_dropout", 0.5}}), llama}) {
    const auto model = make_model(section, 1);
    const auto plain = step(*model, false);
    const auto recomputed = step(*model, true);
    ASSERT_EQ(plain.size(), recomputed.size());
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], recomputed[i])) << i;
  }
}

TEST(Decoder, DropoutIsOffInEvaluationAndByDefault) {
  const at::NoGradGuard no_grad;
  const auto model = make_model(with(gpt2, {{"embd_pdrop", 0.3}}), 1);
  const at::Tensor ids = some_ids();
  EXPECT_FALSE(at::equal(model->forward(ids).logits, model->forward(ids).logits));
  model->eval();
  EXPECT_TRUE(at::equal(model->forward(ids).logits, model->forward(ids).logits));
  EXPECT_EQ(read_section(gpt2).residual_dropout, 0.0);
  // A file that says nothing means transformers' default.
  EXPECT_EQ(read_config(with(without(gpt2, "type"), {{"model_type", "gpt2"}}), "config.json").residual_dropout, 0.1);
}

TEST(Decoder, GroupedKeysAreSharedByNeighbours) {
  const auto grouped = make_model(with(llama, {{"initializer_range", 0.3}}), 1);
  const auto full = make_model(with(llama, {{"num_key_value_heads", 4}, {"initializer_range", 0.3}}), 1);
  const auto from = grouped->named_parameters();
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : full->named_parameters()) {
      at::Tensor value = from[parameter.key()];
      const bool key_or_value =
          parameter.key().find("k_proj") != std::string::npos || parameter.key().find("v_proj") != std::string::npos;
      if (key_or_value) value = value.view({2, 1, 4, 16}).expand({2, 2, 4, 16}).reshape({16, 16});
      parameter.value().copy_(value);
    }
  }
  const at::Tensor ids = some_ids();
  const Output a = grouped->forward(ids, ids);
  const Output b = full->forward(ids, ids);
  EXPECT_LT(distance(a.logits, b.logits), 1e-5);
  a.loss.backward();
  b.loss.backward();
  const at::Tensor shared = from["model.layers.0.self_attn.k_proj.weight"].grad();
  const at::Tensor each = full->named_parameters()["model.layers.0.self_attn.k_proj.weight"].grad();
  EXPECT_LT(distance(shared, each.view({2, 2, 4, 16}).sum(1).view({8, 16})), 1e-6);
}

TEST(Decoder, PaddingRowGetsNoGradient) {
  const auto model = make_model(with(llama, {{"pad_token_id", 3}}), 1);
  const at::Tensor table = model->named_parameters()["model.embed_tokens.weight"];
  EXPECT_EQ(table[3].abs().max().item<double>(), 0.0);
  const at::Tensor ids = at::arange(12).view({1, 12});
  model->forward(ids, ids).loss.backward();
  EXPECT_EQ(table.grad()[3].abs().max().item<double>(), 0.0);
  EXPECT_GT(table.grad()[4].abs().max().item<double>(), 0.0);
  EXPECT_EQ(read_section(with(llama, {{"pad_token_id", -1}})).padding_id, 30);
}

TEST(Decoder, RotaryScalingsDiffer) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = some_ids();
  std::vector<at::Tensor> seen;
  for (const nlohmann::json& rope : {nlohmann::json(nullptr), nlohmann::json{{"type", "linear"}, {"factor", 2.0}},
                                     nlohmann::json{{"rope_type", "llama3"},
                                                    {"factor", 8.0},
                                                    {"low_freq_factor", 1.0},
                                                    {"high_freq_factor", 4.0},
                                                    {"original_max_position_embeddings", 8}}})
    seen.push_back(
        make_model(with(llama, {{"initializer_range", 0.3}, {"rope_theta", 100.0}, {"rope_scaling", rope}}), 1)
            ->forward(ids)
            .logits);
  EXPECT_GT(distance(seen[0], seen[1]), 1e-3);
  EXPECT_GT(distance(seen[0], seen[2]), 1e-3);
  EXPECT_GT(distance(seen[1], seen[2]), 1e-3);
  // A longer text than before and a shorter one again: the kept tables are cut or made anew.
  const auto model = make_model(llama, 1);
  const at::Tensor few = model->forward(ids.narrow(1, 0, 4)).logits;
  const at::Tensor all = model->forward(ids).logits;
  EXPECT_LT(distance(all.narrow(1, 0, 4), few), 1e-6);
  EXPECT_LT(distance(model->forward(ids.narrow(1, 0, 4)).logits, few), 1e-7);
}

TEST(Decoder, Flops) {
  const auto model = decoder(make_model(gpt2, 1));
  const double n = static_cast<double>(parameter_count(model->config()));
  EXPECT_EQ(model->flops_per_token(12), 6.0 * n + 6.0 * 2 * 16 * 12);
  EXPECT_EQ(model->vocab_size(), 31);
  EXPECT_EQ(model->context_length(), 12);
}

TEST(Generate, KeepsToTheContextStopsAndSamplesBySeed) {
  const auto model = make_model(with(gpt2, {{"initializer_range", 0.3}}), 1);
  const std::vector<std::int64_t> prompt = {1, 2, 3};
  const auto long_text = generate(*model, prompt, {.max_new_tokens = 30, .stop_token = {}});  // the context is 12
  EXPECT_EQ(long_text.size(), 30U);
  EXPECT_TRUE(model->is_training());
  const auto stopped = generate(*model, prompt, {.max_new_tokens = 30, .stop_token = long_text[2]});
  EXPECT_EQ(stopped.back(), long_text[2]);
  EXPECT_LE(stopped.size(), 3U);
  const auto sample = [&](std::uint64_t seed) {
    return generate(*model, prompt, {.max_new_tokens = 30, .temperature = 1.5, .seed = seed, .stop_token = {}});
  };
  EXPECT_EQ(sample(1), sample(1));
  EXPECT_NE(sample(1), sample(2));
  EXPECT_THROW(generate(*model, {}, {}), base::DataError);
  EXPECT_THROW(generate(*model, {31}, {}), base::DataError);
  EXPECT_THROW(generate(*model, {1}, {.temperature = -1.0, .stop_token = {}}), base::UsageError);
  const at::NoGradGuard no_grad;
  model->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THROW(generate(*model, prompt, {}), base::DataError);
}

// --- refusals --------------------------------------------------------------------------------------------------------

TEST(Section, IsRefusedByName) {
  const std::vector<std::pair<nlohmann::json, std::string>> cases = {
      {nlohmann::json::array(), "model: must be an object"},
      {nlohmann::json::object(), "model: needs 'path' (a Hugging Face folder) or 'type' (gpt2, llama)"},
      {{{"type", 3}}, "model.type: must be a text, not 3"},
      {{{"type", "bloom"}}, "model.type: 'bloom' is not a supported model type; supported: gpt2, llama"},
      {{{"type", "gpt2"}, {"path", "x"}}, "model.type: is given beside model.path"},
      {{{"path", "x"}, {"n_layer", 2}}, "model.n_layer: is not known"},
      {with(gpt2, {{"n_layers", 2}}), "model.n_layers: is not known; did you mean n_layer?"},
      {with(gpt2, {{"hidden_size", 2}}), "model.hidden_size: is not known"},
      {without(gpt2, "n_head"), "model.n_head: is needed"},
      {without(llama, "intermediate_size"), "model.intermediate_size: is needed"},
      {with(gpt2, {{"n_head", 0}}), "model.n_head: must be a whole number from 1"},
      {with(gpt2, {{"n_head", -2}}), "model.n_head: must be a whole number from 1"},
      {with(gpt2, {{"n_head", 2.5}}), "not 2.5"},
      {with(gpt2, {{"n_head", "2"}}), "not \"2\""},
      {with(gpt2, {{"n_head", true}}), "not true"},
      {with(gpt2, {{"n_head", 3}}), "model.n_head: 3 does not divide n_embd 16"},
      {with(gpt2, {{"n_embd", 1e30}}), "model.n_embd: must be a whole number"},
      {with(gpt2, {{"vocab_size", std::uint64_t{1} << 63U}}), "model.vocab_size: must be a whole number"},
      {with(gpt2, {{"resid_pdrop", 1.5}}), "model.resid_pdrop: must be a number from 0"},
      {with(gpt2, {{"activation_function", "mish"}}),
       "model.activation_function: 'mish' is not supported; supported: gelu"},
      {with(gpt2, {{"add_cross_attention", true}}), "model.add_cross_attention"},
      {with(gpt2, {{"tie_word_embeddings", 1}}), "model.tie_word_embeddings: must be true or false"},
      {with(llama, {{"num_key_value_heads", 3}}), "model.num_key_value_heads: 3 does not divide num_attention_heads 4"},
      {with(llama, {{"head_dim", 5}}), "model.head_dim: rotary positions need an even head size"},
      {with(llama, {{"num_attention_heads", 16}, {"num_key_value_heads", 4}}), "model.num_attention_heads: rotary"},
      {with(llama, {{"rope_scaling", {{"type", "yarn"}}}}),
       "model.rope_scaling.type: 'yarn' is not supported; supported: default, linear, llama3"},
      {with(llama, {{"rope_scaling", {{"rope_type", "linear"}}}}), "model.rope_scaling.factor: is needed"},
      {with(llama, {{"rope_scaling", "linear"}}), "model.rope_scaling: must be an object"},
      {with(llama, {{"rope_parameters", {{"rope_type", "linear"}, {"factr", 2}}}}),
       "model.rope_parameters.factor: is needed"},
      {with(llama, {{"rope_parameters", {{"thta", 2}}}}), "model.rope_parameters.thta: is not known"},
      {with(llama, {{"pad_token_id", 31}}), "model.pad_token_id"},
  };
  for (const auto& [section, expected] : cases) {
    EXPECT_THAT(message_of<base::ConfigError>([&s = section] { make_model(s, 1); }), HasSubstr(expected)) << section;
  }
  EXPECT_NO_THROW(make_model(with(gpt2, {{"n_embd", 1.6e1}}), 1));
  const auto resolved = make_model(with(gpt2, {{"path", nullptr}}), 1);  // as a configuration with its defaults has it
  EXPECT_FALSE(resolved->hf_config().contains("path"));
  EXPECT_NO_THROW(make_model({{"path", (data / "llama-tiny").string()}, {"type", nullptr}}, 1));
}

TEST(Folder, DamagedConfigsAreRefusedByName) {
  const nlohmann::json good = with(without(gpt2, "type"), {{"model_type", "gpt2"}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "config.json"},
      {"[]", "config.json: must be an object"},
      {"{\"model_type\":", "config.json"},
      {"{}", "config.json: model_type: is needed"},
      {with(good, {{"model_type", "t5"}}).dump(), "config.json: model_type: 't5' is not a supported model type"},
      {without(good, "n_embd").dump(), "config.json: n_embd: is needed"},
      {with(good, {{"n_head", 0}}).dump(), "config.json: n_head: must be a whole number from 1"},
      {with(good, {{"n_layer", 1e9}}).dump(), "config.json: n_layer: must be a whole number from 1"},
      {with(good, {{"torch_dtype", "int8"}}).dump(), "config.json: torch_dtype: 'int8' is not supported"},
      {with(good, {{"quantization_config", {{"bits", 4}}}}).dump(), "config.json: quantization_config"},
      // A model of a petabyte is refused for what the weights say, before it is allocated.
      {with(good, {{"n_embd", 1 << 23}, {"n_layer", 60000}}).dump(), "must be [31, 8388608]"},
  };
  const Scratch scratch;
  save_model(*make_model(gpt2, 1), scratch.path, base::Dtype::f32);
  for (const auto& [text, expected] : cases) {
    write(scratch.path / "config.json", text);
    EXPECT_THAT(message_of<base::DataError>([&] { load_model(scratch.path); }), HasSubstr(expected)) << text;
  }
  fs::remove(scratch.path / "config.json");
  EXPECT_THAT(message_of<base::DataError>([&] { load_model(scratch.path); }), HasSubstr("config.json: doesn't exist"));
  EXPECT_THAT(message_of<base::DataError>([&] {
                make_model({{"path", "/no/such/model"}}, 1);
              }),
              HasSubstr("/no/such/model: is no folder"));
}

/// A model's tensors in a form that can be changed and written.
struct Stored {
  std::map<std::string, at::Tensor> tensors;
  explicit Stored(const CausalLM& model) {
    for (const auto& parameter : model.named_parameters())
      tensors[parameter.key()] = parameter.value().detach().clone();
  }
  void write(const fs::path& folder, std::uint64_t shard_bytes = io::default_shard_bytes) const {
    std::vector<io::NamedTensor> list;
    for (const auto& [name, tensor] : tensors) {
      const auto type = tensor.scalar_type() == at::kFloat ? base::Dtype::f32 : base::Dtype::i64;
      list.push_back({name, tensor.sizes().vec(), {tensor.const_data_ptr(), tensor.numel(), type}});
    }
    io::write_model(folder, list, shard_bytes);
  }
};

TEST(Folder, TensorsThatDontFitAreNamed) {
  const Scratch scratch;
  const auto model = make_model(llama, 1);
  save_model(*model, scratch.path, base::Dtype::f32);
  const Stored good(*model);
  const std::string norm = "model.norm.weight";
  Stored bad = good;
  bad.tensors.erase("model.layers.1.mlp.up_proj.weight");
  bad.tensors["model.layers.7.extra"] = at::zeros({2});
  bad.tensors[norm] = at::zeros({3});
  bad.tensors["lm_head.weight"] = at::zeros({31, 16}, at::kLong);
  bad.write(scratch.path);
  EXPECT_THAT(message_of<base::DataError>([&] { load_model(scratch.path); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("missing: model.layers.1.mlp.up_proj.weight;"),
                    HasSubstr("not part of this model: 'model.layers.7.extra'"),
                    HasSubstr("model.norm.weight is [3] and must be [16]"), HasSubstr("lm_head.weight holds int64")));
  bad = good;
  for (int i = 0; i < 20; ++i) bad.tensors["model.extra." + std::to_string(i)] = at::zeros({1});
  bad.write(scratch.path);
  EXPECT_THAT(message_of<base::DataError>([&] { load_model(scratch.path); }), HasSubstr("and 12 more"));
  good.write(scratch.path);
  EXPECT_NO_THROW(load_model(scratch.path));
}

TEST(Folder, ShardsAndTiedHeads) {  // C23
  const Scratch scratch;
  const auto tied = make_model(gpt2, 1);
  save_model(*tied, scratch.path, base::Dtype::f32);
  const Stored good(*tied);
  const std::string table = "transformer.wte.weight";
  const auto reads_the_same = [&] {
    const auto again = load_model(scratch.path);
    for (const auto& parameter : again->named_parameters()) {
      if (!at::equal(parameter.value(), good.tensors.at(parameter.key()))) return false;
    }
    return true;
  };
  good.write(scratch.path, 4000);  // several shards
  ASSERT_TRUE(fs::exists(scratch.path / "model.safetensors.index.json"));
  EXPECT_TRUE(reads_the_same());

  Stored other = good;  // the head beside the table
  other.tensors["lm_head.weight"] = good.tensors.at(table).clone();
  other.write(scratch.path);
  EXPECT_TRUE(reads_the_same());
  other.tensors.erase(table);  // the head alone
  other.write(scratch.path);
  EXPECT_TRUE(reads_the_same());
  other.tensors[table] = good.tensors.at(table) + 1;  // two that differ
  other.write(scratch.path);
  EXPECT_THAT(message_of<base::DataError>([&] { load_model(scratch.path); }),
              HasSubstr("lm_head.weight differs from transformer.wte.weight"));

  nlohmann::json config = read_json(scratch.path / "config.json");  // the head absent, config says not tied
  good.write(scratch.path);
  config["tie_word_embeddings"] = false;
  write(scratch.path / "config.json", config.dump());
  EXPECT_THAT(message_of<base::DataError>([&] { load_model(scratch.path); }),
              HasSubstr("missing: lm_head.weight (config.json says that the head is not tied)"));

  // A shard that is gone, an index with a name that is in no shard.
  config["tie_word_embeddings"] = true;
  write(scratch.path / "config.json", config.dump());
  good.write(scratch.path, 4000);
  nlohmann::json index = read_json(scratch.path / "model.safetensors.index.json");
  nlohmann::json changed = index;
  changed["weight_map"]["lm_head.weight"] = index["weight_map"][table];
  write(scratch.path / "model.safetensors.index.json", changed.dump());
  const std::string listed_only = message_of<base::DataError>([&] { load_model(scratch.path); });
  EXPECT_THAT(listed_only, HasSubstr("lm_head.weight"));
  write(scratch.path / "model.safetensors.index.json", index.dump());
  EXPECT_TRUE(reads_the_same());
  fs::remove(scratch.path / index["weight_map"][table].get<std::string>());
  EXPECT_THAT(message_of<base::Error>([&] { load_model(scratch.path); }),
              HasSubstr(index["weight_map"][table].get<std::string>()));
}

TEST(Folder, FilesOfTheBareBackbone) {
  const Scratch scratch;
  const auto model = make_model(gpt2, 1);
  save_model(*model, scratch.path, base::Dtype::f32);
  Stored bare(*model);
  std::map<std::string, at::Tensor> renamed;
  for (const auto& [name, tensor] : bare.tensors) renamed[name.substr(std::string("transformer.").size())] = tensor;
  renamed["h.0.attn.bias"] = at::ones({1, 1, 12, 12});  // the causal mask that old files hold
  renamed["h.0.attn.masked_bias"] = at::ones({1});
  bare.tensors = renamed;
  bare.write(scratch.path);
  const auto again = load_model(scratch.path);
  const auto parameters = model->named_parameters();
  for (const auto& parameter : again->named_parameters())
    EXPECT_TRUE(at::equal(parameter.value(), parameters[parameter.key()]));
}

TEST(Folder, BothSpellingsOfTransformers) {
  const Scratch scratch;
  const auto model =
      make_model(with(llama, {{"rope_theta", 500.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}), 1);
  save_model(*model, scratch.path, base::Dtype::f32);
  const nlohmann::json config = read_json(scratch.path / "config.json");
  const at::NoGradGuard no_grad;
  const at::Tensor expected = model->forward(some_ids()).logits;
  nlohmann::json older = config;
  for (const char* key : {"rope_parameters", "dtype", "head_dim"}) older.erase(key);
  nlohmann::json newer = config;
  for (const char* key : {"rope_theta", "rope_scaling", "torch_dtype"}) newer.erase(key);
  for (const nlohmann::json& one : {older, newer}) {
    write(scratch.path / "config.json", one.dump());
    EXPECT_TRUE(at::equal(load_model(scratch.path)->forward(some_ids()).logits, expected)) << one;
  }
}

TEST(Folder, UnknownKeysOfAConfigAreKept) {
  const Scratch scratch;
  save_model(*make_model(with(gpt2, {{"bos_token_id", 5}, {"eos_token_id", 6}}), 1), scratch.path, base::Dtype::f32);
  nlohmann::json config = read_json(scratch.path / "config.json");
  EXPECT_EQ(config["eos_token_id"], 6);
  EXPECT_EQ(read_json(scratch.path / "generation_config.json")["eos_token_id"], 6);
  EXPECT_FALSE(config.contains("type"));
  config["something_of_ours"] = {1, 2};
  write(scratch.path / "config.json", config.dump());
  save_model(*load_model(scratch.path), scratch.path, base::Dtype::bf16);
  nlohmann::json again = read_json(scratch.path / "config.json");
  EXPECT_EQ(again["dtype"], "bfloat16");
  again["dtype"] = again["torch_dtype"] = "float32";
  EXPECT_EQ(again, config);
}

TEST(Folder, WriterRefusesWhatItCantWrite) {
  const Scratch scratch;
  const auto model = make_model(gpt2, 1);
  EXPECT_THROW(save_model(*model, scratch.path, base::Dtype::i32), base::ConfigError);
  write(scratch.path / "file", "");
  EXPECT_THROW(save_model(*model, scratch.path / "file" / "model", base::Dtype::f32), base::IoError);
}

}  // namespace
}  // namespace deepspeed::models
