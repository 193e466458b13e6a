// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ledger.h"
#include "base/log.h"
#include "base/trace.h"
#include "checkpoint/checkpoint.h"
#include "comm/on_root.h"
#include "data/statistics.h"
#include "nn/memory.h"
#include "profile/memory.h"
#include "profile/metrics.h"
#include "profile/monitor.h"
#include "profile/progress.h"
#include "profile/throughput.h"
#include "train/step_trace.h"
#include "zero/init.h"

namespace deepspeed::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// splitmix64 (Steele, Lea, Flood 2014): spreads a few numbers over all bits.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// What the ledger and the system say of this process's memory, each the largest of all ranks. Collective.
struct MemoryPeaks {
  std::vector<std::pair<std::string_view, std::int64_t>> categories;
  std::int64_t host = 0;

  static MemoryPeaks of(comm::Group& group) {
    namespace ledger = base::ledger;
    std::array<double, ledger::categories + 2> bytes{};
    for (std::size_t c = 0; c < ledger::categories; ++c) {
      bytes[c] = static_cast<double>(ledger::peak(static_cast<ledger::Category>(c)));
    }
    bytes[ledger::categories] = static_cast<double>(ledger::peak_total());
    bytes[ledger::categories + 1] = static_cast<double>(profile::peak_host_bytes());
    group.all_reduce({bytes.data(), static_cast<std::int64_t>(bytes.size()), base::Dtype::f64}, comm::ReduceOp::max)
        .wait();
    MemoryPeaks peaks;
    for (std::size_t c = 0; c < ledger::categories; ++c) {
      peaks.categories.emplace_back(ledger::name_of(static_cast<ledger::Category>(c)),
                                    static_cast<std::int64_t>(bytes[c]));
    }
    peaks.categories.emplace_back("total", static_cast<std::int64_t>(bytes[ledger::categories]));
    peaks.host = static_cast<std::int64_t>(bytes[ledger::categories + 1]);
    ledger::reset_peaks();
    return peaks;
  }

  /// The larger of both, each by itself.
  void include(const MemoryPeaks& other) {
    if (categories.empty()) categories = other.categories;
    for (std::size_t c = 0; c < categories.size(); ++c) {
      categories[c].second = std::max(categories[c].second, other.categories[c].second);
    }
    host = std::max(host, other.host);
  }

  /// "parameters 1.2 GB, optimizer 3.4 GB"
  std::string text() const {
    std::string text;
    for (const auto& [name, bytes] : categories) {
      if (bytes == 0) continue;
      text +=
          fmt::format("{}{} {}B", text.empty() ? "" : ", ", name, profile::format_count(static_cast<double>(bytes)));
    }
    return text;
  }
};

/// The number of steps where only time ends the run.
constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();

/// "step 7 of 20"
std::string step_of(std::int64_t step, std::int64_t steps) {
  return steps == endless ? fmt::format("step {}", step) : fmt::format("step {} of {}", step, steps);
}

/// training.time_limit in seconds; 0 = none.
double time_limit_of(const config::Config& config) {
  const auto limit = config.find<nlohmann::json>("training.time_limit");
  if (!limit || limit->is_null()) return 0;
  if (limit->is_number()) return limit->get<double>();
  const std::string text = limit->get<std::string>();
  int h = 0;
  int m = 0;
  int s = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%d:%d:%d%n", &h, &m, &s, &used) != 3 || used != static_cast<int>(text.size()) ||
      h < 0 || m < 0 || m > 59 || s < 0 || s > 59) {
    throw base::ConfigError(fmt::format("training.time_limit: '{}' is neither seconds nor HH:MM:SS", text));
  }
  return h * 3600.0 + m * 60.0 + s;
}

