// SPDX-License-Identifier: Apache-2.0
// Every key that a configuration may hold, declared once. The first word of a row says what this version does with the
// key (Status): change it there, and the check, the help, the JSON Schema and docs/config.md follow (the page is
// rewritten by `DS_UPDATE_DOCS=1 config_test`). Values that are valid but don't work yet stand in not_yet().
#include "config/key_table.h"

#include <utility>

namespace deepspeed::config {
namespace {

using nlohmann::json;

Key row(Status status, const char* path, unsigned kinds, const char* fallback, const char* doc) {
  Key key;
  key.path = path;
  key.kinds = kinds;
  key.status = status;
  key.fallback = fallback == nullptr ? json(json::value_t::discarded) : json::parse(fallback);
  key.replacement = json(json::value_t::discarded);
  key.doc = doc;
  return key;
}
Key works(const char* path, unsigned kinds, const char* fallback, const char* doc) {
  return row(Status::works, path, kinds, fallback, doc);
}
Key parsed(const char* path, unsigned kinds, const char* fallback, const char* doc) {
  return row(Status::parsed, path, kinds, fallback, doc);
}
Key later(const char* path, unsigned kinds, const char* fallback, const char* doc) {
  return row(Status::unsupported, path, kinds, fallback, doc);
}
constexpr const char* none = nullptr;  // no default

class Rows {
 public:
  /// Adds the section's own row and then its keys, whose paths are relative to it.
  void add(Key own, std::vector<Key> keys) {
    const std::string prefix = own.path + ".";
    rows_.push_back(std::move(own));
    for (Key& key : keys) {
      key.path = prefix + key.path;
      rows_.push_back(std::move(key));
    }
  }
  void add(std::vector<Key> keys) {
    for (Key& key : keys) rows_.push_back(std::move(key));
  }
  std::vector<Key> take() { return std::move(rows_); }

