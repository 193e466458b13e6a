// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "nn/activation.h"
#include "nn/products.h"

namespace deepspeed::models {
namespace {

using at::Tensor;

constexpr std::int64_t ignored_label = -100;

/// The module at a dotted path below `root`; what is missing is registered.
torch::nn::Module& module_at(torch::nn::Module& root, std::string_view path) {
  torch::nn::Module* module = &root;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    const std::string name(part);
    const auto children = module->named_children();
    const auto* found = children.find(name);
    module = found ? found->get() : module->register_module(name, std::make_shared<torch::nn::Module>(name)).get();
  }
  return *module;
}

Tensor linear(const DecoderConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return nn::linear(x, weight, bias, config.transposed);
}

Tensor norm(const DecoderConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (config.norm == Norm::rms) return at::rms_norm(x, {config.hidden}, weight, config.norm_eps);
  return at::layer_norm(x, {config.hidden}, weight, bias, config.norm_eps);
}

Tensor activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return nn::gelu_tanh(x);
    case Activation::silu:
      return at::silu(x);
    case Activation::relu:
      return at::relu(x);
  }
  return {};
}

/// The same as `attend` with all probabilities in memory, each head by plain matrix products.
Tensor attend_unfused(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, double scale) {
  const std::int64_t positions = q.size(2);
  const auto joined = [&](const Tensor& t) { return t.reshape({-1, positions, t.size(3)}); };
  const Tensor later = at::full({positions, positions}, -std::numeric_limits<double>::infinity(), q.options()).triu(1);
  const Tensor scores = nn::batch_product(joined(q) * scale, joined(k).transpose(1, 2)).add_(later);
  const Tensor chosen = at::dropout(at::softmax(scores, -1), dropout, dropout > 0.0);
  return nn::batch_product(chosen, joined(v)).view(q.sizes());
}

/// softmax(q k^T * scale) v over earlier positions (and where `mask` allows); q [batch, heads, positions, head_dim],
/// k and v with as many heads or a divisor of that, each shared by neighbours. The one place that chooses the kernel.
Tensor attend(const Tensor& q, Tensor k, Tensor v, const Tensor& mask, double dropout, double scale) {
  bool grouped = q.size(1) != k.size(1);
  if (grouped && q.is_cpu()) {
    // The CPU's fused kernel takes equal head counts only: without this it is the unfused one, half as quick.
    const std::int64_t sharing = q.size(1) / k.size(1);
    const auto repeat = [&](const Tensor& t) { return t.unsqueeze(2).expand({-1, -1, sharing, -1, -1}).flatten(1, 2); };
    k = repeat(k);
    v = repeat(v);
    grouped = false;
  }
  // The CPU's fused kernel gains nothing from bf16, and its fp32 products are MKL's: plain products take half the time
  // or less (8 x 256 positions, 6 heads of 64). Beyond this length their memory outweighs it.
  constexpr std::int64_t longest_unfused = 512;
  const bool plain_type = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kFloat;
  if (q.is_cpu() && plain_type && !mask.defined() && q.size(2) <= longest_unfused)
    return attend_unfused(q, k, v, dropout, scale);
  return at::scaled_dot_product_attention(q, k, v, mask.defined() ? std::optional<Tensor>(mask) : std::nullopt, dropout,
                                          /*is_causal=*/!mask.defined(), scale, /*enable_gqa=*/grouped);
}

/// Turns the pairs (x_i, x_{i + head_dim/2}) by the angles of the tables.
Tensor rotate(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const std::int64_t half = x.size(-1) / 2;
  const Tensor turned = at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  return x * cosine + turned * sine;
}

/// Radians a position for each pair of a head, fp32 [head_dim / 2].
Tensor rotary_frequencies(const Rotary& rotary, std::int64_t head_dim) {
  const Tensor exponents =
      at::arange(0, head_dim, 2, at::TensorOptions().dtype(at::kLong)).to(at::kFloat) / static_cast<double>(head_dim);
  const Tensor plain = 1.0 / at::pow(rotary.theta, exponents);
  switch (rotary.scaling) {
    case Rotary::Scaling::none:
      return plain;
    case Rotary::Scaling::linear:
      return plain / rotary.factor;
    case Rotary::Scaling::llama3:
      break;
  }
  // Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended.
  const auto original = static_cast<double>(rotary.original_context);
  const Tensor wavelength = 2.0 * std::numbers::pi / plain;
  const double range = rotary.high_frequency_factor - rotary.low_frequency_factor;
  const Tensor smooth = (original / wavelength - rotary.low_frequency_factor) / range;
  const Tensor blended = (1.0 - smooth) * plain / rotary.factor + smooth * plain;
  const Tensor slow = wavelength > original / rotary.low_frequency_factor;
  const Tensor quick = wavelength < original / rotary.high_frequency_factor;
  return at::where(slow, plain / rotary.factor, at::where(quick, plain, blended));
}

