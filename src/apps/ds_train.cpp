// SPDX-License-Identifier: Apache-2.0
// Trains a model as a configuration says: mpirun -n N ds_train config.json
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/version_text.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/on_root.h"
#include "comm/process.h"
#include "config/config.h"
#include "config/reference.h"
#include "device/device.h"
#include "kernels/threads.h"
#include "models/decoder_config.h"
#include "train/plan.h"
#include "train/trainer.h"

namespace deepspeed::apps {
namespace {

struct Arguments {
  std::string config;
  std::string model, output, resume, export_folder;
  std::vector<std::string> train, validation, set;
  std::string steps, profile;
  std::vector<int> ranks{1};
  std::string memory;
  bool check = false, plan = false, json = false, print_config = false, print_schema = false, evaluate = false,
       version = false;
  bool help_config = false;
  std::string help_key;

  /// The options that stand for keys, as path=value overrides; --set comes last and wins.
  std::vector<std::string> overrides() const {
    std::vector<std::string> all;
    const auto put = [&all](const char* path, const nlohmann::json& value) {
      all.push_back(std::string(path) + "=" + value.dump());
    };
    if (!model.empty()) put("model", {{"path", model}});
    if (!train.empty()) put("data.train", train.size() == 1 ? nlohmann::json(train[0]) : nlohmann::json(train));
    if (validation.size() == 1) {
      char* end = nullptr;
      const double fraction = std::strtod(validation[0].c_str(), &end);
      put("data.validation", *end == '\0' ? nlohmann::json(fraction) : nlohmann::json(validation[0]));
    } else if (!validation.empty()) {
      put("data.validation", validation);
    }
    if (!steps.empty()) all.push_back("training.steps=" + steps);
    if (!profile.empty()) put("training.profile", profiled_steps());
    if (!output.empty()) put("training.output", output);
    if (!resume.empty()) {
      put("training.resume", resume);
    } else if (evaluate && !model.empty()) {
      put("training.resume", "never");  // what is asked about is that model, not the run that may follow from it
    }
    if (!export_folder.empty()) put("training.export", export_folder);
    all.insert(all.end(), set.begin(), set.end());
    return all;
  }

