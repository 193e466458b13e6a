// SPDX-License-Identifier: Apache-2.0
// Lets a model write: ds_generate --model FOLDER --prompt TEXT
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "apps/version_text.h"
#include "base/error.h"
#include "data/data.h"
#include "models/generate.h"
#include "models/models.h"

namespace deepspeed::apps {
namespace {

int generate(const std::string& folder, std::string prompt, const std::string& tokenizer_name,
             const models::GenerateOptions& options) {
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (prompt.empty()) throw base::UsageError("--prompt: the model needs at least one character to go on from");
  const auto tokenizer = data::make_tokenizer(tokenizer_name);
  const auto model = models::load_model(folder);
  if (tokenizer->vocab_size() > model->vocab_size()) {
    throw base::DataError(fmt::format("{}: vocab_size {} is smaller than the {} tokens of tokenizer '{}'", folder,
                                      model->vocab_size(), tokenizer->vocab_size(), tokenizer_name));
  }
  const std::vector<std::int32_t> ids = tokenizer->encode(prompt);
  const std::vector<std::int64_t> added = models::generate(*model, {ids.begin(), ids.end()}, options);
  std::vector<std::int32_t> text(ids);
  text.insert(text.end(), added.begin(), added.end());
  fmt::print("{}\n", tokenizer->decode(text));
  return 0;
}

}  // namespace
}  // namespace deepspeed::apps

int main(int argc, char** argv) {
  using namespace deepspeed;  // NOLINT: one short main
  std::string model, prompt, tokenizer = "bytes";
  models::GenerateOptions options;
  CLI::App app("Writes on from a prompt with a model of a Hugging Face folder.", "ds_generate");
  app.add_option("--model", model, "Hugging Face folder, for example what ds_train --export wrote")->required();
  app.add_option("--prompt", prompt, "text to go on from; - reads standard input")->required();
  app.add_option("--max_new_tokens", options.max_new_tokens, "tokens to add")->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", options.temperature, "0 takes the likeliest token each time")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "of the sampling");
  app.add_option("--tokenizer", tokenizer, "the tokenizer that the model was trained with");
  app.set_version_flag("--version", [] { return apps::version_text("ds_generate"); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "ds_generate: error: {} (see ds_generate --help)\n", error.what());
    return static_cast<int>(base::ExitCode::usage);
  }
  try {
    return apps::generate(model, prompt, tokenizer, options);
  } catch (const base::Error& error) {
    fmt::print(stderr, "ds_generate: error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "ds_generate: error: {}\n", error.what());
    return static_cast<int>(base::ExitCode::failure);
  }
}