/// Which keys a query may see: bool [batch, 1, positions, positions].
Tensor visible_keys(const Tensor& attention_mask, std::int64_t positions) {
  const auto options = at::TensorOptions().dtype(at::kBool).device(attention_mask.device());
  const Tensor causal = at::ones({positions, positions}, options).tril();
  return causal.logical_and(attention_mask.to(at::kBool).view({-1, 1, 1, positions}));
}

Tensor causal_loss(const Tensor& logits, const Tensor& labels) {
  const std::int64_t positions = logits.size(1);
  Tensor targets = labels.narrow(1, 1, labels.size(1) - 1);
  if (labels.size(1) == positions) targets = at::constant_pad_nd(targets, {0, 1}, ignored_label);
  return at::cross_entropy_loss(logits.to(at::kFloat).view({-1, logits.size(-1)}), targets.to(at::kLong).reshape({-1}),
                                {}, at::Reduction::Mean, ignored_label);
}

}  // namespace

void Weights::declare(torch::nn::Module& module, const std::string& path, const DecoderConfig& config,
                      const std::vector<WeightName>& names, const Fill& fill) {
  const at::NoGradGuard no_grad;
  for (const auto& [weight, name] : names) {
    const std::vector<std::int64_t> shape = shape_of(config, weight);
    if (shape.empty()) continue;
    const std::size_t dot = name.rfind('.');
    torch::nn::Module& owner = dot == std::string_view::npos ? module : module_at(module, name.substr(0, dot));
    at::Tensor& parameter = tensors_[static_cast<std::size_t>(weight)];
    parameter = owner.register_parameter(std::string(name.substr(dot + 1)), at::empty(shape, at::kFloat));
    if (fill) fill(path + std::string(name), weight, parameter);
  }
}

Fill initial_values(const DecoderConfig& config, std::uint64_t seed) {
  const double range = config.initializer_range;
  const double scaled =
      config.scaled_residual_init ? range / std::sqrt(2.0 * static_cast<double>(config.layers)) : range;
  return [=, padding = config.padding_id](const std::string& name, Weight weight, at::Tensor& parameter) {
    if (parameter.dim() == 1) {
      parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0);
      return;
    }
    const bool residual = weight == Weight::attention_out || weight == Weight::down;
    const at::Generator generator =
        at::make_generator<at::CPUGeneratorImpl>(XXH3_64bits_withSeed(name.data(), name.size(), seed));
    parameter.normal_(0.0, residual ? scaled : range, generator);
    if (weight == Weight::token_embedding && padding >= 0) parameter.select(0, padding).zero_();
  };
}

DecoderBlock::DecoderBlock(std::shared_ptr<const DecoderConfig> config, const Family& family, std::int64_t layer,
                           const Fill& fill)
    : config_(std::move(config)), layer_(layer) {
  weights_.declare(*this, fmt::format("{}.{}.", family.blocks, layer), *config_, family.block, fill);
}

