// SPDX-License-Identifier: Apache-2.0
#include "nn/unit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <string>

namespace deepspeed::nn {
namespace {

using Tensors = Unit::Tensors;
using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A unit whose arithmetic the test gives.
struct Lambda : Unit {
  using Compute = std::function<Tensors(const Lambda&, const Tensors&)>;
  Compute body;
  explicit Lambda(Compute compute_body) : body(std::move(compute_body)) {}
  Tensors compute(const Tensors& inputs) override { return body(*this, inputs); }
  Tensor w(const std::string& name) const { return named_parameters()[name]; }
  std::shared_ptr<Lambda> with(const std::string& name, at::IntArrayRef shape, bool trainable = true) {
    register_parameter(name, at::randn(shape) * 0.3, trainable);
    return std::static_pointer_cast<Lambda>(shared_from_this());
  }
};

std::shared_ptr<Lambda> make(Lambda::Compute body) {
  return std::make_shared<Lambda>(std::move(body));
}

/// linear, gelu, linear, residual, dropout: with a bias that is never used.
std::shared_ptr<Lambda> mlp(double dropout = 0.0) {
  return make([dropout](const Lambda& u, const Tensors& in) -> Tensors {
           const Tensor h = at::gelu(at::linear(in[0], u.w("up"), u.w("bias")));
           return {in[0] + at::dropout(at::linear(h, u.w("down")), dropout, u.is_training())};
         })
      ->with("up", {12, 6})
      ->with("bias", {12})
      ->with("down", {6, 12})
      ->with("unused", {3});
}

enum class How { plain, unit, checkpointed };

Tensors apply(Unit& unit, const Tensors& inputs, How how) {
  unit.set_checkpointing(how == How::checkpointed);
  return how == How::plain ? unit.compute(inputs) : unit.run(inputs);
}

bool same(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return at::equal(a, b);
}

void clear(const torch::nn::Module& module) {
  for (const Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

/// Runs `step` in all three ways from the same random state; its results, the gradients of `module`, and the random
/// state afterwards must be the same bits.
void expect_same_bits(const std::shared_ptr<torch::nn::Module>& module, const std::function<Tensors(How)>& step) {
  std::vector<Tensors> seen;
  for (const How how : {How::plain, How::unit, How::checkpointed}) {
    clear(*module);
    at::manual_seed(7);
    Tensors values = step(how);
    values.push_back(at::rand({4}));  // where the generator stands now
    for (const Tensor& parameter : module->parameters()) values.push_back(parameter.grad());
    for (Tensor& value : values) {
      if (value.defined()) value = value.detach().clone();
    }
    seen.push_back(std::move(values));
  }
  for (std::size_t way = 1; way < seen.size(); ++way) {
    ASSERT_EQ(seen[way].size(), seen[0].size());
    for (std::size_t i = 0; i < seen[0].size(); ++i)
      EXPECT_TRUE(same(seen[0][i], seen[way][i])) << "way " << way << ", tensor " << i;
  }
}

TEST(Unit, SameBitsAsPlainAutograd) {
  const auto unit = mlp();
  const Tensor data = at::randn({5, 6});
  expect_same_bits(unit, [&](How how) -> Tensors {
    Tensor x = data.clone().requires_grad_(true);
    const Tensor y = apply(*unit, {x * 2}, how)[0];
    const Tensor loss = y.pow(2).sum();
    loss.backward();
    EXPECT_FALSE(unit->w("unused").grad().defined());
    EXPECT_TRUE(unit->w("up").grad().defined());
    return {y, loss, x.grad()};
  });
}

TEST(Unit, DropoutIsReplayedAndTheGeneratorEndsWhereItWould) {  // C26
  const auto model = std::make_shared<torch::nn::Module>();
  const auto a = model->register_module("a", mlp(0.5));
  const auto b = model->register_module("b", mlp(0.5));
  const Tensor data = at::randn({5, 6});
  expect_same_bits(model, [&](How how) -> Tensors {  // the first block's input needs no gradient
    const Tensor loss = apply(*b, apply(*a, {data}, how), how)[0].pow(2).sum();
    loss.backward();
    return {loss};
  });
  at::manual_seed(7);
  const Tensor other = at::dropout(data, 0.5, true);
  EXPECT_FALSE(at::equal(other, at::dropout(data, 0.5, true)));  // the masks do differ from draw to draw
}

TEST(Unit, TwentyStepsWithDropout) {  // C26
  const Tensor data = at::randn({5, 6});
  std::vector<Tensors> curves;
  for (const How how : {How::plain, How::unit, How::checkpointed}) {
    at::manual_seed(11);
    const auto a = mlp(0.5);
    const auto b = mlp(0.5);
    Tensors curve;
    for (int step = 0; step < 20; ++step) {
      const Tensor loss = apply(*b, apply(*a, {data}, how), how)[0].pow(2).mean();
      loss.backward();
      curve.push_back(loss.detach());
      const at::NoGradGuard no_grad;
      for (const auto& unit : {a, b}) {
        for (const Tensor& p : unit->parameters()) {
          if (p.grad().defined()) Tensor(p).sub_(p.grad() * 0.05);
        }
        clear(*unit);
      }
    }
    curves.push_back(curve);
  }
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(same(curves[0][i], curves[1][i])) << i;
    EXPECT_TRUE(same(curves[0][i], curves[2][i])) << i;
  }
  EXPECT_FALSE(same(curves[0][0], curves[0][19]));
}

TEST(Unit, FrozenTiedTwiceUsedWeights) {
  const auto model = std::make_shared<torch::nn::Module>();
  const auto first = model->register_module("first", mlp());
  const auto frozen = model->register_module("frozen", make([](const Lambda& u, const Tensors& in) -> Tensors {
                                                         return {at::linear(in[0], u.w("w")).tanh()};
                                                       })->with("w", {6, 6}, false));
  const auto tied =
      model->register_module("tied", make([](const Lambda& u, const Tensors& in) -> Tensors {
                               return {at::linear(at::linear(in[0], u.w("w")), u.w("w").t()) * u.w("again").sum()};
                             }));
  tied->register_parameter("w", first->w("up"));
  tied->register_parameter("again", first->w("up"));
  EXPECT_EQ(tied->trainable().size(), 1U);
  EXPECT_TRUE(frozen->trainable().empty());

  const Tensor data = at::randn({5, 6});
  expect_same_bits(model, [&](How how) -> Tensors {
    Tensors h = apply(*first, {data}, how);
    h = apply(*frozen, h, how);
    h = apply(*first, h, how);  // twice
    h = apply(*tied, h, how);
    const Tensor loss = h[0].pow(2).sum();
    loss.backward();
    EXPECT_FALSE(frozen->w("w").grad().defined());
    return {loss};
  });
}

TEST(Unit, AllFrozenStillPassesTheGradientOn) {
  const auto unit = mlp();
  for (Tensor& parameter : unit->parameters()) parameter.requires_grad_(false);
  const Tensor data = at::randn({5, 6});
  expect_same_bits(unit, [&](How how) -> Tensors {
    Tensor x = data.clone().requires_grad_(true);
    apply(*unit, {x}, how)[0].sum().backward();
    return {x.grad()};
  });
  EXPECT_FALSE(unit->run({data})[0].requires_grad());  // nothing to train: no graph
}

TEST(Unit, IntegerUndefinedAndSeveralOutputs) {
  const auto unit = make([](const Lambda& u, const Tensors& in) -> Tensors {
                      EXPECT_FALSE(in[1].defined());
                      const Tensor h = at::embedding(u.w("table"), in[0]) + in[2];
                      return {h.tanh(), Tensor(), in[0] + 1, in[0], h.sum(), u.w("table")};
                    })->with("table", {9, 4});
  const Tensor ids = at::arange(6).view({2, 3});
  const Tensor data = at::randn({4});
  expect_same_bits(unit, [&](How how) -> Tensors {
    Tensor x = data.clone().requires_grad_(true);
    const Tensors out = apply(*unit, {ids, Tensor(), x}, how);
    EXPECT_EQ(out.size(), 6U);
    EXPECT_FALSE(out[1].defined());
    EXPECT_FALSE(out[2].requires_grad());
    EXPECT_TRUE(at::equal(out[3], ids));
    (out[0].sum() * 2 + out[4].pow(2)).backward();  // the last output gets no gradient
    return {out[0], out[2], out[4], x.grad()};
  });
}

TEST(Unit, OutputsMayBeChangedInPlaceUnlessTheyAreSaved) {
  const auto linear = make([](const Lambda& u, const Tensors& in) -> Tensors {
                        return {at::linear(in[0], u.w("w"))};
                      })->with("w", {6, 6});
  const auto saved = make([](const Lambda& u, const Tensors& in) -> Tensors {
                       return {at::linear(in[0], u.w("w")).tanh()};
                     })->with("w", {6, 6});
  const Tensor data = at::randn({5, 6});
  expect_same_bits(linear, [&](How how) -> Tensors {
    Tensor y = apply(*linear, {data}, how)[0];
    y.mul_(3);
    y.sum().backward();
    return {y};
  });
  Tensor y = apply(*saved, {data}, How::unit)[0];
  y.mul_(3);
  EXPECT_THROW(y.sum().backward(), c10::Error);
  // With checkpointing it is the input that must stay.
  Tensor x = data.clone();
  const Tensor z = apply(*linear, {x}, How::checkpointed)[0];
  x.mul_(2);
  EXPECT_THROW(z.sum().backward(), c10::Error);
}

TEST(Unit, RetainGraph) {
  for (const How how : {How::unit, How::checkpointed}) {
    const auto unit = mlp(0.5);
    const Tensor loss = apply(*unit, {at::randn({5, 6})}, how)[0].pow(2).sum();
    loss.backward({}, /*retain_graph=*/true);
    const Tensor once = unit->w("up").grad().clone();
    loss.backward();
    EXPECT_TRUE(at::equal(unit->w("up").grad(), once * 2));
    try {
      loss.backward();
      FAIL() << "a third backward needs the graph that the second one freed";
    } catch (const c10::Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("backward through the graph a second time"));
    }
  }
}

TEST(Unit, OnlyTheInputsAskedForAreComputed) {
  const auto unit = make([](const Lambda& u, const Tensors& in) -> Tensors {
                      return {(in[0] * u.w("w") + in[1] * in[1]).sum()};
                    })->with("w", {4});
  Tensor a = at::randn({4}).requires_grad_(true);
  Tensor b = at::randn({4}).requires_grad_(true);
  const Tensor y = unit->run({a, b})[0];
  const auto found = torch::autograd::grad({y}, {b});
  EXPECT_TRUE(at::equal(found[0], b * 2));
}

TEST(Unit, SecondDerivativesAreRefused) {
  const auto unit = mlp();
  Tensor x = at::randn({5, 6}).requires_grad_(true);
  const Tensor y = unit->run({x})[0].sum();
  try {
    torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true);
    FAIL() << "create_graph must be refused";
  } catch (const std::exception& e) {
    EXPECT_THAT(e.what(), HasSubstr("second derivatives"));
  }
}

TEST(Unit, AutogradInsideCompute) {
  const auto unit = make([](const Lambda& u, const Tensors& in) -> Tensors {
                      const at::AutoGradMode on(true);
                      Tensor probe = in[0].detach().requires_grad_(true);
                      const Tensor slope = torch::autograd::grad({probe.pow(3).sum()}, {probe})[0];
                      return {in[0] * u.w("w") + slope};
                    })->with("w", {4});
  const Tensor data = at::randn({4});
  expect_same_bits(unit, [&](How how) -> Tensors {
    Tensor x = data.clone().requires_grad_(true);
    const Tensor y = apply(*unit, {x}, how)[0];
    y.sum().backward();
    return {y, x.grad()};
  });
}

TEST(Unit, OutlivesItsOwnerUntilBackward) {
  Tensor x = at::randn({5, 6}).requires_grad_(true);
  Tensor loss;
  {
    const auto unit = mlp();
    loss = apply(*unit, {x}, How::checkpointed)[0].sum();
  }
  loss.backward();
  EXPECT_TRUE(x.grad().defined());
}

struct Counter : torch::autograd::PostAccumulateGradHook {
  int* fired;
  explicit Counter(int* count) : fired(count) {}
  void operator()(const Tensor&) override { ++*fired; }
};

TEST(Unit, PostAccumulateHooksFire) {
  const auto unit = mlp();
  int fired = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(unit->w("up"), std::make_unique<Counter>(&fired));
  for (const How how : {How::plain, How::unit, How::checkpointed}) {
    fired = 0;
    apply(*unit, {at::randn({5, 6})}, how)[0].sum().backward();
    EXPECT_EQ(fired, 1);
  }
}

/// Writes down what it is told.
struct Recorder : UnitDriver {
  std::vector<std::string> events;
  std::vector<Tensors> taken;
  void before_forward(Unit& unit, bool recorded) override {
    events.push_back((recorded ? "forward " : "unrecorded forward ") + unit.name());
  }
  void after_forward(Unit&) override { events.emplace_back("forwarded"); }
  void before_backward(Unit& unit) override { events.push_back("backward " + unit.name()); }
  void gradients(Unit&, Tensors gradients) override {
    events.emplace_back("gradients");
    taken.push_back(std::move(gradients));
  }
  void after_backward(Unit&) override { events.emplace_back("backwarded"); }
};

TEST(UnitDriver, IsServedInOrderAndTakesTheGradients) {
  for (const How how : {How::unit, How::checkpointed}) {
    Recorder driver;
    const auto unit = mlp();
    unit->set_driver(&driver);
    const Tensor data = at::randn({5, 6});
    const Tensor loss = apply(*unit, apply(*unit, {data}, how), how)[0].sum();
    loss.backward();
    const std::string n = unit->name();
    EXPECT_THAT(driver.events, ElementsAre("forward " + n, "forwarded", "forward " + n, "forwarded", "backward " + n,
                                           "gradients", "backwarded", "backward " + n, "gradients", "backwarded"));
    ASSERT_EQ(driver.taken.size(), 2U);
    EXPECT_FALSE(unit->w("up").grad().defined());

    const Tensors trainable = unit->trainable();
    unit->set_driver(nullptr);
    apply(*unit, apply(*unit, {data}, How::plain), How::plain)[0].sum().backward();
    for (std::size_t i = 0; i < trainable.size(); ++i) {
      if (!trainable[i].grad().defined()) {
        EXPECT_FALSE(driver.taken[0][i].defined());
      } else {
        EXPECT_TRUE(at::equal(trainable[i].grad(), driver.taken[0][i] + driver.taken[1][i]));
      }
    }
  }
}

TEST(UnitDriver, IsServedInEvaluationAndKeepsNoGraph) {
  Recorder driver;
  const auto unit = mlp();
  unit->set_driver(&driver);
  const at::NoGradGuard no_grad;
  const Tensor y = unit->run({at::randn({5, 6})})[0];
  EXPECT_FALSE(y.requires_grad());
  EXPECT_THAT(driver.events, ElementsAre("unrecorded forward " + unit->name(), "forwarded"));
}

TEST(UnitDriver, StaysBalancedWhenComputeThrows) {
  for (const How how : {How::unit, How::checkpointed}) {
    Recorder driver;
    int calls = 0;
    int fail_at = 1;
    const auto unit = make([&](const Lambda& u, const Tensors& in) -> Tensors {
                        if (++calls == fail_at) throw std::runtime_error("no luck");
                        return {in[0] * u.w("w")};
                      })->with("w", {4});
    unit->set_driver(&driver);
    EXPECT_THROW(apply(*unit, {at::randn({4})}, how), std::runtime_error);
    EXPECT_THAT(driver.events, ElementsAre("forward " + unit->name(), "forwarded"));
    if (how != How::checkpointed) continue;
    driver.events.clear();
    calls = 0;
    fail_at = 2;  // the recomputation
    const at::Tensor state = at::rand({1});
    const Tensor loss = apply(*unit, {at::randn({4})}, how)[0].sum();
    EXPECT_THROW(loss.backward(), std::exception);
    EXPECT_EQ(driver.events.back(), "backwarded");
    EXPECT_TRUE(driver.taken.empty());
  }
}

TEST(Units, AreListedInModuleOrderOnceAndDontNest) {
  const auto model = std::make_shared<torch::nn::Module>("model");
  const auto a = mlp();
  const auto b = mlp();
  const auto folder = model->register_module("folder", std::make_shared<torch::nn::Module>("folder"));
  folder->register_module("b", b);
  model->register_module("a", a);
  model->register_module("b_again", b);
  EXPECT_THAT(units_of(*model), ElementsAre(b, a));
  EXPECT_THAT(units_of(*a), ElementsAre(a));
  a->register_module("inner", mlp());
  EXPECT_THROW(units_of(*model), std::logic_error);
}

}  // namespace
}  // namespace deepspeed::nn
