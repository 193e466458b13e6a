// SPDX-License-Identifier: Apache-2.0
// Models of every shape of graph, trained at every stage with and without recomputation, beside plain autograd in one
// process that sees the data of all ranks.
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include <unordered_set>

#include "comm/group.h"
#include "engine/training_case.h"

namespace deepspeed::engine::testing {
namespace {

constexpr std::int64_t width = 4;
constexpr double rate = 0.5;
constexpr int steps = 3;

/// Numbers that look random and are the same everywhere.
at::Tensor numbers(at::IntArrayRef sizes, int seed) {
  at::Tensor t = at::ones(sizes, at::kFloat).flatten().cumsum(0);
  return ((t * (0.7 + seed)).sin() * 0.5).view(sizes).contiguous();
}

struct Layer : nn::Unit {
  at::Tensor w, b;
  explicit Layer(int seed, at::Tensor shared = {}) {
    w = register_parameter("w", shared.defined() ? shared : numbers({width, width}, seed));
    b = register_parameter("b", numbers({width}, seed + 1));
  }
  Tensors compute(const Tensors& inputs) override { return {at::tanh(at::matmul(inputs[0], w) + b)}; }
  at::Tensor operator()(const at::Tensor& x) { return run({x})[0]; }
};

struct Model : torch::nn::Module {
  /// One loss for each backward of a step. `odd`: of this rank and step together, for models whose path depends on it.
  virtual std::vector<at::Tensor> losses(const at::Tensor& x, bool odd) = 0;
  virtual bool retains() const { return false; }

 protected:
  std::shared_ptr<Layer> layer(const std::string& name, int seed, at::Tensor shared = {}) {
    return register_module(name, std::make_shared<Layer>(seed, std::move(shared)));
  }
};

struct NoUnits : Model {
  at::Tensor w = register_parameter("w", numbers({width, width}, 1));
  at::Tensor none = register_parameter("none", at::ones({0}));
  at::Tensor scalar = register_parameter("scalar", at::ones({}));
  at::Tensor one = register_parameter("one", at::ones({1}));
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override {
    return {(at::tanh(at::matmul(x, w)) * scalar + one).sum() + none.sum()};
  }
};

struct Chain : Model {
  std::shared_ptr<Layer> first = layer("first", 1);
  std::shared_ptr<Layer> second = layer("second", 2);
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override { return {(*second)((*first)(x)).sum()}; }
};

struct TinyInUnit : Model {
  struct Tiny : nn::Unit {
    at::Tensor none = register_parameter("none", at::ones({0, 3}));
    at::Tensor scalar = register_parameter("scalar", at::ones({}));
    at::Tensor one = register_parameter("one", at::ones({1}));
    Tensors compute(const Tensors& inputs) override { return {inputs[0] * scalar + one + none.sum()}; }
  };
  std::shared_ptr<Tiny> tiny = register_module("tiny", std::make_shared<Tiny>());
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override { return {tiny->run({x})[0].tanh().sum()}; }
};

struct TiedInTwoUnits : Model {
  std::shared_ptr<Layer> first = layer("first", 1);
  std::shared_ptr<Layer> middle = layer("middle", 3);
  std::shared_ptr<Layer> last = layer("last", 2, first->w);
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override { return {(*last)((*middle)((*first)(x))).sum()}; }
};

struct TiedWithRoot : Model {
  at::Tensor w = register_parameter("w", numbers({width, width}, 1));
  std::shared_ptr<Layer> first = layer("first", 2, w);
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override { return {at::matmul((*first)(x), w).sum()}; }
};

struct UsesAnothers : Model {
  struct Head : nn::Unit {
    at::Tensor other;
    explicit Head(const at::Tensor& w) : other(w) { add_external_parameter(w); }
    Tensors compute(const Tensors& inputs) override { return {at::matmul(inputs[0], other).sin()}; }
  };
  std::shared_ptr<Layer> first = layer("first", 1);
  std::shared_ptr<Layer> middle = layer("middle", 2);
  std::shared_ptr<Head> head = register_module("head", std::make_shared<Head>(first->w));
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override {
    return {head->run({(*middle)((*first)(x))})[0].sum()};
  }
};

struct CalledTwice : Model {
  std::shared_ptr<Layer> first = layer("first", 1);
  std::shared_ptr<Layer> second = layer("second", 2);
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override {
    return {(*second)((*first)((*second)((*first)(x)))).sum() + (*first)(2 * x).sum()};
  }
};

struct Unused : Chain {
  std::shared_ptr<Layer> never = layer("never", 3);
};

struct Frozen : Chain {
  std::shared_ptr<Layer> last = layer("last", 3);
  Frozen() {
    first->w.requires_grad_(false);
    first->b.requires_grad_(false);
    second->w.requires_grad_(false);
  }
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override {
    return {(*first)((*last)((*second)((*first)(x)))).sum()};
  }
};

struct BackwardTwice : Chain {
  bool retains() const override { return true; }
};

struct TwoLosses : Chain {
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override {
    return {(*second)((*first)(x)).sum(), (*first)(3 * x).pow(2).sum()};
  }
};

struct Integers : Model {
  struct Table : nn::Unit {
    at::Tensor w = register_parameter("w", numbers({5, width}, 1));
    Tensors compute(const Tensors& inputs) override { return {at::embedding(w, inputs[0])}; }
  };
  std::shared_ptr<Table> table = register_module("table", std::make_shared<Table>());
  std::shared_ptr<Layer> last = layer("last", 2);
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override {
    const at::Tensor ids = at::remainder((x * 100).to(at::kLong).abs(), 5).flatten();
    return {(*last)(table->run({ids})[0]).sum()};
  }
};

struct ManyOutputs : Model {
  struct Fork : nn::Unit {
    at::Tensor v = register_parameter("v", numbers({width}, 1));
    at::Tensor w = register_parameter("w", numbers({width}, 2));
    Tensors compute(const Tensors& inputs) override { return {inputs[0] * v, at::Tensor(), inputs[0] * w}; }
  };
  std::shared_ptr<Fork> fork = register_module("fork", std::make_shared<Fork>());
  std::vector<at::Tensor> losses(const at::Tensor& x, bool) override { return {fork->run({x})[0].tanh().sum()}; }
};

/// Case C11: which units run depends on the rank and the step.
struct Paths : Model {
  std::shared_ptr<Layer> a = layer("a", 1);
  std::shared_ptr<Layer> b = layer("b", 2);
  std::shared_ptr<Layer> c = layer("c", 3);
  std::shared_ptr<Layer> d = layer("d", 4);
  std::vector<at::Tensor> losses(const at::Tensor& x, bool odd) override {
    const at::Tensor y = (*a)(x);
    return {(*d)(odd ? (*b)(y) : y).sum()};
  }
};

/// Not even the order is the same.
struct Orders : Paths {
  std::vector<at::Tensor> losses(const at::Tensor& x, bool odd) override {
    return {(odd ? (*a)((*b)((*c)(x))) : (*c)((*b)((*a)(x)))).sum()};
  }
};

at::Tensor data(int step, int rank) {
  return numbers({3, width}, 7 * step + rank);
}

bool odd(int step, int rank) {
  return (step + rank) % 2 == 1;
}

std::vector<float> flat(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<float> all;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor row = tensor.contiguous();
    const auto* values = static_cast<const float*>(row.data_ptr());
    all.insert(all.end(), values, values + row.numel());
  }
  return all;
}

std::vector<float> reference(Model& model) {
  const int ranks = world()->size();
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const at::Tensor& loss : model.losses(data(step, rank), odd(step, rank))) {
        loss.backward({}, model.retains());
        if (model.retains()) loss.backward();
      }
    }
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model.parameters()) {
      if (!p.grad().defined()) continue;
      p.sub_(p.grad() / ranks, rate);
      p.mutable_grad().reset();
    }
  }
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) tensors.emplace_back(item.key(), item.value().detach());
  }
  return flat(tensors);
}