 private:
  std::vector<Key> rows_;
};

const std::vector<std::string> comm_dtypes = {"fp16", "bf16", "fp32"};
const std::vector<std::string> tensor_dtypes = {"fp32",          "float32",       "float",      "fp16",
                                                "float16",       "half",          "bf16",       "bfloat16",
                                                "torch.float32", "torch.float16", "torch.half", "torch.bfloat16"};

void own_sections(Rows& rows) {
  rows.add(works("model", section | open | null, "null",
                 "The model: a Hugging Face folder, or a type and that family's Hugging Face config names "
                 "(n_layer, hidden_size, ...)."),
           {
               works("path", string | null, "null", "Folder with config.json and safetensors weights."),
               works("type", string | null, "null", "Family to build from scratch, for example gpt2 or llama."),
           });
  rows.add(
      works("data", section, "{}", "What is trained on."),
      {
          works("train", string | strings | null, "null", "Training file, or a list read one after another."),
          works("validation", string | strings | number | null, "null",
                "Validation file or files, or the fraction of the training tokens (their end) kept for it.")
              .range("0<..<1"),
          works("format", string, "\"auto\"", "Format of the files; auto looks at suffix and first bytes.")
              .one_of({"auto", "text", "jsonl", "bin", "hdf5"}),
          works("tokenizer", string, "\"bytes\"", "Tokenizer of text files; bytes has 256 tokens."),
          works("sequence_length", integer | null, "null", "Tokens a sample; null takes the model's longest context.")
              .range(">0"),
          works("shuffle", boolean, "true", "A new seeded permutation of the samples each epoch."),
      });
  rows.add(
      works("training", section, "{}", "How long to train, and what to keep."),
      {
          works("steps", integer | null, "null", "Optimizer steps to run; the first of steps, epochs, time_limit ends.")
              .range(">0"),
          works("epochs", number | null, "null", "Passes over the training data; 1 where no limit is given.")
              .range(">0"),
          works("time_limit", number | string | null, "null",
                "Seconds, or \"HH:MM:SS\", after which a checkpoint is written and the run ends.")
              .range(">0"),
          works("seed", integer, "1234", "Seed of initial weights, dropout and the samples' order.").range(">=0"),
          works("output", string, "\"runs/train\"", "Run folder: metrics, log, resolved config, checkpoints."),
          works("save_every", integer, "0", "Optimizer steps between checkpoints; 0 = only at the end.").range(">=0"),
          works("keep_last", integer, "3", "Checkpoints kept, oldest deleted first; 0 = all.").range(">=0"),
          works("evaluate_every", integer, "0", "Optimizer steps between evaluations; 0 = only at the end.")
              .range(">=0"),
          works("evaluate_batches", integer | null, "null",
                "Global batches an evaluation reads; null = the whole validation set.")
              .range(">0"),
          works("resume", string | null, "\"auto\"",
                "auto = from the output folder's latest checkpoint if there is one, never, or a checkpoint's path."),
          works("export", string | null, "null", "Folder that gets a Hugging Face model at the end."),
          works("activation_checkpointing", boolean, "false",
                "Recompute each block's activations in backward instead of keeping them."),
          works("deterministic", boolean | string, "\"auto\"",
                "Fixed order of sums across ranks; auto = true over MPI, false over NCCL.")
              .one_of({"auto"}),
          works("on_nan", string, "\"stop\"", "What a loss or gradient norm that isn't finite does outside fp16.")
              .one_of({"stop", "skip"}),
      });
}

void batch_and_step(Rows& rows) {
  rows.add({
      works(
          "train_batch_size", integer | null | automatic, "null",
          "Samples of one optimizer step over all ranks = micro batch x accumulation x data-parallel ranks; any of the "
          "three that is left out (or \"auto\") follows from the others."),
      works("train_micro_batch_size_per_gpu", integer | null | automatic, "null",
            "Samples a rank takes through one forward and backward."),
      works("gradient_accumulation_steps", integer | null | automatic, "null",
            "Micro batches whose gradients are added up before an optimizer step."),
      later("managed_gradient_accumulation", boolean, "true",
            "false = the caller's step() is the accumulation boundary each time."),
      works("steps_per_print", integer | null, "null", "Optimizer steps between progress lines; null = none.")
          .range(">0"),
      works("gradient_clipping", number, "1.0",
            "Largest global L2 norm of the gradients, larger ones are scaled down to it; 0 = no clipping.")
          .range(">=0"),
      works("prescale_gradients", boolean, "false",
            "Divide gradients by the number of ranks before the sum, not after."),
      works("gradient_predivide_factor", number, "1.0",
            "Divide by this before the sum over ranks and by the rest after it (keeps 16-bit sums in range).")
          .range(">0"),
      works("gradient_allreduce_op", string, "\"mean\"", "How ranks' gradients are combined.")
          .one_of({"mean"})
          .not_yet({"sum"})
          .complaining("Invalid gradient_allreduce_op. Supported operations: ['mean', 'sum']. Got: '{}'"),
      later("sparse_gradients", boolean, "false", "Exchange embedding gradients as (index, row) pairs."),
      parsed("disable_allgather", boolean, "false", "Old key without effect."),
      later("communication_data_type", string | null, "null",
            "Type that gradients have while they are exchanged; null = the model's.")
          .one_of(comm_dtypes)
          .complaining("Invalid communication_data_type. Supported data types: ['fp16', 'bf16', 'fp32']. Got: {}"),
      parsed("seq_parallel_communication_data_type", string | null, "\"fp32\"",
             "The same where sequence parallelism is on.")
          .one_of(comm_dtypes)
          .complaining("Invalid communication_data_type. Supported data types: ['fp16', 'bf16', 'fp32']. Got: {}"),
      later("dataloader_drop_last", boolean, "false", "Drop an epoch's last batch if it isn't full."),
      parsed("vocabulary_size", integer | null, "null", "Checked for a multiple of 8 only.").range(">0"),
      later("graph_harvesting", boolean, "false", "Capture the 16-bit optimizer's work as a CUDA graph."),
      parsed("disable_python_gc", boolean, "false", "There is no Python here to collect."),
  });
}

const std::vector<std::string> adam_like = {"Adam", "AdamW"};

void optimizer(Rows& rows) {
  rows.add(
      works("optimizer", section | null, "null", "The update rule."),
      {
          works("type", string | null, "null", "Update rule; DeepSpeed's own names in any case, torch's as written.")
              .one_of({"Adam", "AdamW", "SGD"})
              .not_yet({"Adagrad", "Lamb",  "Lion",  "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam",
                        "MuAdamW", "MuSGD", "Muon",  "Adadelta",   "Adafactor",   "Adamax",     "ASGD",
                        "LBFGS",   "NAdam", "RAdam", "RMSprop",    "Rprop",       "SparseAdam"})
              .ignoring_case()
              .complaining("{} is not a supported DeepSpeed Optimizer"),
          parsed("legacy_fusion", boolean, "false", "Old fused-Adam path; there is one path here."),
          works("params", section, "{}", "The rule's own numbers."),
          works("params.lr", number | automatic, "1e-3",
                "Learning rate; \"auto\" takes scheduler.params.warmup_max_lr.")
              .range(">=0"),
          works("params.lr", number | automatic, "0.02", "Learning rate.").range(">=0").for_types({"Muon"}),
          works("params.lr", number | automatic, "1e-2", "Learning rate.").range(">=0").for_types({"Adagrad"}),
          works("params.betas", numbers, "[0.9, 0.999]", "Decay of the first and second moment.")
              .range("0..<1")
              .for_types(
                  {"Adam", "AdamW", "Lamb", "Lion", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW"}),
          works("params.betas", numbers, "[0.9, 0.95]", "Decay of the moments in the auxiliary Adam group.")
              .range("0..<1")
              .for_types({"Muon"}),
          works("params.eps", number, "1e-8", "Added to the denominator.")
              .range(">=0")
              .for_types({"Adam", "AdamW", "Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW"}),
          works("params.eps", number, "1e-10", "Added to the denominator.").range(">=0").for_types({"Adagrad", "Muon"}),
          works("params.weight_decay", number, "0.0", "Weight decay: decoupled with adam_w_mode, else an L2 term.")
              .range(">=0"),
          works("params.torch_adam", boolean, "false",
                "Use torch's own Adam; here both are one kernel, so only AdamW's default weight decay (0.01) follows.")
              .for_types(adam_like),
          works("params.adam_w_mode", boolean, "true", "Decoupled weight decay; type AdamW forces true.")
              .for_types(adam_like),
          works("params.bias_correction", boolean, "true", "Correct the moments for their start at zero.")
              .for_types({"Adam", "AdamW", "Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb"}),
          later("params.amsgrad", boolean, "false", "The AMSGrad variant.")
              .for_types({"Adam", "AdamW", "Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb"}),
          parsed("params.set_grad_none", boolean, "true", "Free gradients rather than zero them; always done here.")
              .for_types(adam_like),
          parsed("params.fused", boolean | null, "null", "Torch's choice of kernel; there is one kernel here.")
              .for_types(adam_like),
          parsed("params.fp32_optimizer_states", boolean, "true", "Moments in fp32 under CPU offload.")
              .for_types(adam_like),
          works("params.momentum", number, "0.0", "Momentum.").range(">=0").for_types({"SGD", "MuSGD"}),
          works("params.dampening", number, "0.0", "Dampening of the momentum.").for_types({"SGD", "MuSGD"}),
          works("params.nesterov", boolean, "false", "Nesterov momentum.").for_types({"SGD", "MuSGD"}),
          works("params.momentum", number, "0.95", "Momentum of the matrix group.").range("0..<1").for_types({"Muon"}),
          works("params.muon_lr", number | null, "null", "Learning rate of the matrix group; null = lr.")
              .range(">=0")
              .for_types({"Muon"}),
          works("params.adam_lr", number | null, "null", "Learning rate of the auxiliary Adam group; null = lr.")
              .range(">=0")
              .for_types({"Muon"}),
          works("params.ns_method", string, "\"gram\"", "Newton-Schulz variant.")
              .one_of({"gram", "standard"})
              .for_types({"Muon"}),
          works("params.max_coeff", number, "10.0", "Upper bound of the trust ratio.")
              .range(">0")
              .for_types({"Lamb", "OneBitLamb"}),
          works("params.min_coeff", number, "0.01", "Lower bound of the trust ratio.")
              .range(">=0")
              .for_types({"Lamb", "OneBitLamb"}),
          later("params.eps_inside_sqrt", boolean, "false", "Denominator sqrt(v + eps) instead of sqrt(v) + eps.")
              .for_types({"Lamb", "OneBitLamb", "OneBitAdam"}),
          works("params.freeze_step", integer, "100000", "Warm-up steps before compression starts.")
              .range(">0")
              .for_types({"OneBitAdam", "OneBitLamb"}),
          parsed("params.comm_backend_name", string, "\"nccl\"",
                 "Who carries compressed momentum; the run's own group here.")
              .one_of({"nccl", "mpi", "hccl", "compressed"})
              .for_types({"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}),
          parsed("params.cuda_aware", boolean, "false", "MPI takes device memory; found out by itself here.")
              .for_types({"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}),
          works("params.var_freeze_step", integer, "100000", "Step from which the variance is frozen.")
              .range(">0")
              .for_types({"ZeroOneAdam"}),
          works("params.var_update_scaler", integer, "16", "Updates before the variance's interval doubles.")
              .range(">0")
              .for_types({"ZeroOneAdam"}),
          works("params.local_step_scaler", integer, "32678", "Steps before the local-step interval doubles.")
              .range(">0")
              .for_types({"ZeroOneAdam"}),
          works("params.local_step_clipper", integer, "16", "Largest local-step interval.")
              .range(">0")
              .for_types({"ZeroOneAdam"}),
          works("params.coeff_beta", number, "0.9", "Decay of the running trust ratio.")
              .range("0..<1")
              .for_types({"OneBitLamb"}),
          works("params.factor_max", number, "4.0", "Upper bound of the scaling factor.")
              .range(">0")
              .for_types({"OneBitLamb"}),
          works("params.factor_min", number, "0.5", "Lower bound of the scaling factor.")
              .range(">0")
              .for_types({"OneBitLamb"}),
          works("params.factor_threshold", number, "0.1", "Largest relative change of the factor in a step.")
              .range(">0")
              .for_types({"OneBitLamb"}),
      });
}

const std::vector<std::string> warmup = {"WarmupLR", "WarmupDecayLR"};
const std::vector<std::string> warmups = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
const std::vector<std::string> decays = {"WarmupDecayLR", "WarmupCosineLR"};
const std::vector<std::string> cycle = {"OneCycle"};
const std::vector<std::string> range_test = {"LRRangeTest"};

void scheduler(Rows& rows) {
  rows.add(works("scheduler", section | null, "null", "The learning-rate schedule, moved once an optimizer step."),
           {
               works("type", string | null, "null", "Schedule; DeepSpeed's five, or torch's as written.")
                   .one_of({"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
                   .not_yet({"LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR",
                             "ExponentialLR", "PolynomialLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
                             "ChainedScheduler", "SequentialLR", "ReduceLROnPlateau", "CyclicLR", "OneCycleLR"})
                   .complaining("DeepSpeed does not recognize LR scheduler {}"),
               works("params", section, "{}", "The schedule's own numbers."),
               works("params.last_batch_iteration", integer, "-1", "Steps already made; -1 = a fresh schedule.")
                   .range(">=-1"),
               works("params.warmup_min_lr", number | numbers | automatic, "0.0", "Rate at the start; \"auto\" = 0.")
                   .range(">=0")
                   .for_types(warmup),
               works("params.warmup_max_lr", number | numbers | null | automatic, "null",
                     "Rate after warm-up; null or \"auto\" = the optimizer's lr.")
                   .range(">=0")
                   .for_types({"WarmupLR"}),
               works("params.warmup_max_lr", number | numbers | automatic, "0.001",
                     "Rate after warm-up; \"auto\" = the optimizer's lr.")
                   .range(">=0")
                   .for_types({"WarmupDecayLR"}),
               works("params.warmup_num_steps", integer, "1000", "Steps of warm-up; 1 counts as 2.")
                   .range(">0")
                   .for_types(warmups)
                   .complaining("warmup_num_steps must be a positive integer, got {}"),
               works("params.warmup_type", string, "\"log\"", "Curve of the warm-up.")
                   .one_of({"log", "linear"})
                   .for_types(warmups),
               works("params.total_num_steps", integer | automatic, none,
                     "Step at which the decay ends; \"auto\" = training.steps.")
                   .range(">0")
                   .for_types(decays)
                   .needed(),
               works("params.warmup_min_ratio", number, "0.0", "Share of the optimizer's lr at the start.")
                   .range(">=0")
                   .for_types({"WarmupCosineLR"}),
               works("params.cos_min_ratio", number, "1e-4", "Share of the optimizer's lr at the end.")
                   .range(">=0")
                   .for_types({"WarmupCosineLR"}),
               works("params.cycle_min_lr", number | numbers, none, "Lower rate of the cycle.")
                   .range(">=0")
                   .for_types(cycle)
                   .needed(),
               works("params.cycle_max_lr", number | numbers, none, "Upper rate of the cycle.")
                   .range(">=0")
                   .for_types(cycle)
                   .needed(),
               works("params.decay_lr_rate", number, "0.0", "Decay of the rate after the cycle.")
                   .range(">=0")
                   .for_types(cycle),
               works("params.cycle_first_step_size", integer, "2000", "Steps of the rising half.")
                   .range(">0")
                   .for_types(cycle)
                   .complaining("cycle_first_step_size must be positive, got {}"),
               works("params.cycle_second_step_size", integer | null, "null",
                     "Steps of the falling half; null = as the first.")
                   .range(">=0")
                   .for_types(cycle)
                   .complaining("cycle_second_step_size must be non-negative, got {}"),
               works("params.cycle_first_stair_count", integer, "0", "Stairs in the rising half; 0 = smooth.")
                   .range(">=0")
                   .for_types(cycle),
               works("params.cycle_second_stair_count", integer | null, "null",
                     "Stairs in the falling half; null = as the first.")
                   .range(">=0")
                   .for_types(cycle),
               works("params.decay_step_size", integer, "0", "Steps of one decay interval; 0 = no decay.")
                   .range(">=0")
                   .for_types(cycle),
               works("params.cycle_momentum", boolean, "true", "Cycle the momentum against the rate.").for_types(cycle),
               works("params.cycle_min_mom", number, "0.8", "Lower momentum.").range("0..1").for_types(cycle),
               works("params.cycle_max_mom", number, "0.9", "Upper momentum.").range("0..1").for_types(cycle),
               works("params.decay_mom_rate", number, "0.0", "Growth of the momentum after the cycle.")
                   .range(">=0")
                   .for_types(cycle),
               works("params.lr_range_test_min_lr", number | numbers, "1e-3", "Rate at the start.")
                   .range(">=0")
                   .for_types(range_test),
               works("params.lr_range_test_step_size", integer, "2000", "Steps between increases.")
                   .range(">0")
                   .for_types(range_test)
                   .complaining("lr_range_test_step_size must be a positive integer, got {}"),
               works("params.lr_range_test_step_rate", number, "1.0", "Growth in one interval.").for_types(range_test),
               works("params.lr_range_test_staircase", boolean, "false", "Grow in stairs, not smoothly.")
                   .for_types(range_test),
           });
}

void precision(Rows& rows) {
  rows.add(
      works("fp16", section, "{}", "Training in fp16 with fp32 master weights and loss scaling.")
          .switched_by("enabled")
          .as_typed(),
      {
          works("enabled", boolean | automatic, "false", "\"auto\" follows the model's stored type."),
          later("auto_cast", boolean, "false", "Cast floating-point inputs to fp16."),
          works("loss_scale", number, "0.0", "Fixed loss scale; 0 = dynamic.")
              .range(">=0")
              .complaining("fp16.loss_scale must be >= 0 (0 enables dynamic loss scaling)"),
          works("initial_scale_power", integer, "16", "The dynamic scale starts at 2 to this power.").range("0..1023"),
          works("loss_scale_window", integer, "1000", "Good steps before the scale doubles."),
          works("hysteresis", integer, "2", "Overflows before the scale is halved."),
          works("consecutive_hysteresis", boolean, "false", "Each good step restores the hysteresis."),
          works("min_loss_scale", integer, "1", "Smallest dynamic scale."),
          later("fp16_master_weights_and_grads", boolean, "false", "Keep master weights in fp16 (with CPU offload)."),
      });
  rows.add(works("bf16", section, "{}", "Training in bf16 with fp32 master weights.")
               .switched_by("enabled")
               .as_typed()
               .also({"bfloat16"}),
           {
               works("enabled", boolean | automatic, "false", "\"auto\" follows the model's stored type."),
               later("immediate_grad_update", boolean, "false", "Add to the fp32 gradient inside backward."),
               works("check_grad_overflow", boolean, "true", "Skip a step whose gradients aren't finite."),
               later("bf16_master_weights_and_grads", boolean, "false", "Keep master weights in bf16."),
               later("bf16_optimizer_states", boolean, "false", "Keep the moments in bf16."),
           });
  rows.add(
      later("torch_autocast", section, "{}", "Autocast of the forward pass.").switched_by("enabled").as_typed(),
      {
          later("enabled", boolean, "false", "Turn autocast on."),
          parsed("dtype", string | null, "null", "Type of autocast operations; null = bf16.")
              .one_of({"fp16", "float16", "half", "torch.float16", "torch.half", "bf16", "bfloat16", "torch.bfloat16",
                       "fp32", "float32", "float", "torch.float32", "torch.float", "int8", "torch.int8"})
              .complaining("'{}' is not a valid DtypeEnum"),
          parsed("lower_precision_safe_modules", strings | null, "null",
                 "Module classes whose parameters are exchanged in the lower type; null = Linear and Conv.")
              .complaining("Invalid module names for torch autocast: {}. Expected list of strings."),
      });
  rows.add(later("amp", section | open, "{}", "Apex AMP, which only exists in Python.").switched_by("enabled"),
           {later("enabled", boolean, "false", "Turn Apex AMP on.")});
  rows.add(
      works("data_types", section, "{}", "Number types of gradients, parameters and buffers."),
      {
          works("grad_accum_dtype", string | null, "null",
                "Type in which gradients are added up over micro batches; null = the model's.")
              .one_of(tensor_dtypes)
              .complaining("'{}' is not a valid DtypeEnum"),
          works("param_dtype", string | null, "null", "Must agree with fp16 / bf16; a check only.")
              .one_of(tensor_dtypes)
              .complaining("'{}' is not a valid DtypeEnum"),
          later("buffer_dtype", string | null, "null", "Cast floating-point buffers to this; null = leave them.")
              .one_of(tensor_dtypes)
              .complaining("'{}' is not a valid DtypeEnum"),
          later("keep_in_fp32_modules", string | strings, "\"auto\"", "Name patterns of modules that stay in fp32.")
              .one_of({"auto"})
              .complaining("data_types.keep_in_fp32_modules must be \"auto\" or a list of name patterns, got {}"),
      });
}

void zero(Rows& rows) {
  rows.add(
      works("zero_optimization", section, "{}", "Where parameters, gradients and optimizer states live.").as_typed(),
      {
          works("stage", integer, "0",
                "What is partitioned over the ranks: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters.")
              .one_of({"0"})
              .not_yet({"1", "2", "3"}),
          parsed("overlap_comm", boolean | null, "null", "Reduce while backward goes on; null = true for stage 3."),
      });
}

}  // namespace

std::vector<Key> key_rows() {
  Rows rows;
  own_sections(rows);
  batch_and_step(rows);
  optimizer(rows);
  scheduler(rows);
  precision(rows);
  zero(rows);
  return rows.take();
}

}  // namespace deepspeed::config
