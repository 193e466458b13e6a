// SPDX-License-Identifier: Apache-2.0
#include "models/family.h"

#include <algorithm>

namespace deepspeed::models {
namespace {

// Bounds that no model of today comes near, low enough that no product of two of them overflows.
constexpr std::int64_t largest_width = 1 << 24;
constexpr std::int64_t largest_depth = 1 << 16;
constexpr std::int64_t largest_table = 1LL << 31;

const std::vector<std::pair<std::string, Activation>> activations = {
    {"gelu", Activation::gelu}, {"gelu_new", Activation::gelu_tanh}, {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"silu", Activation::silu}, {"swish", Activation::silu},         {"relu", Activation::relu},
};

/// The first name of an activation, which every family's reader takes.
std::string activation_name(const DecoderConfig& config) {
  if (config.activation == Activation::gelu_tanh) return "gelu_new";
  for (const auto& [name, value] : activations) {
    if (value == config.activation) return name;
  }
  return {};
}

std::int64_t size(Fields& in, std::string_view key, std::int64_t high) {
  return in.integer(key, std::nullopt, 1, high);
}

double probability(Fields& in, std::string_view key, double in_files) {
  return in.number(key, in.origin() == Fields::Origin::file ? in_files : 0.0, 0.0, 1.0);
}

void divides(const Fields& in, std::string_view key, std::int64_t part, std::string_view whole_key,
             std::int64_t whole) {
  if (whole % part != 0)
    in.fail(key, std::to_string(part) + " does not divide " + std::string(whole_key) + " " + std::to_string(whole));
}

void read_gpt2(Fields& in, DecoderConfig& c) {
  c.vocab_size = size(in, "vocab_size", largest_table);
  c.context = size(in, "n_positions", largest_table);
  c.hidden = size(in, "n_embd", largest_width);
  c.layers = size(in, "n_layer", largest_depth);
  c.heads = c.kv_heads = size(in, "n_head", largest_width);
  divides(in, "n_head", c.heads, "n_embd", c.hidden);
  c.head_dim = c.hidden / c.heads;
  c.inner = in.integer("n_inner", 4 * c.hidden, 1, largest_width);
  c.activation = in.choice("activation_function", "gelu_new", activations);
  c.norm_eps = in.number("layer_norm_epsilon", 1e-5, 0.0, 1.0);
  c.initializer_range = in.number("initializer_range", 0.02, 0.0, 1e3);
  c.embedding_dropout = probability(in, "embd_pdrop", 0.1);
  c.attention_dropout = probability(in, "attn_pdrop", 0.1);
  c.residual_dropout = probability(in, "resid_pdrop", 0.1);
  c.scale_attention = in.flag("scale_attn_weights", true);
  c.scale_by_layer = in.flag("scale_attn_by_inverse_layer_idx", false);
  c.tied_head = in.flag("tie_word_embeddings", true);
  if (in.flag("add_cross_attention", false))
    in.fail("add_cross_attention", "true is not supported: the model is a decoder alone");
  // The softmax is at least fp32 inside the attention in any case.
  in.flag("reorder_and_upcast_attn", false);
  in.accept({"n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
             "summary_first_dropout", "pad_token_id"});
  c.norm = Norm::layer;
  c.position = Position::learned;
  c.fused_qkv = c.transposed = c.attention_bias = c.mlp_bias = c.scaled_residual_init = true;
  c.gated_mlp = false;
}

void write_gpt2(const DecoderConfig& c, nlohmann::json& out) {
  out["vocab_size"] = c.vocab_size;
  out["n_positions"] = c.context;
  out["n_embd"] = c.hidden;
  out["n_layer"] = c.layers;
  out["n_head"] = c.heads;
  if (c.inner == 4 * c.hidden) {
    out["n_inner"] = nullptr;
  } else {
    out["n_inner"] = c.inner;
  }
  out["activation_function"] = activation_name(c);
  out["layer_norm_epsilon"] = c.norm_eps;
  out["embd_pdrop"] = c.embedding_dropout;
  out["attn_pdrop"] = c.attention_dropout;
  out["resid_pdrop"] = c.residual_dropout;
  out["scale_attn_weights"] = c.scale_attention;
  out["scale_attn_by_inverse_layer_idx"] = c.scale_by_layer;
}

/// transformers 5 writes rope_parameters: {rope_type, rope_theta, ...}; before it rope_theta stood at the top and
/// rope_scaling held the rest, with "type" for "rope_type" in the oldest files.
Rotary read_rotary(Fields& in, std::int64_t context) {
  Rotary rotary;
  const double top_theta = in.number("rope_theta", 10000.0, 1e-6, 1e30);
  rotary.theta = top_theta;
  const bool parameters = in.has("rope_parameters");
  const bool scaling = in.has("rope_scaling");
  if (!parameters && !scaling) return rotary;
  Fields rope = in.inner(parameters ? "rope_parameters" : "rope_scaling");
  rotary.theta = rope.number("rope_theta", top_theta, 1e-6, 1e30);
  const std::string_view type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  rotary.scaling = rope.choice<Rotary::Scaling>(
      type_key, "default",
      {{"default", Rotary::Scaling::none}, {"linear", Rotary::Scaling::linear}, {"llama3", Rotary::Scaling::llama3}});
  rope.accept({"rope_type", "type"});
  if (rotary.scaling != Rotary::Scaling::none) rotary.factor = rope.number("factor", std::nullopt, 1e-6, 1e9);
  if (rotary.scaling == Rotary::Scaling::llama3) {
    rotary.low_frequency_factor = rope.number("low_freq_factor", std::nullopt, 1e-6, 1e9);
    rotary.high_frequency_factor = rope.number("high_freq_factor", std::nullopt, 1e-6, 1e9);
    rotary.original_context = rope.integer("original_max_position_embeddings", context, 1, largest_table);
    if (rotary.high_frequency_factor <= rotary.low_frequency_factor)
      rope.fail("high_freq_factor", "must be larger than low_freq_factor");
  }
  if (rope.number("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    rope.fail("partial_rotary_factor", "only 1 is supported");
  if (in.origin() == Fields::Origin::section) rope.refuse_unknown();
  return rotary;
}

void write_rotary(const Rotary& rotary, nlohmann::json& out) {
  nlohmann::json parameters = {{"rope_theta", rotary.theta}, {"rope_type", "default"}};
  if (rotary.scaling == Rotary::Scaling::linear) {
    parameters["rope_type"] = "linear";
    parameters["factor"] = rotary.factor;
  } else if (rotary.scaling == Rotary::Scaling::llama3) {
    parameters["rope_type"] = "llama3";
    parameters["factor"] = rotary.factor;
    parameters["low_freq_factor"] = rotary.low_frequency_factor;
    parameters["high_freq_factor"] = rotary.high_frequency_factor;
    parameters["original_max_position_embeddings"] = rotary.original_context;
  }
  // Both spellings, so that every release of transformers reads it.
  out["rope_parameters"] = parameters;
  out["rope_theta"] = rotary.theta;
  parameters.erase("rope_theta");
  out["rope_scaling"] = rotary.scaling == Rotary::Scaling::none ? nlohmann::json() : parameters;
}

void read_llama(Fields& in, DecoderConfig& c) {
  c.vocab_size = size(in, "vocab_size", largest_table);
  c.context = size(in, "max_position_embeddings", largest_table);
  c.hidden = size(in, "hidden_size", largest_width);
  c.inner = size(in, "intermediate_size", largest_width);
  c.layers = size(in, "num_hidden_layers", largest_depth);
  c.heads = size(in, "num_attention_heads", largest_width);
  c.kv_heads = in.integer("num_key_value_heads", c.heads, 1, largest_width);
  divides(in, "num_key_value_heads", c.kv_heads, "num_attention_heads", c.heads);
  if (in.has("head_dim")) {
    c.head_dim = size(in, "head_dim", largest_width);
  } else {
    divides(in, "num_attention_heads", c.heads, "hidden_size", c.hidden);
    c.head_dim = c.hidden / c.heads;
  }
  if (c.heads * c.head_dim > largest_width) in.fail("head_dim", "times num_attention_heads is too large");
  if (c.head_dim % 2 != 0)
    in.fail(in.has("head_dim") ? "head_dim" : "num_attention_heads",
            "rotary positions need an even head size, not " + std::to_string(c.head_dim));
  c.activation = in.choice("hidden_act", "silu", activations);
  c.norm_eps = in.number("rms_norm_eps", 1e-6, 0.0, 1.0);
  c.initializer_range = in.number("initializer_range", 0.02, 0.0, 1e3);
  c.attention_dropout = probability(in, "attention_dropout", 0.0);
  c.attention_bias = in.flag("attention_bias", false);
  c.mlp_bias = in.flag("mlp_bias", false);
  c.tied_head = in.flag("tie_word_embeddings", false);
  c.rotary = read_rotary(in, c.context);
  // As in torch, a negative id counts from the end.
  if (in.has("pad_token_id")) {
    c.padding_id = in.integer("pad_token_id", std::nullopt, -c.vocab_size, c.vocab_size - 1);
    if (c.padding_id < 0) c.padding_id += c.vocab_size;
  }
  in.accept({"pretraining_tp"});
  c.norm = Norm::rms;
  c.position = Position::rotary;
  c.gated_mlp = true;
  c.fused_qkv = c.transposed = c.scaled_residual_init = false;
}

void write_llama(const DecoderConfig& c, nlohmann::json& out) {
  out["vocab_size"] = c.vocab_size;
  out["max_position_embeddings"] = c.context;
  out["hidden_size"] = c.hidden;
  out["intermediate_size"] = c.inner;
  out["num_hidden_layers"] = c.layers;
  out["num_attention_heads"] = c.heads;
  out["num_key_value_heads"] = c.kv_heads;
  out["head_dim"] = c.head_dim;
  out["hidden_act"] = activation_name(c);
  out["rms_norm_eps"] = c.norm_eps;
  out["attention_dropout"] = c.attention_dropout;
  out["attention_bias"] = c.attention_bias;
  out["mlp_bias"] = c.mlp_bias;
  write_rotary(c.rotary, out);
}

const std::vector<Family>& families() {
  using enum Weight;
  static const std::vector<Family> all = {
      {"gpt2",
       "GPT2LMHeadModel",
       "transformer.",
       "transformer.h",
       {{token_embedding, "transformer.wte.weight"}, {position_embedding, "transformer.wpe.weight"}},
       {{attention_norm, "ln_1.weight"},
        {attention_norm_bias, "ln_1.bias"},
        {qkv, "attn.c_attn.weight"},
        {qkv_bias, "attn.c_attn.bias"},
        {attention_out, "attn.c_proj.weight"},
        {attention_out_bias, "attn.c_proj.bias"},
        {mlp_norm, "ln_2.weight"},
        {mlp_norm_bias, "ln_2.bias"},
        {up, "mlp.c_fc.weight"},
        {up_bias, "mlp.c_fc.bias"},
        {down, "mlp.c_proj.weight"},
        {down_bias, "mlp.c_proj.bias"}},
       {{final_norm, "transformer.ln_f.weight"}, {final_norm_bias, "transformer.ln_f.bias"}, {head, "lm_head.weight"}},
       {".attn.bias", ".attn.masked_bias"},
       read_gpt2,
       write_gpt2},
      {"llama",
       "LlamaForCausalLM",
       "model.",
       "model.layers",
       {{token_embedding, "model.embed_tokens.weight"}},
       {{query, "self_attn.q_proj.weight"},
        {query_bias, "self_attn.q_proj.bias"},
        {key, "self_attn.k_proj.weight"},
        {key_bias, "self_attn.k_proj.bias"},
        {value, "self_attn.v_proj.weight"},
        {value_bias, "self_attn.v_proj.bias"},
        {attention_out, "self_attn.o_proj.weight"},
        {attention_out_bias, "self_attn.o_proj.bias"},
        {gate, "mlp.gate_proj.weight"},
        {gate_bias, "mlp.gate_proj.bias"},
        {up, "mlp.up_proj.weight"},
        {up_bias, "mlp.up_proj.bias"},
        {down, "mlp.down_proj.weight"},
        {down_bias, "mlp.down_proj.bias"},
        {attention_norm, "input_layernorm.weight"},
        {mlp_norm, "post_attention_layernorm.weight"}},
       {{final_norm, "model.norm.weight"}, {head, "lm_head.weight"}},
       {".rotary_emb.inv_freq"},
       read_llama,
       write_llama},
  };
  return all;
}

}  // namespace

const Family* find_family(std::string_view type) {
  const auto found = std::find_if(families().begin(), families().end(), [&](const auto& f) { return f.type == type; });
  return found == families().end() ? nullptr : &*found;
}

std::string family_names() {
  std::string names;
  for (const Family& family : families()) names += (names.empty() ? "" : ", ") + std::string(family.type);
  return names;
}

std::vector<std::int64_t> shape_of(const DecoderConfig& c, Weight weight) {
  const std::int64_t queries = c.heads * c.head_dim;
  const std::int64_t keys = c.kv_heads * c.head_dim;
  const auto linear = [&](std::int64_t in, std::int64_t out, bool present) -> std::vector<std::int64_t> {
    if (!present) return {};
    if (c.transposed) return {in, out};
    return {out, in};
  };
  const auto vector = [](std::int64_t size, bool present) -> std::vector<std::int64_t> {
    if (!present) return {};
    return {size};
  };
  const bool split = !c.fused_qkv;
  switch (weight) {
    case Weight::token_embedding:
      return {c.vocab_size, c.hidden};
    case Weight::position_embedding:
      if (c.position != Position::learned) return {};
      return {c.context, c.hidden};
    case Weight::attention_norm:
    case Weight::mlp_norm:
    case Weight::final_norm:
      return {c.hidden};
    case Weight::attention_norm_bias:
    case Weight::mlp_norm_bias:
    case Weight::final_norm_bias:
      return vector(c.hidden, c.norm == Norm::layer);
    case Weight::qkv:
      return linear(c.hidden, queries + 2 * keys, c.fused_qkv);
    case Weight::qkv_bias:
      return vector(queries + 2 * keys, c.fused_qkv && c.attention_bias);
    case Weight::query:
      return linear(c.hidden, queries, split);
    case Weight::query_bias:
      return vector(queries, split && c.attention_bias);
    case Weight::key:
    case Weight::value:
      return linear(c.hidden, keys, split);
    case Weight::key_bias:
    case Weight::value_bias:
      return vector(keys, split && c.attention_bias);
    case Weight::attention_out:
      return linear(queries, c.hidden, true);
    case Weight::attention_out_bias:
      return vector(c.hidden, c.attention_bias);
    case Weight::gate:
      return linear(c.hidden, c.inner, c.gated_mlp);
    case Weight::gate_bias:
      return vector(c.inner, c.gated_mlp && c.mlp_bias);
    case Weight::up:
      return linear(c.hidden, c.inner, true);
    case Weight::up_bias:
      return vector(c.inner, c.mlp_bias);
    case Weight::down:
      return linear(c.inner, c.hidden, true);
    case Weight::down_bias:
      return vector(c.hidden, c.mlp_bias);
    case Weight::head:
      if (c.tied_head) return {};
      return {c.vocab_size, c.hidden};  // out, in also where other linear weights are transposed
    case Weight::count:
      break;
  }
  return {};
}

}  // namespace deepspeed::models