std::vector<std::string> paths_of(const nlohmann::json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

/// The labels of rows whose last target lies beyond them: the inputs' first token, then the targets
/// (CausalLM::forward).
at::Tensor labels_of(const at::Tensor& inputs, const at::Tensor& targets) {
  return at::cat({inputs.narrow(1, 0, 1), targets}, 1);
}

std::span<std::int64_t> span_of(at::Tensor& tensor) {
  return {static_cast<std::int64_t*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

/// Whether any rank wants to stop, for a loop of passes that may be much shorter than a collective takes: the ranks ask
/// each other every 0.1 s or so, in a pass that they agree on.
class SharedStop {
 public:
  SharedStop(comm::Group& group, const StopSignals& signals) : group_(group), signals_(signals) {}

  /// Collective; called after each pass.
  bool requested() {
    if (++passes_ < wait_) return false;
    double shared[2] = {signals_.requested() ? 1.0 : 0.0, seconds_since(since_) / static_cast<double>(passes_)};
    group_.all_reduce({shared, 2, base::Dtype::f64}, comm::ReduceOp::max).wait();
    wait_ = static_cast<std::int64_t>(std::clamp(0.1 / std::max(shared[1], 1e-9), 1.0, 1000.0));
    passes_ = 0;
    since_ = Clock::now();
    return shared[0] > 0;
  }

 private:
  comm::Group& group_;
  const StopSignals& signals_;
  std::int64_t passes_ = 0;
  std::int64_t wait_ = 1;
  Clock::time_point since_ = Clock::now();
};

}  // namespace

double Evaluation::perplexity() const {
  return std::exp(loss);
}

Trainer::Trainer(std::shared_ptr<comm::Group> group, config::Config config, Purpose purpose)
    : group_(std::move(group)), config_(std::move(config)), purpose_(purpose) {
  seed_ = static_cast<std::uint64_t>(config_.get<std::int64_t>("training.seed"));
  time_limit_ = time_limit_of(config_);
  if (group_->rank() == 0 && purpose_ == Purpose::train) {
    signals_.set_notice("ds_train: stopping after the next step (a second signal stops at once)\n");
  }
  nlohmann::json section = config_.find<nlohmann::json>("model").value_or(nullptr);
  if (section.is_null()) {
    throw base::ConfigError("model: no model; give a Hugging Face folder with --model DIR, or model.type and its keys");
  }
  // A key that isn't given is null in a resolved configuration.
  for (const char* key : {"path", "type"}) {
    if (section.contains(key) && section.at(key).is_null()) section.erase(key);
  }
  nn::count_allocations();
  zero::Init sharded(group_, engine::init_options(config_));
  model_ = models::make_model(section, seed_);
  sharded.close();
  open_data();
  engine_ = initialize(model_, config_, group_);
}

Trainer::~Trainer() = default;

void Trainer::open_data() {
  tokenizer_ = data::make_tokenizer(config_.get<std::string>("data.tokenizer"));
  const std::string format = config_.get<std::string>("data.format");
  sequence_length_ = config_.find<std::int64_t>("data.sequence_length").value_or(model_->context_length());
  if (sequence_length_ > model_->context_length()) {
    throw base::ConfigError(fmt::format("data.sequence_length: {} is longer than the model's context of {} tokens",
                                        sequence_length_, model_->context_length()));
  }
  const bool trains = purpose_ == Purpose::train;
  const auto validation = config_.find<nlohmann::json>("data.validation");
  const bool has_validation_files = validation && !validation->is_null() && !validation->is_number();
  if (config_.given("data.train") && (trains || !has_validation_files)) {
    text_ = data::open_tokens(paths_of(config_.get<nlohmann::json>("data.train")), format, *tokenizer_);
    train_tokens_ = text_;
  } else if (trains) {
    throw base::ConfigError("data.train: no training data; give a file here or with --train FILE");
  }
  if (has_validation_files) {
    validation_tokens_ = data::open_tokens(paths_of(*validation), format, *tokenizer_);
  } else if (text_ != nullptr && validation && validation->is_number() && validation->get<double>() > 0) {
    std::tie(train_tokens_, validation_tokens_) = data::split(text_, validation->get<double>(), sequence_length_);
  } else if (!trains) {
    validation_tokens_ = text_;
  }
  for (const auto& source : {train_tokens_, validation_tokens_}) {
    if (source != nullptr && format != "bin" && source->vocab_size() > model_->vocab_size() &&
        tokenizer_->vocab_size() > model_->vocab_size()) {
      throw base::DataError(fmt::format("data.tokenizer: token ids go up to {}, the model's vocab_size is {}",
                                        tokenizer_->vocab_size() - 1, model_->vocab_size()));
    }
  }
  if (!trains) return;
  data::BatchOptions options;
  options.sequence_length = sequence_length_;
  options.micro_batch = config_.get<std::int64_t>("train_micro_batch_size_per_gpu");
  options.accumulation = config_.get<std::int64_t>("gradient_accumulation_steps");
  options.data_ranks = group_->size();
  options.shuffle = config_.get<bool>("data.shuffle");
  options.drop_last = config_.get<bool>("dataloader_drop_last");
  options.seed = seed_;
  batches_ = std::make_unique<data::BatchReader>(train_tokens_, options);

  // The first limit that is reached ends the run.
  const auto steps = config_.find<std::int64_t>("training.steps");
  const auto epochs = config_.find<double>("training.epochs");
  steps_ = steps.value_or(epochs || time_limit_ == 0 ? batches_->steps(epochs.value_or(1)) : endless);
  if (steps && epochs) steps_ = std::min(*steps, batches_->steps(*epochs));
}

std::string Trainer::load_weights() {
  const std::string how = config_.find<std::string>("training.resume").value_or("never");
  const std::filesystem::path own = RunFolder::of(config_).checkpoints();
  const bool trains = purpose_ == Purpose::train;
  std::optional<checkpoint::Reader> reader;
  bool own_checkpoint = how == "auto";
  if (how == "auto") {
    reader = checkpoint::Reader::open_newest(*group_, own);
  } else if (how == "never") {
    if (trains && !checkpoint::list_tags(own).empty()) {
      throw base::ConfigError(fmt::format(
          "training.resume: {} holds checkpoints of an earlier run, which a fresh start would mix with its own; go on "
          "with --resume auto, or choose another --output",
          own.string()));
    }
  } else {
    // A checkpoint, a run folder or a folder of checkpoints; else a tag of this run.
    const std::filesystem::path given = how;
    const bool is_path = how.find('/') != std::string::npos || std::filesystem::is_directory(given);
    if (std::filesystem::exists(given / "manifest.json")) {
      const std::filesystem::path whole = std::filesystem::absolute(given / "manifest.json").parent_path();
      reader = checkpoint::Reader::open(*group_, whole.parent_path(), whole.filename().string());
    } else if (how == "latest" || (is_path && !std::filesystem::exists(own / given))) {
      std::filesystem::path folder = how == "latest" ? own : given;
      if (std::filesystem::exists(folder / "checkpoints")) folder /= "checkpoints";
      reader = checkpoint::Reader::open(*group_, folder, checkpoint::latest_tag(folder));
    } else {
      reader = checkpoint::Reader::open(*group_, own, how);
      own_checkpoint = true;
    }
  }
  const std::optional<std::string> model = config_.find<std::string>("model.path");
  if (!reader) {
    const std::string why = how == "auto" ? fmt::format("no checkpoint in {}: ", own.string()) : "";
    if (model) return fmt::format("{}the model {}", why, *model);
    return why + (trains ? "a fresh start" : "a model that was never trained");
  }
  engine::LoadOptions options;
  options.load_module_only = !trains;
  const nlohmann::json client = engine_->load_checkpoint(*reader, options);
  if (own_checkpoint) {
    saved_step_ = engine_->global_steps();
    checkpoint_ = reader->tag();
  }
  evaluation_due_ = client.value("evaluation_due", false);
  if (client.value("seed", seed_) != seed_ && trains) {
    log::warn("training.seed differs from the checkpoint's: the order of the data changes from here on");
  }
  return fmt::format("checkpoint {} of step {}", reader->tag(), reader->state().at("global_steps").get<std::int64_t>());
}

void Trainer::save() {
  if (saved_step_ == engine_->global_steps()) return;
  const base::trace::Range range("save", "train");
  const Clock::time_point start = Clock::now();
  const std::string tag = fmt::format("global_step{}", engine_->global_steps());
  engine_->save_checkpoint(folder_.checkpoints(), tag, {{"seed", seed_}, {"evaluation_due", evaluation_due_}}, true,
                           static_cast<int>(config_.find<std::int64_t>("training.keep_last").value_or(0)));
  saved_step_ = engine_->global_steps();
  checkpoint_ = tag;
  set_notice();
  log::info("saved {} in {:.2f} s", (folder_.checkpoints() / tag).string(), seconds_since(start));
}

std::uint64_t Trainer::checkpoint_bytes() const {
  const auto bytes_of = [](base::Dtype type) { return static_cast<std::uint64_t>(base::size_of(type)); };
  const base::Dtype working = engine_->precision().working;
  std::uint64_t each = bytes_of(working);
  if (working != base::Dtype::f32) each += bytes_of(base::Dtype::f32);
  for (const optim::StateSpec& state : engine_->optimizer().rule().states()) each += bytes_of(state.type);
  return each * static_cast<std::uint64_t>(engine_->parameter_count());
}

void Trainer::set_notice() {
  if (group_->rank() != 0) return;
  const std::string last = checkpoint_.empty()
                               ? "there is no checkpoint yet"
                               : "the last good checkpoint is " + (folder_.checkpoints() / checkpoint_).string();
  signals_.set_notice(fmt::format("ds_train: stopping after this step (a second signal stops at once); {}\n", last));
}

std::optional<Evaluation> Trainer::evaluate() {
  const base::trace::Range range("evaluate", "train");
  if (validation_tokens_ == nullptr) {
    throw base::ConfigError(
        "data.validation: nothing to evaluate on; give a file here or with --validation FILE, or a fraction of "
        "data.train");
  }
  const data::EvaluationReader reader(validation_tokens_, sequence_length_, engine_->train_micro_batch_size_per_gpu(),
                                      group_->size());
  const bool was_training = engine_->training();
  engine_->eval();
  const c10::AutoGradMode no_grad(false);
  at::Tensor inputs = at::empty({engine_->train_micro_batch_size_per_gpu(), sequence_length_}, at::kLong);
  at::Tensor targets = at::empty_like(inputs);
  double sums[2] = {0, 0};  // loss x tokens, tokens
  std::int64_t batches = reader.batches();
  if (const auto limit = config_.find<std::int64_t>("training.evaluate_batches")) batches = std::min(batches, *limit);
  bool stopped = false;
  SharedStop stop(*group_, signals_);
  for (std::int64_t batch = 0; batch < batches && !stopped; ++batch) {
    const std::int64_t rows = reader.read(batch, group_->rank(), span_of(inputs), span_of(targets));
    // A rank that the last batch doesn't reach still takes part, for units that are gathered from all ranks.
    const at::Tensor ids = inputs.narrow(0, 0, std::max<std::int64_t>(rows, 1));
    const at::Tensor labels = labels_of(ids, targets.narrow(0, 0, ids.size(0)));
    const at::Tensor loss = engine_->forward([&] { return model_->forward(ids, labels).loss; });
    const double tokens = static_cast<double>(rows * sequence_length_);
    if (rows > 0) sums[0] += loss.item<double>() * tokens;
    sums[1] += tokens;
    stopped = stop.requested();
  }
  engine_->train(was_training);
  if (stopped) return std::nullopt;
  group_->all_reduce({sums, 2, base::Dtype::f64}).wait();
  return Evaluation{sums[0] / sums[1], static_cast<std::int64_t>(sums[1])};
}

double Trainer::train_step() {
  const base::trace::Range range(fmt::format("step {}", engine_->global_steps() + 1), "train");
  const std::int64_t micro_batch = engine_->train_micro_batch_size_per_gpu();
  at::Tensor inputs = at::empty({micro_batch, sequence_length_}, at::kLong);
  at::Tensor targets = at::empty_like(inputs);
  const std::int64_t position = engine_->global_samples();
  double loss_sum = 0;
  for (std::int64_t micro = 0; micro < engine_->gradient_accumulation_steps(); ++micro) {
    {
      const base::trace::Range reading("data", "train");
      batches_->read(position, micro, group_->rank(), span_of(inputs), span_of(targets));
    }
    // Dropout's randomness follows from the place in the run, so that a resumed run draws what the whole one drew.
    at::manual_seed(
        mix(mix(mix(seed_ + static_cast<std::uint64_t>(engine_->global_steps())) + static_cast<std::uint64_t>(micro)) +
            static_cast<std::uint64_t>(group_->rank())));
    const at::Tensor loss = engine_->forward([&] { return model_->forward(inputs, labels_of(inputs, targets)).loss; });
    engine_->backward(loss);
    engine_->step();
    loss_sum += loss.item<double>();
  }
  return loss_sum / static_cast<double>(engine_->gradient_accumulation_steps());
}

void Trainer::log_start() {
  const base::Dtype working = engine_->precision().working;
  log::info("model: {} parameters in {}{}, context {} tokens; optimizer {}",
            profile::format_count(static_cast<double>(engine_->parameter_count())), base::name_of(working),
            working == base::Dtype::f32 ? "" : " with fp32 masters", model_->context_length(),
            engine_->optimizer().rule().name());
  log::info(
      "data: {} training samples of {} tokens, {} validation samples; {} x micro batch {} x accumulation {} = "
      "{} samples a step",
      batches_->samples(), sequence_length_,
      validation_tokens_ ? data::sample_count(validation_tokens_->size(), sequence_length_) : 0,
      group_->size() == 1 ? "1 rank" : fmt::format("{} ranks", group_->size()),
      engine_->train_micro_batch_size_per_gpu(), engine_->gradient_accumulation_steps(), engine_->train_batch_size());
  log::info("memory: {} on the rank that holds most", MemoryPeaks::of(*group_).text());
  if (group_->rank() == 0 && text_->vocab_size() <= 256) {
    bigram_entropy_ = data::bigram_entropy(*text_);
    log::info("data: bigram entropy {:.3f} nats a token (what counting pairs of neighbours reaches)", bigram_entropy_);
  }
}

void Trainer::report(const Evaluation& evaluation) {
  std::string beside;
  if (bigram_entropy_ > 0) beside = fmt::format("; bigram entropy {:.4f}", bigram_entropy_);
  log::info("step {}: validation loss {:.4f}, perplexity {:.2f} over {} tokens{}", engine_->global_steps(),
            evaluation.loss, evaluation.perplexity(), evaluation.tokens, beside);
}

int Trainer::run() {
  // Nothing is written before it is clear where the run begins.
  const std::string beginning = load_weights();
  folder_ = RunFolder::open(*group_, config_);
  set_notice();
  comm::on_root(*group_, [&] { checkpoint::check_folder(folder_.checkpoints(), checkpoint_bytes()); });
  log_start();
  log::info("beginning: {}", beginning);
  const bool speaks = group_->rank() == 0;
  const std::int64_t start_step = engine_->global_steps();
  const std::optional<std::int64_t> resumed_at =
      start_step > 0 ? std::optional<std::int64_t>(start_step) : std::nullopt;

  std::optional<profile::MetricsWriter> metrics;
  profile::Monitors monitors;
  std::optional<profile::Progress> progress;
  if (speaks) {
    metrics.emplace(folder_.metrics().string(), resumed_at);
    // Monitors count in samples, as DeepSpeed's do.
    const std::optional<std::int64_t> samples =
        resumed_at ? std::optional<std::int64_t>(engine_->global_samples()) : std::nullopt;
    monitors.add(std::make_unique<profile::TensorBoardMonitor>(folder_.tensorboard().string(), samples));
    if (config_.get<bool>("tensorboard.enabled")) {
      const std::filesystem::path root = config_.get<std::string>("tensorboard.output_path");
      monitors.add(std::make_unique<profile::TensorBoardMonitor>(
          (root / config_.get<std::string>("tensorboard.job_name")).string(), samples));
    }
    if (config_.get<bool>("csv_monitor.enabled")) {
      const std::filesystem::path root = config_.get<std::string>("csv_monitor.output_path");
      monitors.add(std::make_unique<profile::CsvMonitor>(
          (root / config_.get<std::string>("csv_monitor.job_name")).string(), samples));
    }
    profile::ProgressOptions options;
    options.interval = config_.find<std::int64_t>("steps_per_print").value_or(10);
    progress.emplace(options);
  }
  const std::int64_t save_every = config_.get<std::int64_t>("training.save_every");
  const std::int64_t evaluate_every = config_.get<std::int64_t>("training.evaluate_every");
  const std::int64_t step_tokens = engine_->train_batch_size() * sequence_length_;

  engine_->train();
  profile::Throughput throughput;
  StepTrace trace(*group_, config_, folder_);
  MemoryPeaks most;
  const Clock::time_point started = Clock::now();
  std::optional<Evaluation> evaluation;
  bool stop = false;
  bool out_of_time = false;
  const auto assess = [&] {
    const std::optional<Evaluation> done = evaluate();
    if (!done) return false;
    evaluation = done;
    report(*done);
    if (!speaks) return true;
    metrics->write(engine_->global_steps(), {{"validation_loss", done->loss}, {"perplexity", done->perplexity()}});
    monitors.write("Validation/Samples/loss", done->loss, engine_->global_samples());
    return true;
  };
  // The stopped run's step was to be followed by an evaluation.
  if (evaluation_due_ && validation_tokens_ != nullptr) {
    if (assess()) {
      evaluation_due_ = false;
    } else {
      stop = true;
    }
  }
  if (start_step >= steps_) log::info("{}: nothing left to train", step_of(start_step, steps_));
  while (engine_->global_steps() < steps_ && !stop && !out_of_time) {
    const double lr = engine_->get_lr()[0];
    const double scale = engine_->loss_scale();
    trace.before(engine_->global_steps() - start_step + 1);
    const Clock::time_point step_started = Clock::now();
    // One small reduction a step carries all that ranks must agree on.
    double shared[3] = {train_step() / group_->size(), signals_.requested() ? 1.0 : 0.0,
                        speaks && time_limit_ > 0 && seconds_since(started) > time_limit_ ? 1.0 : 0.0};
    group_->all_reduce({shared, 3, base::Dtype::f64}).wait();
    stop = shared[1] > 0;
    out_of_time = shared[2] > 0;
    const double seconds = seconds_since(step_started);
    throughput.add(step_tokens, seconds);
    const std::int64_t step = engine_->global_steps();
    const MemoryPeaks memory = MemoryPeaks::of(*group_);
    if (step == start_step + 1) log::info("memory: {} at most in the first step", memory.text());
    most.include(memory);
    if (speaks) {
      profile::StepMetrics line;
      line.step = step;
      line.loss = shared[0];
      line.lr = lr;
      line.grad_norm = engine_->get_global_grad_norm();
      line.loss_scale = scale;
      line.skipped = !engine_->was_step_applied();
      line.tokens = engine_->global_samples() * sequence_length_;
      line.tokens_per_s = static_cast<double>(step_tokens) / seconds;
      line.step_ms = seconds * 1e3;
      line.peak_host_bytes = memory.host;
      line.memory = memory.categories;
      metrics->write(line);
      const std::int64_t samples = engine_->global_samples();
      monitors.write("Train/Samples/train_loss", line.loss, samples);
      monitors.write("Train/Samples/lr", lr, samples);
      if (engine_->precision().scaled) monitors.write("Train/Samples/loss_scale", scale, samples);
      profile::ProgressState state;
      state.step = step;
      state.total_steps = steps_ == endless ? 0 : steps_;
      state.loss = line.loss;
      state.lr = lr;
      if (evaluation) state.validation_loss = evaluation->loss;
      state.tokens_per_s = throughput.tokens_per_second();
      if (steps_ != endless) state.remaining_s = throughput.remaining_seconds(steps_ - step);
      state.host_bytes = profile::host_bytes();
      progress->update(state);
    }
    const bool last = step >= steps_ || out_of_time;
    evaluation_due_ = validation_tokens_ != nullptr && (last || (evaluate_every > 0 && step % evaluate_every == 0));
    if (evaluation_due_ && !stop) {
      evaluation_due_ = !assess();
      stop = evaluation_due_;
    }
    if (stop || last || (save_every > 0 && step % save_every == 0)) save();
    trace.after(step - start_step, stop || last);
  }
  progress.reset();
  monitors.flush();
  if (!most.categories.empty()) log::info("memory: {} at most in the run", most.text());
  save();  // where no step was left: the weights may come from elsewhere
  if (stop && (engine_->global_steps() < steps_ || evaluation_due_)) {
    log::info("stopped at {} by {}; run the same command again to go on", step_of(engine_->global_steps(), steps_),
              signals_.name().empty() ? "another rank's signal" : signals_.name());
    return static_cast<int>(base::ExitCode::preempted);
  }
  if (out_of_time) log::info("training.time_limit: ended at {}", step_of(engine_->global_steps(), steps_));
  // A run that was complete before it began still tells what its model is worth.
  if (!evaluation && validation_tokens_ != nullptr) {
    if (const std::optional<Evaluation> done = evaluate()) report(*done);
  }
  if (const auto folder = config_.find<std::string>("training.export")) export_model(*folder);
  log::info("done: {} steps, {} tokens in {}, {} tokens/s", engine_->global_steps() - start_step,
            profile::format_count(static_cast<double>((engine_->global_steps() - start_step) * step_tokens)),
            profile::format_duration(seconds_since(started)), profile::format_count(throughput.tokens_per_second()));
  return static_cast<int>(base::ExitCode::ok);
}

void Trainer::export_model(const std::string& folder) {
  const auto tensors = engine_->module_state_dict();
  comm::on_root(*group_,
                [&] { models::save_model(model_->hf_config(), tensors, folder, engine_->precision().working); });
  log::info("exported a Hugging Face model to {}", folder);
}

}  // namespace deepspeed::train