 private:
  /// "2:4" as [2, 4]; the table checks the numbers.
  nlohmann::json profiled_steps() const {
    long long first = 0, last = 0;
    int used = 0;
    if (std::sscanf(profile.c_str(), "%lld:%lld%n", &first, &last, &used) != 2 ||
        used != static_cast<int>(profile.size())) {
      throw base::UsageError(fmt::format("--profile: wants FIRST:LAST, got '{}'", profile));
    }
    return {first, last};
  }
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("config,--deepspeed_config", a.config,
                 "DeepSpeed configuration: a path, JSON or HJSON text, base64 of it, or - for standard input");
  app.add_option("--model", a.model, "Hugging Face folder to train (model.path)");
  app.add_option("--train", a.train, "training file or files (data.train)");
  app.add_option("--validation", a.validation, "validation file, or a fraction of the training data (data.validation)");
  app.add_option("--steps", a.steps, "optimizer steps (training.steps)");
  app.add_option("--output", a.output, "run folder (training.output)");
  app.add_option("--resume", a.resume, "auto, never, a tag, or a checkpoint's path (training.resume)");
  app.add_option("--export", a.export_folder, "folder for a Hugging Face model at the end (training.export)");
  app.add_flag(
         "--profile{2:4}", a.profile,
         "record what the ranks do in steps FIRST to LAST, 2 to 4 if bare, for ui.perfetto.dev (training.profile)")
      ->type_name("[=FIRST:LAST]");
  app.add_option("--set", a.set, "PATH=VALUE: sets any configuration key, for example --set optimizer.params.lr=1e-4")
      ->type_name("PATH=VALUE")
      ->take_all();
  app.add_flag("--evaluate", a.evaluate, "print loss and perplexity on data.validation (or data.train) and stop");
  app.add_flag("--check", a.check, "check the configuration and stop; needs no MPI");
  app.add_flag(
      "--plan", a.plan,
      "print the memory that each ZeRO stage takes and what it sends, for each of --ranks, and stop; needs no MPI");
  app.add_option("--ranks", a.ranks, "ranks that --check, --plan and --print-config assume; several for --plan")
      ->check(CLI::PositiveNumber);
  app.add_option("--memory", a.memory, "with --plan: what a rank may hold, for example 80GB; names what fits");
  app.add_flag("--json", a.json, "with --plan: print JSON");
  app.add_flag("--print-config", a.print_config, "print the configuration with everything resolved and stop");
  app.add_flag("--print-schema", a.print_schema, "print the JSON Schema of the configuration and stop");
  app.add_option("--help-config", a.help_key, "explain a configuration key, a section, or all of them")
      ->expected(0, 1)
      ->type_name("[KEY]")
      ->trigger_on_parse(false);
  app.add_flag("--version", a.version, "print version, git hash and back ends");
  app.footer(
      "Exit codes: 0 done, 2 command line, 3 configuration, 4 data or model files, 5 checkpoint, 6 input/output,\n"
      "7 communication, 8 diverged, 9 device, 75 stopped on request after a checkpoint (run it again to go on).\n"
      "SIGUSR1, SIGTERM and SIGINT finish the step, save a checkpoint and end with 75; a second one ends at once.");
}

config::Facts facts_for(int ranks) {
  config::Facts facts;
  facts.world_size = ranks;
  const char* accelerator = std::getenv("DS_ACCELERATOR");
  facts.accelerator = accelerator != nullptr && std::string_view(accelerator) == "cpu";
  return facts;
}

void require_config(const Arguments& a) {
  if (a.config.empty()) {
    throw base::UsageError(
        "DeepSpeed requires --deepspeed_config to specify configuration file; for example: ds_train config.json");
  }
}

/// A model section that can't be built is wrong before the job is queued, too; its weights aren't looked at.
void check_model(const config::Config& config) {
  const auto section = config.find<nlohmann::json>("model");
  if (section && !section->is_null()) models::describe_model(*section);
}

/// What needs neither MPI nor Kokkos nor a device; true if that was all.
bool answer_alone(const Arguments& a) {
  if (a.version) {
    fmt::print("{}\n", version_text("ds_train"));
  } else if (a.help_config) {
    fmt::print("{}", config::help(a.help_key));
  } else if (a.print_schema) {
    fmt::print("{}\n", config::schema().dump(2));
  } else if (a.plan) {
    require_config(a);
    const auto load = [&](int ranks, const std::vector<std::string>& overrides) {
      std::vector<std::string> all = a.overrides();
      all.insert(all.end(), overrides.begin(), overrides.end());
      config::Config config = config::Config::load(a.config, all, facts_for(ranks));
      config::check_supported(config);
      return config;
    };
    if (a.config == "-") throw base::UsageError("--plan reads the configuration several times: give a file");
    const nlohmann::json plan =
        train::plan(load, a.ranks, a.memory.empty() ? std::nullopt : std::optional(train::parse_bytes(a.memory)));
    fmt::print("{}", a.json ? plan.dump(2) + "\n" : train::plan_text(plan));
  } else if (a.check || a.print_config) {
    require_config(a);
    if (a.ranks.size() != 1) throw base::UsageError("--ranks: one number, but for --plan");
    const int ranks = a.ranks.front();
    const config::Config config = config::Config::load(a.config, a.overrides(), facts_for(ranks));
    for (const std::string& warning : config.warnings()) log::warn("{}", warning);
    if (a.print_config) {
      fmt::print("{}\n", config.text());
    } else {
      config::check_supported(config);
      check_model(config);
      fmt::print("{}: good for {} rank{}\n", a.config == "-" ? "standard input" : a.config, ranks,
                 ranks == 1 ? "" : "s");
    }
  } else {
    return false;
  }
  return true;
}

/// Read once, on rank 0, and handed to the others, so that all have the same and standard input is read once.
config::Config shared_config(comm::Group& world, const Arguments& a) {
  const config::Facts facts = facts_for(world.size());
  const std::string text = comm::text_from_root(world, [&] {
    const config::Config config = config::Config::load(a.config, a.overrides(), facts);
    config::check_supported(config);
    config::check_accelerator(config, facts);
    for (const std::string& warning : config.warnings()) log::warn("{}", warning);
    return config.user().dump();
  });
  return config::Config::parse(text, a.config, {}, facts);
}

int train(comm::Process& process, const Arguments& a) {
  require_config(a);
  // Before torch's first operator: it looks for its CUDA part once.
  const device::Opened& accelerator = device::open();
  at::set_num_threads(process.threads_per_rank());
  const kernels::Threads threads;
  const config::Config config = shared_config(*process.world(), a);
  if (const auto level = config.find<std::string>("log_level")) log::set_level(log::parse_level(*level));
  if (accelerator.state == device::State::loaded) {
    log::info("{}; training itself runs on the CPU in this version", accelerator.reason);
  }
  train::Trainer trainer(process.world(), config, a.evaluate ? train::Purpose::evaluate : train::Purpose::train);
  std::optional<train::Evaluation> result;
  try {
    if (!a.evaluate) return trainer.run();
    log::info("evaluating: {}", trainer.load_weights());
    result = trainer.evaluate();
  } catch (...) {
    // Told here, while the buffers that a collective may still write to are alive.
    process.report_failure();
    throw;
  }
  if (!result) return static_cast<int>(base::ExitCode::preempted);
  if (process.rank() == 0) {
    fmt::print("loss {:.6f}\nperplexity {:.4f}\ntokens {}\n", result->loss, result->perplexity(), result->tokens);
  }
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Trains a model as a DeepSpeed configuration says. Start one process a rank with mpirun or srun.",
               "ds_train");
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    arguments.help_config = app.count("--help-config") > 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // Under a launcher every rank fails alike: the job's one message comes from run_program.
    const std::string message = fmt::format("{} (see ds_train --help)", error.what());
    return comm::run_program("ds_train", argc, argv,
                             [&](comm::Process&, int, char**) -> int { throw base::UsageError(message); });
  }
  try {
    if (answer_alone(arguments)) return 0;
  } catch (const base::Error& error) {
    fmt::print(stderr, "ds_train: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return comm::run_program("ds_train", argc, argv,
                           [&](comm::Process& process, int, char**) { return train(process, arguments); });
}

}  // namespace
}  // namespace deepspeed::apps

int main(int argc, char** argv) {
  return deepspeed::apps::run(argc, argv);
}
