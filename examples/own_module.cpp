// SPDX-License-Identifier: Apache-2.0
// Trains a torch::nn module of one's own under a DeepSpeed configuration:
//   mpirun -n 2 own_module
// The module learns sin(x) on [-pi, pi]; every rank draws its own samples.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <memory>
#include <numbers>

#include "comm/process.h"
#include "config/config.h"
#include "engine/engine.h"
#include "nn/unit.h"

namespace {

namespace ds = deepspeed;

// The piece that is gathered, released and recomputed as one: in a large model, a block.
class Layer : public ds::nn::Unit {
 public:
  Layer() : linear_(register_module("linear", torch::nn::Linear(32, 32))) {}
  Tensors compute(const Tensors& inputs) override { return {at::tanh(linear_->forward(inputs[0]))}; }

 private:
  torch::nn::Linear linear_;
};

// What lies outside of units stays whole on every rank.
class Sine : public torch::nn::Module {
 public:
  Sine()
      : in_(register_module("in", torch::nn::Linear(1, 32))),
        layer_(register_module("layer", std::make_shared<Layer>())),
        out_(register_module("out", torch::nn::Linear(32, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return out_->forward(layer_->run({at::tanh(in_->forward(x))})[0]); }

 private:
  torch::nn::Linear in_;
  std::shared_ptr<Layer> layer_;
  torch::nn::Linear out_;
};

constexpr auto configuration = R"({
  "train_micro_batch_size_per_gpu": 64,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0}},
  "gradient_clipping": 1.0
})";

int train(ds::comm::Process& process, int, char**) {
  ds::config::Facts facts;
  facts.world_size = process.size();
  const auto config = ds::config::Config::parse(configuration, "own_module", {}, facts);
  torch::manual_seed(1);
  const auto model = std::make_shared<Sine>();
  const auto engine = ds::initialize(model, config, process.world());

  torch::manual_seed(100 + static_cast<std::uint64_t>(process.rank()));
  double last = 0;
  for (int step = 1; step <= 200; ++step) {
    const at::Tensor x = (at::rand({64, 1}) * 2 - 1) * std::numbers::pi;
    const at::Tensor loss = engine->forward([&] { return at::mse_loss(model->forward(x), at::sin(x)); });
    engine->backward(loss);
    engine->step();
    last = process.world()->all_reduce_value(loss.item<double>()) / process.size();
    if (process.rank() == 0 && step % 50 == 0) std::printf("step %d, loss %.5f\n", step, last);
  }
  return last < 0.01 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return ds::comm::run_program("own_module", argc, argv, train);
}