Tensor DecoderBlock::attention(const Tensor& x, const Tensors& inputs) const {
  const DecoderConfig& c = *config_;
  const std::int64_t batch = x.size(0);
  const std::int64_t positions = x.size(1);
  const auto heads = [&](const Tensor& t, std::int64_t count) {
    return t.view({batch, positions, count, c.head_dim}).transpose(1, 2);
  };
  Tensor q, k, v;
  if (c.fused_qkv) {
    const Tensor qkv = linear(c, x, weights_[Weight::qkv], weights_[Weight::qkv_bias]);
    const std::int64_t queries = c.heads * c.head_dim;
    const std::int64_t keys = c.kv_heads * c.head_dim;
    const std::vector<Tensor> parts = qkv.split_with_sizes({queries, keys, keys}, -1);
    q = heads(parts[0], c.heads);
    k = heads(parts[1], c.kv_heads);
    v = heads(parts[2], c.kv_heads);
  } else {
    q = heads(linear(c, x, weights_[Weight::query], weights_[Weight::query_bias]), c.heads);
    k = heads(linear(c, x, weights_[Weight::key], weights_[Weight::key_bias]), c.kv_heads);
    v = heads(linear(c, x, weights_[Weight::value], weights_[Weight::value_bias]), c.kv_heads);
  }
  if (c.position == Position::rotary) {
    q = rotate(q, inputs[2], inputs[3]);
    k = rotate(k, inputs[2], inputs[3]);
  }
  double scale = c.scale_attention ? 1.0 / std::sqrt(static_cast<double>(c.head_dim)) : 1.0;
  if (c.scale_by_layer) scale /= static_cast<double>(layer_ + 1);
  const Tensor mixed =
      attend(q, std::move(k), std::move(v), inputs[1], is_training() ? c.attention_dropout : 0.0, scale);
  const Tensor joined = mixed.transpose(1, 2).reshape({batch, positions, c.heads * c.head_dim});
  return linear(c, joined, weights_[Weight::attention_out], weights_[Weight::attention_out_bias]);
}

Tensor DecoderBlock::mlp(const Tensor& x) const {
  const DecoderConfig& c = *config_;
  Tensor h = linear(c, x, weights_[Weight::up], weights_[Weight::up_bias]);
  if (c.gated_mlp) {
    h = activate(c.activation, linear(c, x, weights_[Weight::gate], weights_[Weight::gate_bias])) * h;
  } else {
    h = activate(c.activation, h);
  }
  return linear(c, h, weights_[Weight::down], weights_[Weight::down_bias]);
}

nn::Unit::Tensors DecoderBlock::compute(const Tensors& inputs) {
  const DecoderConfig& c = *config_;
  const auto dropped = [&](const Tensor& t) { return at::dropout(t, c.residual_dropout, is_training()); };
  Tensor x = inputs[0];
  x = x +
      dropped(attention(norm(c, x, weights_[Weight::attention_norm], weights_[Weight::attention_norm_bias]), inputs));
  x = x + dropped(mlp(norm(c, x, weights_[Weight::mlp_norm], weights_[Weight::mlp_norm_bias])));
  return {x};
}

DecoderPart::DecoderPart(std::shared_ptr<const DecoderConfig> config, const std::string& path,
                         const std::vector<WeightName>& names, const Fill& fill)
    : config_(std::move(config)) {
  weights_.declare(*this, path, *config_, names, fill);
}

nn::Unit::Tensors TokenEmbedding::compute(const Tensors& inputs) {
  return {at::embedding(table(), inputs[0], config_->padding_id, /*scale_grad_by_freq=*/false, sparse_gradients())};
}

nn::Unit::Tensors PositionEmbedding::compute(const Tensors& inputs) {
  return {inputs[0] + weights_[Weight::position_embedding].narrow(0, 0, inputs[0].size(1)).unsqueeze(0)};
}

nn::Unit::Tensors FinalNorm::compute(const Tensors& inputs) {
  return {norm(*config_, inputs[0], weights_[Weight::final_norm], weights_[Weight::final_norm_bias])};
}

void Head::tie(const Tensor& table) {
  tied_ = table;
  add_external_parameter(table);
}

nn::Unit::Tensors Head::compute(const Tensors& inputs) {
  const Tensor logits =
      nn::linear(inputs[0], tied_.defined() ? tied_ : weights_[Weight::head], {}, /*transposed=*/false);
  return {logits, inputs[1].defined() ? causal_loss(logits, inputs[1]) : Tensor()};
}

