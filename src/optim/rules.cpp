// SPDX-License-Identifier: Apache-2.0
#include "optim/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/host.h"
#include "optim/params.h"

namespace deepspeed::optim {

namespace {

/// A type that configs may name: its defaults and the parameters it takes.
struct Kind {
  std::string_view name;
  Hyper defaults;
  std::vector<std::string_view> params;
};

const std::vector<Kind>& kinds() {
  const std::vector<std::string_view> adam{
      "lr",          "betas",      "eps",     "weight_decay",  "bias_correction",
      "adam_w_mode", "torch_adam", "amsgrad", "set_grad_none", "fp32_optimizer_states"};
  static const std::vector<Kind> all{
      {"Adam", {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0}, adam},
      {"AdamW", {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0}, adam},
      {"Adagrad",
       {.lr = 1e-2, .beta1 = 0, .beta2 = 0, .eps = 1e-10, .weight_decay = 0},
       {"lr", "eps", "weight_decay", "amsgrad", "fp32_optimizer_states"}},
      {"Lion",
       {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 0, .weight_decay = 0},
       {"lr", "betas", "weight_decay", "fp32_optimizer_states"}},
      {"SGD",
       {.lr = 1e-3, .beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0},
       {"lr", "momentum", "dampening", "weight_decay", "nesterov"}},
  };
  return all;
}

constexpr std::string_view later[] = {"Lamb",   "OneBitAdam", "ZeroOneAdam", "OneBitLamb",
                                      "MuAdam", "MuAdamW",    "MuSGD",       "Muon"};

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const Kind& kind_of(std::string_view type) {
  std::vector<std::string_view> names;
  for (const Kind& kind : kinds()) {
    if (same_name(type, kind.name)) return kind;
    names.push_back(kind.name);
  }
  for (const std::string_view name : later) {
    if (same_name(type, name)) {
      throw base::ConfigError(
          fmt::format("optimizer.type: {} is not supported yet; supported are {}", name, listing(names)));
    }
  }
  throw base::ConfigError(
      fmt::format("optimizer.type: {} is not a supported DeepSpeed Optimizer; supported are {}", type, listing(names)));
}

/// The parameters, once every name among them is known.
Params checked_params(const Kind& kind, const nlohmann::json& values) {
  Params params(values, "optimizer.params");
  if (params.find("max_grad_norm") != nullptr) {
    throw base::ConfigError(
        "'max_grad_norm' is not supported as an optimizer parameter, please switch to using the deepspeed parameter "
        "'gradient_clipping' see: https://www.deepspeed.ai/docs/config-json/#gradient-clipping for more details");
  }
  if (const auto key = params.unknown(kind.params)) {
    params.refuse(*key, fmt::format("{} has no such parameter; it takes {}", kind.name, listing(kind.params)));
  }
  if (params.flag("amsgrad", false)) {
    params.refuse("amsgrad", fmt::format("{} does not support the AMSGrad variant", kind.name));
  }
  return params;
}

/// A rule of kernels::update. Coefficients are formed in double and rounded once: 1 - beta2 from a rounded beta2 would
/// be off by 5e-5 of itself.
class ElementwiseRule final : public UpdateRule {
 public:
  ElementwiseRule(std::string name, kernels::Rule rule, std::vector<StateSpec> states)
      : name_(std::move(name)), rule_(rule), states_(std::move(states)) {}

  const std::string& name() const override { return name_; }
  std::vector<StateSpec> states() const override { return states_; }

  void update(const Piece& piece, const Hyper& hyper, std::int64_t step, float gradient_scale) override {
    kernels::UpdateStep s;
    s.gradient_scale = gradient_scale;
    s.beta1 = static_cast<float>(hyper.beta1);
    s.alpha1 = static_cast<float>(1 - hyper.beta1);
    s.beta2 = static_cast<float>(hyper.beta2);
    s.alpha2 = static_cast<float>(1 - hyper.beta2);
    s.eps = static_cast<float>(hyper.eps);
    s.l2 = static_cast<float>(hyper.weight_decay);
    s.decay = static_cast<float>(-hyper.lr * hyper.weight_decay);
    double rate = hyper.lr;
    if (bias_correction) {
      const auto t = static_cast<double>(step);
      rate /= 1 - std::pow(hyper.beta1, t);
      s.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(hyper.beta2, t)));
    }
    s.negative_rate = static_cast<float>(-rate);
    // The first gradient fills SGD's momentum undamped.
    if (momentum) s.alpha1 = step == 1 ? 1.0f : static_cast<float>(1 - dampening);
    kernels::update(rule_, {piece.master, piece.gradient, piece.states, piece.working}, s);
  }

