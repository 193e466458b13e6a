// SPDX-License-Identifier: Apache-2.0
// export_model MODEL FOLDER [DTYPE]: writes a model (a Hugging Face folder, or the JSON text of a `model` section) as a
// Hugging Face folder, with FOLDER/io.safetensors beside it: what this library computes from some tokens.
// check_export.py compares that with transformers.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>

#include <cstdio>

#include "base/dtype.h"
#include "io/safetensors.h"
#include "models/generate.h"
#include "models/models.h"

int main(int argc, char** argv) {
  using namespace deepspeed;  // NOLINT: a program of one function
  if (argc < 3) return std::fputs("usage: export_model MODEL FOLDER [DTYPE]\n", stderr), 2;
  try {
    const std::string source = argv[1];
    const nlohmann::json section =
        source.starts_with("{") ? nlohmann::json::parse(source) : nlohmann::json{{"path", source}};
    base::Dtype dtype = base::Dtype::f32;
    if (argc > 3 && !base::parse_dtype(argv[3], dtype)) throw std::invalid_argument(argv[3]);
    const auto model = models::make_model(section, 42);
    models::save_model(*model, argv[2], dtype);

    const auto written = models::load_model(argv[2]);  // what a reader gets: the values as rounded to the dtype
    written->eval();
    const at::NoGradGuard no_grad;
    at::manual_seed(1);
    const std::int64_t positions = std::min<std::int64_t>(written->context_length(), 32);
    const at::Tensor ids = at::randint(written->vocab_size(), {2, positions}, at::kLong);
    const models::Output out = written->forward(ids, ids);
    std::vector<std::int64_t> prompt(ids.data_ptr<std::int64_t>(), ids.data_ptr<std::int64_t>() + 4);
    const auto text = models::generate(*written, prompt, {.max_new_tokens = 12, .stop_token = {}});
    io::write_safetensors(
        std::string(argv[2]) + "/io.safetensors",
        {{"input_ids", ids.sizes().vec(), {ids.data_ptr(), ids.numel(), base::Dtype::i64}},
         {"logits", out.logits.sizes().vec(), {out.logits.data_ptr(), out.logits.numel(), base::Dtype::f32}},
         {"loss", {}, {out.loss.data_ptr(), 1, base::Dtype::f32}},
         {"greedy",
          {static_cast<std::int64_t>(text.size())},
          {text.data(), static_cast<std::int64_t>(text.size()), base::Dtype::i64}}});
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "export_model: %s\n", error.what()), 1;
  }
  return 0;
}
