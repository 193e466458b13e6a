// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "models/decoder.h"

namespace deepspeed::models {
namespace {

const std::filesystem::path data = std::filesystem::path(DS_TEST_DATA) / "models";

at::Tensor tensor_of(const io::SafeTensors& file, const std::string& name) {
  const io::NamedTensor& stored = file.at(name);
  const auto type = stored.data.type == base::Dtype::f32 ? at::kFloat : at::kLong;
  at::Tensor tensor = at::empty(stored.shape, type);
  std::memcpy(tensor.data_ptr(), stored.data.data, stored.data.bytes());
  return tensor;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  Golden()
      : model(std::dynamic_pointer_cast<Decoder>(load_model(data / GetParam()))),
        io(data / GetParam() / "io.safetensors") {
    model->eval();
  }
  std::shared_ptr<Decoder> model;
  io::SafeTensors io;
};

TEST_P(Golden, LogitsHiddenStatesAndLoss) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = tensor_of(io, "input_ids");
  const Output out = model->forward(ids, ids);
  EXPECT_LT(distance(out.logits, tensor_of(io, "logits")), 2e-5);
  EXPECT_NEAR(out.loss.item<double>(), tensor_of(io, "loss_labels_eq_inputs").item<double>(), 1e-6);
  const std::vector<at::Tensor> states = model->hidden_states(ids);
  ASSERT_EQ(states.size(), 3U);
  for (std::size_t i = 0; i < states.size(); ++i)
    EXPECT_LT(distance(states[i], tensor_of(io, "hidden_states." + std::to_string(i))), 2e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(Transformers, Golden, testing::Values("gpt2-tiny", "gpt2-tiny-rand", "llama-tiny"));

}  // namespace
}  // namespace deepspeed::models