  bool bias_correction = false;
  bool momentum = false;
  double dampening = 0;

 private:
  std::string name_;
  kernels::Rule rule_;
  std::vector<StateSpec> states_;
};

void check_range(const Params& params, std::string_view key, double value, double limit) {
  if (!(value >= 0 && value < limit)) {
    params.refuse(key, limit == 1 ? fmt::format("{} is outside [0, 1)", value)
                                  : fmt::format("{} isn't a finite number >= 0", value));
  }
}

}  // namespace

std::unique_ptr<UpdateRule> make_rule(std::string_view type, const nlohmann::json& values) {
  const Kind& kind = kind_of(type);
  const Params params = checked_params(kind, values);
  const Dtype state = params.flag("fp32_optimizer_states", true) ? Dtype::f32 : Dtype::bf16;
  const std::string name(kind.name);
  const StateSpec first{"exp_avg", state}, second{"exp_avg_sq", state};
  if (name == "Adagrad") {
    return std::make_unique<ElementwiseRule>(name, kernels::adagrad, std::vector<StateSpec>{second});
  }
  if (name == "Lion") return std::make_unique<ElementwiseRule>(name, kernels::lion, std::vector<StateSpec>{first});
  if (name == "SGD") {
    const bool momentum = params.number("momentum", 0) != 0;
    const bool nesterov = params.flag("nesterov", false);
    const double dampening = params.number("dampening", 0);
    if (nesterov && (!momentum || dampening != 0)) {
      params.refuse("nesterov", "Nesterov momentum requires a momentum and zero dampening");
    }
    if (!momentum) return std::make_unique<ElementwiseRule>(name, kernels::sgd, std::vector<StateSpec>{});
    auto rule = std::make_unique<ElementwiseRule>(name, nesterov ? kernels::sgd_nesterov : kernels::sgd_momentum,
                                                  std::vector<StateSpec>{{"momentum_buffer", Dtype::f32}});
    rule->momentum = true;
    rule->dampening = dampening;
    return rule;
  }
  const bool decoupled = name == "AdamW" || params.flag("adam_w_mode", true);
  auto rule = std::make_unique<ElementwiseRule>(name, decoupled ? kernels::adamw : kernels::adam,
                                                std::vector<StateSpec>{first, second});
  rule->bias_correction = params.flag("bias_correction", true);
  return rule;
}

Hyper hyper_from(std::string_view type, const nlohmann::json& values) {
  const Kind& kind = kind_of(type);
  const Params params = checked_params(kind, values);
  Hyper hyper = kind.defaults;
  const bool adam = kind.name == "Adam" || kind.name == "AdamW";
  // torch's AdamW, which torch_adam stands for, decays by default.
  if (adam && params.flag("torch_adam", false) && (kind.name == "AdamW" || params.flag("adam_w_mode", true))) {
    hyper.weight_decay = 0.01;
  }
  hyper.lr = params.number("lr", hyper.lr);
  hyper.eps = params.number("eps", hyper.eps);
  hyper.weight_decay = params.number("weight_decay", hyper.weight_decay);
  hyper.beta1 = params.number("momentum", hyper.beta1);
  if (const auto* betas = params.find("betas")) {
    const bool pair = betas->is_array() && betas->size() == 2 && (*betas)[0].is_number() && (*betas)[1].is_number();
    if (!pair) params.refuse("betas", fmt::format("{} isn't a list of two numbers", betas->dump()));
    hyper.beta1 = (*betas)[0].get<double>();
    hyper.beta2 = (*betas)[1].get<double>();
    check_range(params, "betas", hyper.beta1, 1);
    check_range(params, "betas", hyper.beta2, 1);
  }
  check_range(params, "lr", hyper.lr, INFINITY);
  check_range(params, "eps", hyper.eps, INFINITY);
  check_range(params, "weight_decay", hyper.weight_decay, INFINITY);
  check_range(params, "momentum", hyper.beta1, INFINITY);
  return hyper;
}

}  // namespace deepspeed::optim