Decoder::Decoder(DecoderConfig config, const Fill& fill)
    : config_(std::make_shared<const DecoderConfig>(std::move(config))) {
  const Family& family = *find_family(config_->family);
  // The weights of a part are those of one module: "transformer.ln_f.weight" and "transformer.ln_f.bias".
  const auto add = [&]<class Part>(std::shared_ptr<Part>& part, const std::vector<WeightName>& names, Weight first,
                                   Weight second) {
    std::string path;
    std::vector<WeightName> own;
    for (const auto& [weight, name] : names) {
      if (weight != first && weight != second) continue;
      const std::size_t dot = name.rfind('.');
      path = name.substr(0, dot);
      own.push_back({weight, name.substr(dot + 1)});
    }
    const std::size_t dot = path.rfind('.');
    torch::nn::Module& owner = dot == std::string::npos ? *this : module_at(*this, path.substr(0, dot));
    part = owner.register_module(path.substr(dot + 1), std::make_shared<Part>(config_, path + ".", own, fill));
  };
  add(tokens_, family.before, Weight::token_embedding, Weight::token_embedding);
  if (config_->position == Position::learned)
    add(positions_, family.before, Weight::position_embedding, Weight::position_embedding);
  torch::nn::Module& blocks = module_at(*this, family.blocks);
  for (std::int64_t layer = 0; layer < config_->layers; ++layer)
    blocks_.push_back(
        blocks.register_module(std::to_string(layer), std::make_shared<DecoderBlock>(config_, family, layer, fill)));
  add(final_norm_, family.after, Weight::final_norm, Weight::final_norm_bias);
  add(head_, family.after, Weight::head, Weight::head);
  if (config_->tied_head) head_->tie(tokens_->table());
}

void Decoder::rotary_tables(std::int64_t positions, const Tensor& like, Tensor& cosine, Tensor& sine) {
  if (!cosine_.defined() || cosine_.size(0) < positions || cosine_.options().dtype() != like.options().dtype() ||
      cosine_.device() != like.device()) {
    const at::NoGradGuard no_grad;
    const Tensor angles =
        at::outer(at::arange(positions, at::kFloat), rotary_frequencies(config_->rotary, config_->head_dim));
    const Tensor both = at::cat({angles, angles}, -1);
    cosine_ = both.cos().to(like.options());
    sine_ = both.sin().to(like.options());
  }
  cosine = cosine_.narrow(0, 0, positions);
  sine = sine_.narrow(0, 0, positions);
}

template <class Visit>
Tensor Decoder::backbone(const Tensor& input_ids, const Tensor& attention_mask, Visit visit) {
  const DecoderConfig& c = *config_;
  if (!input_ids.defined() || input_ids.dim() != 2 ||
      (input_ids.scalar_type() != at::kLong && input_ids.scalar_type() != at::kInt))
    throw base::DataError("input_ids must be whole numbers of shape [batch, positions]");
  const std::int64_t positions = input_ids.size(1);
  if (positions < 1 || positions > c.context)
    throw base::DataError(fmt::format("input_ids hold {} positions: this model takes 1 to {}", positions, c.context));
  if (attention_mask.defined() && attention_mask.sizes() != input_ids.sizes())
    throw base::DataError("attention_mask must have the shape of input_ids");

  Tensor x = tokens_->run({input_ids})[0];
  if (positions_) x = positions_->run({x})[0];
  x = at::dropout(x, c.embedding_dropout, is_training());
  nn::Unit::Tensors inputs(4);
  if (attention_mask.defined()) inputs[1] = visible_keys(attention_mask, positions);
  if (c.position == Position::rotary) rotary_tables(positions, x, inputs[2], inputs[3]);
  for (const auto& block : blocks_) {
    visit(x);
    inputs[0] = std::move(x);
    x = std::move(block->run(inputs)[0]);
  }
  x = final_norm_->run({x})[0];
  visit(x);
  return x;
}

Output Decoder::forward(const Tensor& input_ids, const Tensor& labels, const Tensor& attention_mask) {
  if (labels.defined()) {
    const std::int64_t positions = input_ids.size(1);
    if (labels.dim() != 2 || labels.size(0) != input_ids.size(0) ||
        (labels.size(1) != positions && labels.size(1) != positions + 1))
      throw base::DataError("labels must have the shape of input_ids, or one position more");
  }
  const Tensor x = backbone(input_ids, attention_mask, [](const Tensor&) {});
  nn::Unit::Tensors outputs = head_->run({x, labels});
  return {std::move(outputs[0]), std::move(outputs[1])};
}

std::vector<Tensor> Decoder::hidden_states(const Tensor& input_ids, const Tensor& attention_mask) {
  std::vector<Tensor> states;
  backbone(input_ids, attention_mask, [&](const Tensor& x) { states.push_back(x); });
  return states;
}

double Decoder::flops_per_token(std::int64_t sequence) const {
  const DecoderConfig& c = *config_;
  return 6.0 * static_cast<double>(parameter_count(c)) + 6.0 * static_cast<double>(c.layers) *
                                                             static_cast<double>(c.heads * c.head_dim) *
                                                             static_cast<double>(sequence);
}

}  // namespace deepspeed::models