std::vector<float> trained(const std::shared_ptr<Model>& model, int stage, const nlohmann::json& more) {
  nlohmann::json config{{"train_micro_batch_size_per_gpu", 1},
                        {"optimizer", {{"type", "SGD"}, {"params", {{"lr", rate}}}}},
                        {"gradient_clipping", 0},
                        {"zero_optimization", {{"stage", stage}, {"overlap_comm", true}}}};
  config.merge_patch(more);
  auto engine = engine_for(model, config);
  const int rank = world()->rank();
  for (int step = 0; step < steps; ++step) {
    const auto losses = engine->forward([&] { return model->losses(data(step, rank), odd(step, rank)); });
    for (const at::Tensor& loss : losses) {
      engine->backward(loss, model->retains());
      if (model->retains()) engine->backward(loss);
    }
    engine->step();
  }
  return flat(engine->module_state_dict());
}

template <class M>
std::shared_ptr<Model> make() {
  return std::make_shared<M>();
}

struct Shape {
  const char* name;
  std::shared_ptr<Model> (*make)();
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

class GraphRanks : public ::testing::TestWithParam<Shape> {};

TEST_P(GraphRanks, EveryStageEqualsPlainAutograd) {
  const std::vector<float> want = reference(*GetParam().make());
  const nlohmann::json let_go_at_once{{"zero_optimization", {{"stage3_max_reuse_distance", 0}}}};
  const nlohmann::json in_order{{"zero_optimization", {{"overlap_comm", false}, {"reduce_bucket_size", 3}}}};
  const nlohmann::json recomputed{{"training", {{"activation_checkpointing", true}}}};
  for (const int stage : {0, 1, 2, 3}) {
    for (const nlohmann::json& more : {nlohmann::json::object(), let_go_at_once, in_order, recomputed}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " " + more.dump());
      const std::vector<float> got = trained(GetParam().make(), stage, more);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GraphRanks,
                         ::testing::Values(Shape{"NoUnits", make<NoUnits>}, Shape{"Chain", make<Chain>},
                                           Shape{"TinyInUnit", make<TinyInUnit>},
                                           Shape{"TiedInTwoUnits", make<TiedInTwoUnits>},
                                           Shape{"TiedWithRoot", make<TiedWithRoot>},
                                           Shape{"UsesAnothers", make<UsesAnothers>},
                                           Shape{"CalledTwice", make<CalledTwice>}, Shape{"Unused", make<Unused>},
                                           Shape{"Frozen", make<Frozen>}, Shape{"BackwardTwice", make<BackwardTwice>},
                                           Shape{"TwoLosses", make<TwoLosses>}, Shape{"Integers", make<Integers>},
                                           Shape{"ManyOutputs", make<ManyOutputs>}, Shape{"C11Paths", make<Paths>},
                                           Shape{"C11Orders", make<Orders>}),
                         [](const auto& shape) { return shape.param.name; });

}  // namespace
}  // namespace deepspeed::engine::testing
