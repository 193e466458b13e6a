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
          works(
              "profile", integers | null, "null",
              "[FIRST, LAST]: what each rank does in these steps of the run, counted from where it begins, is written "
              "to trace_rankN.json in the run folder.")
              .range(">0"),
          works("activation_checkpointing", boolean, "false",
                "Recompute each block's activations in backward instead of keeping them."),
          works(
              "deterministic", boolean | string, "\"auto\"",
              "Fixed order of sums across ranks; auto = so over MPI, not over NCCL. true: also the same order at every "
              "ZeRO stage, for which stages 0 and 1 reduce each micro batch, not each step.")
              .one_of({"auto"})
              .refusing({"false"}),
          works("on_nan", string, "\"stop\"",
                "What gradients that aren't finite do in fp32; fp16 skips the step, and bf16 by "
                "bf16.check_grad_overflow.")
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
      works("steps_per_print", integer | null, "null", "Optimizer steps between progress lines; null = 10.")
          .range(">0"),
      works("gradient_clipping", number, "1.0",
            "Largest global L2 norm of the gradients, larger ones are scaled down to it; 0 = no clipping.")
          .range(">=0"),
      works("prescale_gradients", boolean, "false",
            "Divide gradients by the ranks before the sum over ranks, not after it."),
      works("gradient_predivide_factor", number, "1.0",
            "Divide gradients by this before the sum over ranks and by the rest after it; not with prescale_gradients.")
          .range(">0"),
      works("gradient_allreduce_op", string, "\"mean\"", "How ranks' gradients are combined.")
          .one_of({"mean", "sum"})
          .complaining("Invalid gradient_allreduce_op. Supported operations: ['mean', 'sum']. Got: '{}'"),
      works("sparse_gradients", boolean, "false",
            "Exchange gradients of embeddings (token embeddings that no head shares, torch::nn::Embedding) as (index, "
            "row) "
            "pairs where that is less than the whole table; at every ZeRO stage, with the same result."),
      parsed("disable_allgather", boolean, "false", "Old key without effect."),
      works("communication_data_type", string | null, "null",
            "Type that gradients have while they are exchanged; null = the one they are added up in.")
          .one_of(comm_dtypes)
          .complaining("Invalid communication_data_type. Supported data types: ['fp16', 'bf16', 'fp32']. Got: {}"),
      parsed("seq_parallel_communication_data_type", string | null, "\"fp32\"",
             "The same where sequence parallelism is on.")
          .one_of(comm_dtypes)
          .complaining("Invalid communication_data_type. Supported data types: ['fp16', 'bf16', 'fp32']. Got: {}"),
      works("dataloader_drop_last", boolean, "false", "Drop an epoch's last batch if it isn't full."),
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
              .one_of({"Adam", "AdamW", "Adagrad", "Lion", "SGD"})
              .not_yet({"Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD", "Muon",
                        "Adadelta", "Adafactor", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop",
                        "SparseAdam"})
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
              .for_types({"Adam", "AdamW", "Adagrad", "Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb"}),
          parsed("params.set_grad_none", boolean, "true", "Free gradients rather than zero them; always done here.")
              .for_types(adam_like),
          later("params.fp32_optimizer_states", boolean, "true", "false = moments in bf16.")
              .for_types({"Adam", "AdamW", "Adagrad", "Lion"}),
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

const std::vector<std::string> devices = {"cpu", "nvme"};

void zero(Rows& rows) {
  rows.add(
      works("zero_optimization", section, "{}", "Where parameters, gradients and optimizer states live.").as_typed(),
      {
          works(
              "stage", integer, "0",
              "What is partitioned over the ranks: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters.")
              .one_of({"0", "1", "2", "3"}),
          parsed("contiguous_gradients", boolean, "true",
                 "Copy gradients into one buffer as they come; always so here."),
          parsed("reduce_scatter", boolean, "true",
                 "Reduce a gradient to its owner only, not to all ranks; the stage alone decides here."),
          works("reduce_bucket_size", integer, "5e8",
                "Elements of one gradient reduction; \"auto\" = hidden size squared.")
              .range(">0"),
          parsed("use_multi_rank_bucket_allreduce", boolean, "true",
                 "One reduction for the slices of many owners; always so here."),
          parsed("allgather_partitions", boolean, "true", "Parameters are always brought together by all-gather."),
          works("allgather_bucket_size", integer, "5e8",
                "Elements of updated parameters that are on their way to the other ranks at once; even. A unit is one "
                "gather, whatever its size.")
              .range(">=0"),
          works("overlap_comm", boolean | null, "null", "Reduce while backward goes on; null = true for stage 3."),
          later("compute_grad_norm", boolean, "true", "false = leave the gradient norm out where nothing clips by it."),
          works("load_from_fp32_weights", boolean, "true",
                "Restore master weights from the checkpoint's fp32 copy; false = from its 16-bit weights."),
          later("elastic_checkpoint", boolean, "false",
                "Old elastic checkpoints; every checkpoint here loads at any rank count."),
          works("offload_param", section | null, "null", "Keep parameters outside the device.").switched_by("device"),
          works("offload_param.device", string, "\"none\"", "Where parameters live.").one_of({"none"}).not_yet(devices),
          parsed("offload_param.nvme_path", string | null, "null", "Folder of the swap files."),
          parsed("offload_param.buffer_count", integer, "5", "Pinned swap buffers.").range(">=0"),
          parsed("offload_param.buffer_size", integer, "1e8", "Elements of one swap buffer.").range(">=0"),
          parsed("offload_param.max_in_cpu", integer, "1e9", "Parameter elements kept in host memory beside nvme.")
              .range(">=0"),
          parsed("offload_param.pin_memory", boolean, "true", "Page-locked host memory."),
          works("offload_optimizer", section | null, "null", "Keep optimizer states outside the device.")
              .switched_by("device"),
          works("offload_optimizer.device", string, "\"none\"", "Where optimizer states live.")
              .one_of({"none"})
              .not_yet(devices),
          parsed("offload_optimizer.nvme_path", string | null, "null", "Folder of the swap files."),
          parsed("offload_optimizer.buffer_count", integer, "4",
                 "Swap buffers; at least the states of a parameter, Adam's 4.")
              .range(">=0"),
          parsed("offload_optimizer.pin_memory", boolean, "true", "Page-locked host memory."),
          parsed("offload_optimizer.pipeline_read", boolean, "false", "Read the next tile while this one is updated."),
          parsed("offload_optimizer.pipeline_write", boolean, "false",
                 "Write the last tile while this one is updated."),
          parsed("offload_optimizer.fast_init", boolean, "false", "Quick creation of the swap files."),
          parsed("offload_optimizer.ratio", number, "1.0", "Share of the sub-groups updated on the host (stage 3).")
              .range("0..1"),
          later("offload_optimizer.super_offload", boolean, "false",
                "SuperOffload: host updates overlapped with backward."),
          parsed("offload_optimizer.cpuadam_cores_perc", number, "0.8",
                 "Share of the cores for SuperOffload's updates.")
              .range("0..1")
              .complaining("cpuadam_cores_perc must be between 0 and 1"),
          later("zenflow", section | null, "null",
                "ZenFlow: important columns on the device, the rest later on the host."),
          later("zenflow.topk_ratio", number, "0.1", "Share of the columns updated on the device each step.")
              .range("0<..<1"),
          later("zenflow.select_strategy", string, "\"auto\"", "When columns are chosen anew; auto = each epoch.")
              .one_of({"auto", "step", "epoch"})
              .complaining("select_strategy must be one of \"auto\", \"step\", or \"epoch\""),
          later("zenflow.select_interval", integer | string, "\"auto\"", "Steps or epochs between choices.")
              .one_of({"auto"})
              .range(">0")
              .complaining("If select_interval is a string, it must be \"auto\""),
          later("zenflow.update_interval", integer | string, "\"auto\"", "Steps between host updates.")
              .one_of({"auto"})
              .range(">0")
              .complaining("If update_interval is a string, it must be \"auto\""),
          later("zenflow.overlap_step", boolean, "false", "Host update beside the next steps."),
          later("zenflow.offload", boolean, "false", "Also offload the chosen columns' state."),
          later("zenflow.auto_ratio", number, "0.99", "Share of parameters that must vote for an update.")
              .range("0..1"),
          later("zenflow.full_warm_up_rounds", integer, "0", "Full updates at the start.")
              .range(">=0")
              .complaining("full_warm_up_rounds must be an integer"),
          later("zenflow.pt_reserved_cores_perc", number, "0.5", "Share of the cores kept for the main process.")
              .range("0..1")
              .complaining("pt_reserved_cores_perc must be a float"),
          later("zenflow.steps_per_epoch", integer | null, "null", "Filled at run time.").range(">0"),
          works("sub_group_size", integer, "1e9",
                "Elements of one tile of the optimizer step; a tile ends with its unit.")
              .range(">=0"),
          works("stage3_prefetch_bucket_size", integer, "5e7",
                "Units are gathered ahead of use while fewer elements than this are here unused; 0 = none; \"auto\" = "
                "0.9 x hidden size squared.")
              .range(">=0")
              .also({"prefetch_bucket_size"}),
          parsed(
              "stage3_param_persistence_threshold", integer, "1e5",
              "Parameters up to this size stay gathered (here those outside of units do, of any size); \"auto\" = 10 x "
              "hidden size.")
              .range(">=0")
              .also({"param_persistence_threshold"}),
          works("stage3_model_persistence_threshold", integer, "9223372036854775807",
                "Most elements that stay gathered; see stage3_param_persistence_threshold.")
              .range(">=0")
              .also({"model_persistence_threshold"}),
          works("stage3_max_live_parameters", integer, "1e9",
                "Most elements gathered at once; what a running unit needs is gathered all the same.")
              .range(">=0")
              .also({"max_live_parameters"}),
          works("stage3_max_reuse_distance", integer, "1e9",
                "Keep a unit's parameters that are used again before so many elements of other units are.")
              .range(">=0")
              .also({"max_reuse_distance"}),
          parsed("stage3_gather_16bit_weights_on_model_save", boolean, "false",
                 "Gather the 16-bit weights for a saved model; training.export always does.")
              .also({"gather_16bit_weights_on_model_save"}),
          later("stage3_module_granularity_threshold", integer, "0", "Treat modules finer than this as one; 0 = off.")
              .range(">=0")
              .also({"module_granularity_threshold"}),
          parsed("stage3_use_all_reduce_for_fetch_params", boolean, "false",
                 "Gather by a sum of zero-padded buffers; always an all-gather here.")
              .also({"use_all_reduce_for_fetch_params"}),
          parsed("stage3_allgather_sequential", boolean, "false",
                 "Gather one parameter at a time; here a unit at once.")
              .also({"allgather_sequential"}),
          works("ignore_unused_parameters", boolean, "true",
                "A gradient that no rank has in a step counts as zero; false = that is an error that names the "
                "parameter."),
          later("legacy_stage1", boolean, "false", "Removed long ago."),
          works(
              "round_robin_gradients", boolean, "false",
              "Deal a unit's parameters out over the ranks in turn (stages 1 and 2); slices are even without it too."),
          parsed("parameter_alignment", boolean, "false",
                 "Start each parameter at 16 bytes in the flat buffer; no kernel here needs it."),
          later("zero_hpz_partition_size", integer, "1", "ZeRO++: ranks of the secondary shard group.")
              .range(">=0")
              .also_off({"0"}),
          later("zero_quantized_weights", boolean, "false", "ZeRO++: int8 all-gather of the weights."),
          later("zero_quantized_nontrainable_weights", boolean, "false", "Frozen weights kept in int8."),
          later("zero_quantized_gradients", boolean, "false", "ZeRO++: int4 all-to-all reduction of the gradients."),
          later("zeropp_loco_param", open | null, "null", "ZeRO++: error feedback of the quantized gradients."),
          later("mics_shard_size", integer, "-1", "MiCS: ranks of one shard group; -1 = off.")
              .range(">=-1")
              .also_off({"0"}),
          later("mics_hierarchical_params_gather", boolean, "false", "MiCS: gather in two levels."),
          parsed("memory_efficient_linear", boolean, "true", "Stage 3 keeps no weight for backward; always so here."),
          later("pipeline_loading_checkpoint", boolean, "false", "Ranks of a node load one after another (stage 3)."),
          parsed("override_module_apply", boolean, "true", "Python only: gather in Module.apply."),
          works("log_trace_cache_warnings", boolean, "false",
                "Log when the order of the units changes, so that nothing is gathered ahead for a while (stage 3)."),
          parsed("enable_sanity_checks", boolean, "false",
                 "More checks across ranks; those that exist are always on here."),
          parsed("save_muon_momentum_buffer_in_memory", boolean, "false", "Keep Muon's momentum out of nvme."),
          works("leaf_module", section, "{}", "Modules gathered as one with all they hold.")
              .complaining("leaf_module configuration must be a mapping of fields to values"),
          parsed("leaf_module.classes", strings | string,
                 "[\"transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock\", "
                 "\"transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock\", "
                 "\"transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock\"]",
                 "By class; blocks are units here, so these are always gathered as one."),
          later("leaf_module.names", strings | string, "[]", "By name."),
          later("leaf_module.name_suffixes", strings | string, "[]", "By the end of the name."),
          parsed("cpu_offload", boolean | null, "null", "Old form.")
              .replaced("offload_optimizer", "{\"device\": \"cpu\"}"),
          parsed("cpu_offload_param", boolean | null, "null", "Old form.")
              .replaced("offload_param", "{\"device\": \"cpu\"}"),
          parsed("cpu_offload_use_pin_memory", boolean | null, "null", "Old form without effect.").replaced("-"),
          parsed("stage3_gather_fp16_weights_on_model_save", boolean, "false", "Old name.")
              .replaced("stage3_gather_16bit_weights_on_model_save"),
      });
}

void parallelism(Rows& rows) {
  rows.add({
      later("sequence_parallel_size", integer | null, "null", "Ranks that share one sequence (Ulysses).")
          .range(">0")
          .also_off({"1"}),
      parsed("data_parallel_size", integer | null, "null",
             "Data-parallel ranks beside sequence_parallel_size; a check only.")
          .range(">0"),
      later("use_data_before_expert_parallelism", boolean, "false", "Order of ranks: data before expert."),
  });
  rows.add(
      later("pipeline", section, "{}", "Pipeline parallelism."),
      {
          later("stages", string | integer, "\"auto\"", "Pipeline stages.").also_off({"1"}),
          parsed("partition", string, "\"best\"", "How layers are dealt out over the stages."),
          parsed("seed_layers", boolean, "false", "A seed of its own for each layer."),
          parsed("activation_checkpoint_interval", integer, "0", "Layers between kept activations; 0 = all are kept.")
              .range(">=0"),
          parsed("pipe_partitioned", boolean, "true", "Send each tensor rank's share of the activations."),
          parsed("grad_partitioned", boolean, "true", "Send each tensor rank's share of the gradients."),
          parsed("use_reentrant", boolean | null, "null", "Python's choice of recompute; there is one here."),
      });
  rows.add(
      later("tensor_parallel", section, "{}", "Tensor parallelism from name patterns (AutoTP).")
          .switched_by("autotp_size")
          .as_typed(),
      {
          later("autotp_size", integer, "0", "Ranks that share each layer; 0 and 1 = off.")
              .range(">=0")
              .also_off({"1"}),
          parsed("dtype", string, "\"fp16\"", "Type the model is loaded in.").one_of(tensor_dtypes),
          parsed("tp_overlap_comm", boolean, "false", "Overlap the reduction of input gradients."),
          parsed("vocab_parallel_lm_head", boolean | null, "null", "Split the output head by vocabulary."),
          parsed("vocab_parallel_ce_backend", string, "\"torch\"", "Loss over a split vocabulary.")
              .one_of({"torch", "liger"}),
          parsed("tp", section, "{}", "Inner sizes.")
              .also({"tensor_parallel"})
              .complaining("tensor_parallel.tp must be a dict when provided."),
          parsed("tp.tp_size", integer, "1", "1, or the same as autotp_size.").range(">0"),
          parsed("tp.tp_grain_size", integer, "1", "Smallest width of a share.").range(">0"),
          later("tp.mpu", open | null, "null", "A Python object; nothing a file can hold."),
          later("tp.tp_group", open | null, "null", "A Python object; nothing a file can hold."),
          parsed("preset_model", string | null, "null", "Built-in patterns of a family.")
              .one_of({"llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"}),
          parsed("partition_config", section | null, "null", "Own patterns."),
          parsed("partition_config.layer_specs", list, "[]", "What is split how; the first match counts."),
          parsed("partition_config.layer_specs.[].patterns", strings, "[]", "Regular expressions on MODULE.weight."),
          parsed("partition_config.layer_specs.[].partition_type", string, "\"column\"", "How to split.")
              .one_of({"column", "row", "skip"}),
          parsed("partition_config.layer_specs.[].shape", list | null, "null", "Logical sub-parameters."),
          parsed("partition_config.layer_specs.[].partition_dim", integer | null, "null", "Dimension; null = by type."),
          parsed("partition_config.layer_specs.[].model_types", strings | null, "null", "Only for these families."),
          parsed("partition_config.layer_specs.[].gather_output", boolean, "false", "Gather a column split's output."),
          parsed("partition_config.layer_specs.[].grad_allreduce", boolean, "false",
                 "Sum the replicated parameter's gradient."),
          parsed("partition_config.tp_size", integer, "1", "Set from autotp_size.").range(">0"),
          parsed("partition_config.embedding_partition_dim", integer, "1", "Dimension in which embeddings are split."),
          parsed("partition_config.lm_head_patterns", strings, "[\"lm_head\", \"embed_out\"]",
                 "Names of the output head."),
          parsed("partition_config.use_default_specs", boolean, "true", "Also use the family's patterns."),
          parsed("partition_config.strict_mode", boolean, "false", "An unmatched parameter is an error."),
          parsed("keep_module_on_host", boolean, "false", "Leave the shares in host memory."),
          parsed("replace_with_kernel_inject", boolean, "false", "Without effect in training.").also({"kernel_inject"}),
          parsed("injection_policy_tuple", list | null, "null", "Internal."),
      });
  rows.add(
      later("expert_parallel", section, "{}", "Mixture-of-experts blocks of Hugging Face models over ranks (AutoEP).")
          .switched_by("enabled"),
      {
          later("enabled", boolean, "false", "Turn it on."),
          parsed("autoep_size", integer, "1", "Ranks that share the experts.").range(">0"),
          parsed("expert_tensor_parallel_size", integer, "1", "Ranks that share one expert.").range(">0"),
          parsed("validate_folding_routing", boolean, "false", "More checks."),
          parsed("async_split_plan", boolean, "false", "Plan the exchange beside the computation."),
          parsed("preset_model", string | null, "null", "Built-in names of a family.")
              .one_of({"mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3"})
              .complaining("Unknown preset_model '{}'. Available presets: mixtral, qwen3_moe, qwen3_5_moe, "
                           "deepseek_v2, deepseek_v3"),
          parsed("moe_layer_pattern", string | null, "null", "Regular expression of the blocks' names."),
          parsed("expert_pattern", string | null, "null", "Name of the experts."),
          parsed("router_pattern", string | null, "null", "Name of the router."),
          parsed("expert_w1", string | null, "null", "Name of the gate (or gate and up) weight."),
          parsed("expert_w2", string | null, "null", "Name of the down weight."),
          parsed("expert_w3", string | null, none, "Name of the up weight; null = inside w1."),
          parsed("num_experts_attr", string | null, "null", "The model config's name for the number of experts."),
          parsed("top_k_attr", string | null, "null", "The model config's name for k."),
          parsed("has_shared_experts", boolean | null, "null", "A shared expert is present."),
          parsed("shared_experts_pattern", string | null, "null", "Name of the shared expert."),
          parsed("shared_experts_gate_pattern", string | null, "null", "Name of the shared expert's gate."),
          parsed("expert_activation", string | null, "null", "Activation; null = the model's."),
          parsed("use_grouped_mm", boolean, "true", "One grouped matrix product for all experts."),
          parsed("disable_triton_grouped_mm", boolean, "false", "There is no Triton here."),
          parsed("route_norm", boolean | null, "null", "Renormalise the top-k weights; null = the family's way."),
          parsed("route_scale", number, "1.0", "Factor of the weights."),
          parsed("routed_scaling_factor", number | string, "\"auto\"", "Overrides route_scale; auto = the model's.")
              .one_of({"auto"}),
          parsed("score_apply", string, "\"auto\"", "When scores multiply.")
              .one_of({"auto", "pre", "post"})
              .complaining("score_apply must be one of ('auto', 'pre', 'post'), got '{}'"),
          parsed("combine_impl", string, "\"auto\"", "How outputs are combined.")
              .one_of({"auto", "weighted_sum", "legacy_bmm"})
              .complaining("combine_impl must be one of ('auto', 'weighted_sum', 'legacy_bmm'), got '{}'"),
          parsed("row_weighting_impl", string, "\"auto\"", "How rows are weighted."),
          parsed("gate_up_impl", string, "\"separate\"", "Gate and up product."),
          parsed("comm_backend", string, "\"comm\"", "Who carries the tokens."),
          parsed("comm_num_sm", integer, "12", "Multiprocessors for the exchange.").range(">0"),
          parsed("comm_qp_margin", integer, "4", "Spare queue pairs.").range(">=0"),
          parsed("comm_max_tokens_per_rank", integer, "0", "Bound of the exchange; 0 = none.").range(">=0"),
          parsed("score_func", string, "\"auto\"", "The router's score.")
              .one_of({"auto", "softmax", "sigmoid"})
              .complaining("score_func must be one of ('auto', 'softmax', 'sigmoid'), got '{}'"),
          parsed("top_k", integer | string, "\"auto\"", "Experts a token goes to; auto = the model's.")
              .one_of({"auto"})
              .range(">0"),
          parsed("num_expert_groups", integer | null, "null", "Groups of group-limited routing.").range(">0"),
          parsed("num_limited_groups", integer | null, "null", "Groups kept for a token.").range(">0"),
          parsed("load_balance_coeff", null, "null", "Not supported by DeepSpeed either."),
      });
}

void memory_and_files(Rows& rows) {
  rows.add(works("activation_checkpointing", section, "{}",
                 "How recomputed activations are kept; training.activation_checkpointing turns recompute on."),
           {
               later("partition_activations", boolean, "false", "Each tensor rank keeps its share."),
               later("cpu_checkpointing", boolean, "false", "Keep them in host memory."),
               later("contiguous_memory_optimization", boolean, "false", "Keep them in one buffer made ahead."),
               parsed("number_checkpoints", integer | null, "null", "Layers that the one buffer holds.").range(">0"),
               parsed("synchronize_checkpoint_boundary", boolean, "false",
                      "Wait for the device around each; changes timing only."),
               later("profile", boolean, "false", "Time each recompute."),
           });
  rows.add(parsed("aio", section, "{}", "Asynchronous file I/O of nvme offload, which takes these numbers."),
           {
               parsed("block_size", integer, "1048576", "Bytes of one request.").range(">0"),
               parsed("queue_depth", integer, "8", "Requests under way.").range(">0"),
               parsed("intra_op_parallelism", integer, "1", "Threads a request is shared by.")
                   .range(">0")
                   .also({"thread_count"}),
               parsed("single_submit", boolean, "false", "Submit requests one by one."),
               parsed("overlap_events", boolean, "true", "Submit while others complete."),
               later("use_gds", boolean, "false", "GPUDirect storage."),
           });
  rows.add(
      works("checkpoint", section, "{}", "Saving and loading."),
      {
          parsed("tag_validation", string, "\"WARN\"",
                 "What ranks with different tags do; one rank names the tag here.")
              .one_of({"WARN", "IGNORE", "FAIL"})
              .ignoring_case()
              .complaining("Checkpoint config contains invalid tag_validation value of {^}, expecting one of ['WARN', "
                           "'IGNORE', 'FAIL']"),
          later("load_universal", boolean, "false", "Load a universal checkpoint."),
          later("use_node_local_storage", boolean, "false", "Each node keeps a copy of its own."),
          works("parallel_write", section, "{}", "Who writes."),
          later("parallel_write.pipeline_stage", boolean, "false", "Spread a stage's layers over its data ranks.")
              .complaining(
                  "checkpoint::parallel_write::pipeline_stage value of '{}' is invalid, expecting: true or false"),
          parsed("checkpoint_serialization", boolean, "true", "Python's file format; checkpoints are HDF5 here."),
          later("writer", section | null, "null", "The fast or decoupled writer."),
          later("writer.type", string, "\"FAST\"", "Kind of writer.")
              .one_of({"MOCK", "PYTHON", "FAST"})
              .ignoring_case()
              .complaining("writer contains invalid value {} for type, expecting one of ['MOCK', 'PYTHON', 'FAST']"),
          later("writer.decoupled", boolean, "false", "Write beside the next steps."),
          later("writer.io_buffer_size", integer, "67108864", "Bytes of a buffer.").range(">0"),
          later("writer.io_buffer_double", boolean, "true", "Two buffers."),
          later("writer.io_multiplier", integer, "1", "Parallel requests.").range(">0"),
          later("writer.show_statistics", boolean, "false", "Log the rates."),
          later("writer.data_parallel", string | null, "null", "Ranks that write in parallel.")
              .one_of({"REPLICA", "SOCKET", "MACHINE"})
              .ignoring_case()
              .complaining("writer contains invalid value {} for data_parallel, expecting one of ['REPLICA', 'SOCKET', "
                           "'MACHINE']"),
      });
  rows.add(later("nebula", section, "{}", "Azure's checkpoint service.").switched_by("enabled"),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("persistent_storage_path", string | null, "null", "Lasting storage."),
               parsed("persistent_time_interval", integer, "100", "Seconds between lasting copies.").range(">0"),
               parsed("num_of_version_in_retention", integer, "2", "Copies kept.").range(">0"),
               parsed("enable_nebula_load", boolean, "true", "Load through the service."),
               parsed("nebula_load_path", string | null, "null", "Where to load from."),
           });
  rows.add({later("datastates_ckpt", open | boolean | null, "null", "The DataStates checkpoint engine.")
                .also_off({"false"})});
}

void reports(Rows& rows) {
  rows.add({
      works("log_level", string | null, "null", "Least level that is logged; null = the command line's.")
          .one_of({"debug", "info", "warning", "error", "critical"}),
      later("wall_clock_breakdown", boolean, "false", "Log the time of each phase."),
      later("memory_breakdown", boolean, "false", "Log memory around each phase."),
      later("dump_state", boolean, "false", "Log the engine's state after it is set up."),
      parsed("zero_allow_untested_optimizer", boolean, "false",
             "Allow optimizers DeepSpeed hasn't tested; all compose here."),
      parsed("zero_force_ds_cpu_optimizer", boolean, "true",
             "Host updates with DeepSpeed's own kernels; always so here."),
  });
  rows.add(later("flops_profiler", section, "{}", "Profile of one step.").switched_by("enabled"),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("recompute_fwd_factor", number, "0.0", "Forward passes that backward makes again.").range("0..1"),
               parsed("profile_step", integer, "1", "The step.").range(">0"),
               parsed("module_depth", integer, "-1", "Depth of the summary; -1 = the deepest.").range(">=-1"),
               parsed("top_modules", integer, "1", "Modules listed at each depth.").range(">0"),
               parsed("detailed", boolean, "true", "List every module."),
               parsed("output_file", string | null, "null", "Where to write; null = the log."),
           });
  rows.add(works("tensorboard", section, "{}", "TensorBoard event files, beside those of the run folder.")
               .switched_by("enabled")
               .as_typed(),
           {
               works("enabled", boolean, "false", "Turn it on."),
               works("output_path", string, "\"\"", "Root folder."),
               works("job_name", string, "\"DeepSpeedJobName\"", "Folder in it."),
           });
  rows.add(later("wandb", section, "{}", "Weights & Biases.").switched_by("enabled").as_typed(),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("group", string | null, "null", "Group of runs."),
               parsed("team", string | null, "null", "Team."),
               parsed("project", string, "\"deepspeed\"", "Project."),
           });
  rows.add(works("csv_monitor", section, "{}", "A CSV file for each number.").switched_by("enabled").as_typed(),
           {
               works("enabled", boolean, "false", "Turn it on."),
               works("output_path", string, "\"\"", "Root folder."),
               works("job_name", string, "\"DeepSpeedJobName\"", "Folder in it."),
           });
  rows.add(later("comet", section, "{}", "Comet.").switched_by("enabled").as_typed(),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("samples_log_interval", integer, "100", "Samples between records.").range(">0"),
               parsed("project", string | null, "null", "Project."),
               parsed("workspace", string | null, "null", "Workspace."),
               parsed("api_key", string | null, "null", "Key."),
               parsed("experiment_name", string | null, "null", "Name shown."),
               parsed("experiment_key", string | null, "null", "Run to go on with."),
               parsed("online", boolean | null, "null", "Online or offline."),
               parsed("mode", string | null, "null", "How a run is opened.").one_of({"get", "create", "get_or_create"}),
           });
  rows.add(later("comms_logger", section, "{}", "Log of the collectives.").switched_by("enabled").as_typed(),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("verbose", boolean, "false", "A line for each."),
               parsed("prof_all", boolean, "true", "All of them."),
               parsed("debug", boolean, "false", "With the caller."),
               parsed("prof_ops", strings, "[]", "Those logged if not all."),
           });
  rows.add(works("timers", section, "{}", "Timers."),
           {
               works("throughput", section, "{}", "Samples a second.").as_typed(),
               parsed("throughput.enabled", boolean, "true", "Tokens a second are always measured here."),
               parsed("throughput.synchronized", boolean, "true", "Wait for the device first."),
           });
}

void batch_control(Rows& rows) {
  rows.add(later("elasticity", section, "{}", "Batch sizes that fit many rank counts.").switched_by("enabled"),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("max_train_batch_size", integer, "2000", "Largest global batch.").range(">0"),
               parsed("micro_batch_sizes", integers, "[2, 4, 6]", "Micro batches to choose from.").range(">0"),
               parsed("min_gpus", integer, "1", "Fewest ranks."),
               parsed("max_gpus", integer, "10000", "Most ranks."),
               parsed("min_time", integer, "0", "Minutes before the next change."),
               parsed("version", number, "0.2", "0.1 or 0.2."),
               parsed("prefer_larger_batch", boolean, "true", "Of two, the larger batch."),
               parsed("ignore_non_elastic_batch_info", boolean, "false", "Ignore the batch keys of the configuration."),
               parsed("model_parallel_size", integer, "1", "Ranks of one replica."),
               parsed("num_gpus_per_node", integer, "1", "Ranks a node has."),
           });
  rows.add(
      later("autotuning", section, "{}", "Search for the quickest configuration.").switched_by("enabled"),
      {
          later("enabled", boolean, "false", "Turn it on."),
          parsed("fast", boolean, "true", "Micro batch and stage only."),
          parsed("results_dir", string, "\"autotuning_results\"", "Results."),
          parsed("exps_dir", string, "\"autotuning_exps\"", "Tried configurations."),
          parsed("overwrite", boolean, "true", "Clear old results."),
          parsed("start_profile_step", integer, "3", "First step measured.").range(">0"),
          parsed("end_profile_step", integer, "5", "Last step measured.").range(">0"),
          parsed("metric", string, "\"throughput\"", "What is made best.").one_of({"latency", "throughput", "flops"}),
          parsed("metric_path", string | null, "null", "File of the measured number."),
          parsed("model_info_path", string | null, "null", "File of the model's sizes."),
          parsed("model_info", section | null, "null", "The model's sizes, if known."),
          parsed("model_info.profile", boolean, "false", "Measure them."),
          parsed("model_info.num_params", integer | null, "null", "Parameters.").range(">0"),
          parsed("model_info.hidden_size", integer | null, "null", "Hidden size.").range(">0"),
          parsed("model_info.num_layers", integer | null, "null", "Layers.").range(">0"),
          parsed("tuner_type", string, "\"gridsearch\"", "Search.").one_of({"gridsearch", "random", "model_based"}),
          parsed("tuner_early_stopping", integer, "5", "Trials without gain before the end.").range(">=0"),
          parsed("tuner_num_trials", integer, "50", "Most trials.").range(">0"),
          parsed("arg_mappings", open | null, "null", "Configuration keys and their command-line names."),
          parsed("mp_size", integer, "1", "Ranks of one replica.").range(">0"),
          parsed("max_train_batch_size", integer | null, "null", "Largest global batch.").range(">0"),
          parsed("min_train_batch_size", integer, "1", "Smallest global batch.").range(">0"),
          parsed("max_train_micro_batch_size_per_gpu", integer, "1024", "Largest micro batch.").range(">0"),
          parsed("min_train_micro_batch_size_per_gpu", integer, "1", "Smallest micro batch.").range(">0"),
          parsed("num_tuning_micro_batch_sizes", integer, "3", "Micro batches tried.").range(">0"),
      });
}

const std::vector<std::string> curves = {"fixed_linear", "fixed_root", "fixed_discrete", "custom"};

void add_curriculum_schedule(std::vector<Key>& keys, const std::string& prefix) {
  const auto add = [&](const char* name, unsigned kinds, const char* range, const char* doc) {
    keys.push_back(parsed((prefix + name).c_str(), kinds, "null", doc).range(range));
  };
  keys.push_back(parsed((prefix + "schedule_config").c_str(), section, "{}", "The curve's numbers."));
  add("schedule_config.total_curriculum_step", integer | null, ">0", "Steps to the full difficulty.");
  add("schedule_config.difficulty_step", integer | null, ">0", "The difficulty is a multiple of this.");
  add("schedule_config.root_degree", integer | null, ">0", "Degree of the root.");
  add("schedule_config.difficulty", numbers | null, "", "The stairs.");
  add("schedule_config.max_step", integers | null, "", "Last step of each stair but the highest.");
}

void data_and_curriculum(Rows& rows) {
  std::vector<Key> keys = {
      later("enabled", boolean, "false", "Turn it on."),
      parsed("curriculum_type", string | null, "null", "What difficulty is; seqlen = the sequence length."),
      parsed("min_difficulty", integer | null, "null", "Difficulty at the start.").range(">0"),
      parsed("max_difficulty", integer | null, "null", "Difficulty at the end.").range(">0"),
      parsed("schedule_type", string | null, "null", "Curve between them.").one_of(curves),
  };
  add_curriculum_schedule(keys, "");
  rows.add(later("curriculum_learning", section, "{}", "Curriculum learning, the older form.").switched_by("enabled"),
           std::move(keys));

  keys = {
      later("enabled", boolean, "false", "Turn it on."),
      parsed("seed", integer, "1234", "Seed of the sampler.").range(">=0"),
      parsed("data_sampling", section, "{}", "Which samples."),
      parsed("data_sampling.enabled", boolean, "false", "Turn it on."),
      parsed("data_sampling.num_epochs", integer, "1000", "Epochs the samples are counted for.").range(">0"),
      parsed("data_sampling.num_workers", integer, "0", "Loader threads.").range(">=0"),
      parsed("data_sampling.pin_memory", boolean, "false", "Page-locked batches."),
      parsed("data_sampling.curriculum_learning", section, "{}", "Curriculum over metrics."),
      parsed("data_sampling.curriculum_learning.enabled", boolean, "false", "Turn it on."),
      parsed("data_sampling.curriculum_learning.data_cluster_path", string | null, "null", "Folder of the clusters."),
      parsed("data_sampling.curriculum_learning.curriculum_metrics", section | null, "null", "The metrics, by name."),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*", section, "{}", "One metric."),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.index_to_sample_path", string | null, "null",
             "The analyser's index of samples."),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.index_to_metric_path", string | null, "null",
             "The analyser's index of values."),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.difficulty_type", string, none,
             "What difficulty is.")
          .one_of({"value", "percentile"})
          .needed(),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.clustering_type", string, none,
             "How samples are grouped.")
          .one_of({"single_cluster", "schedule_based"})
          .needed(),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.min_difficulty", integer, none, "At the start.")
          .needed(),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.max_difficulty", integer, none, "At the end.")
          .needed(),
      parsed("data_sampling.curriculum_learning.curriculum_metrics.*.schedule_type", string, none,
             "Curve between them.")
          .one_of(curves)
          .needed(),
  };
  add_curriculum_schedule(keys, "data_sampling.curriculum_learning.curriculum_metrics.*.");
  for (Key& key : std::vector<Key>{
           parsed("data_sampling.dynamic_batching", section, "{}", "Batches of a number of tokens."),
           parsed("data_sampling.dynamic_batching.enabled", boolean, "false", "Turn it on."),
           parsed("data_sampling.dynamic_batching.lr_scaling_method", string, "\"linear\"",
                  "Learning rate by batch size.")
               .one_of({"linear", "sqrt", "none"}),
           parsed("data_sampling.dynamic_batching.min_batch_size", integer, "1", "Fewest sequences.").range(">0"),
           parsed("data_sampling.dynamic_batching.max_batch_size", integer | null, "null", "Most sequences.")
               .range(">0"),
           parsed("data_sampling.dynamic_batching.sequence_picking_order", string, "\"dataloader\"", "Order.")
               .one_of({"dataloader", "random", "seqlen"}),
           parsed("data_sampling.dynamic_batching.max_tokens", integer | null, "null", "Tokens of a batch.")
               .range(">0"),
           parsed("data_sampling.dynamic_batching.metrics_path", string | null, "null", "Folder of the lengths."),
           parsed("data_sampling.dynamic_batching.verbose", boolean, "false", "Log."),
           parsed("data_routing", section, "{}", "Which tokens go through which layers."),
           parsed("data_routing.enabled", boolean, "false", "Turn it on."),
           parsed("data_routing.random_ltd", section, "{}", "Layers that drop random tokens."),
           parsed("data_routing.random_ltd.enabled", boolean, "false", "Turn it on."),
           parsed("data_routing.random_ltd.total_layer_num", integer | null, "null", "Layers.").range(">0"),
           parsed("data_routing.random_ltd.random_ltd_layer_num", integer | null, "null", "Layers that drop.")
               .range(">0"),
           parsed("data_routing.random_ltd.random_ltd_layer_id", integers | null, "null", "Which.").range(">=0"),
           parsed("data_routing.random_ltd.model_mask_name", string | null, "null", "Name of the attention mask."),
           parsed("data_routing.random_ltd.model_type", string | null, "null", "Kind of mask.")
               .one_of({"encoder", "decoder"}),
           parsed("data_routing.random_ltd.hidden_state_order", string | null, "null", "Layout.")
               .one_of({"batch_seq_dim", "seq_batch_dim"}),
           parsed("data_routing.random_ltd.random_ltd_schedule", section | null, "null", "Tokens kept."),
           parsed("data_routing.random_ltd.random_ltd_schedule.min_value", integer, none, "At the start.")
               .range(">0")
               .needed(),
           parsed("data_routing.random_ltd.random_ltd_schedule.max_value", integer, none, "At the end.")
               .range(">0")
               .needed(),
           parsed("data_routing.random_ltd.random_ltd_schedule.schedule_type", string, none, "Curve.")
               .one_of({"fixed_linear"})
               .needed()
               .complaining("Unsupported random LTD schedule type: {}"),
           parsed("data_routing.random_ltd.random_ltd_schedule.schedule_config", section, "{}", "The curve's numbers."),
           parsed("data_routing.random_ltd.random_ltd_schedule.schedule_config.require_steps", integer, none,
                  "Steps to the end.")
               .range(">0")
               .needed(),
           parsed("data_routing.random_ltd.random_ltd_schedule.schedule_config.seq_per_step", integer, none,
                  "Granularity.")
               .range(">0")
               .needed(),
           parsed("data_routing.random_ltd.layer_token_lr_schedule", section, "{}", "Learning rate by tokens dropped."),
           later("data_routing.random_ltd.layer_token_lr_schedule.enabled", boolean, "false",
                 "DeepSpeed refuses it too."),
       })
    keys.push_back(std::move(key));
  rows.add(later("data_efficiency", section, "{}", "The data-efficiency library.").switched_by("enabled"),
           std::move(keys));

  rows.add(later("progressive_layer_drop", section, "{}", "Drop whole layers more and more.").switched_by("enabled"),
           {
               later("enabled", boolean, "false", "Turn it on."),
               parsed("theta", number | null, "null", "Share of layers kept in the end.").range("0..1"),
               parsed("gamma", number | null, "null", "Speed.").range(">=0"),
           });
}

void compression(Rows& rows) {
  std::vector<Key> keys;
  const auto technique = [&](const std::string& name, const char* doc, std::vector<Key> shared,
                             std::vector<Key> params) {
    keys.push_back(parsed(name.c_str(), section, "{}", doc));
    keys.push_back(
        later((name + ".shared_parameters").c_str(), section, "{}", "For all groups.").switched_by("enabled"));
    keys.push_back(later((name + ".shared_parameters.enabled").c_str(), boolean, "false", "Turn it on."));
    for (Key& key : shared) {
      key.path = name + ".shared_parameters." + key.path;
      keys.push_back(std::move(key));
    }
    const std::string groups = name + ".different_groups";
    keys.push_back(parsed(groups.c_str(), section | null, "null", "Groups of modules, by name."));
    keys.push_back(parsed((groups + ".*").c_str(), section, "{}", "One group."));
    keys.push_back(parsed((groups + ".*.params").c_str(), section, "{}", "The group's numbers."));
    for (Key& key : params) {
      key.path = groups + ".*.params." + key.path;
      keys.push_back(std::move(key));
    }
    keys.push_back(
        parsed((groups + ".*.modules").c_str(), strings | string, "\"*\"", "Regular expressions of the modules."));
    keys.push_back(parsed((groups + ".*.related_modules").c_str(), list | null, "null", "Modules shrunk with them."));
  };
  const auto offset = [](const char* fallback) {
    return parsed("schedule_offset", integer, fallback, "First step.").range(">=0");
  };
  const auto ratio = [] { return parsed("dense_ratio", number, none, "Share kept.").range("0<..<1").needed(); };
  technique("weight_quantization", "Weights trained for few bits.",
            {
                parsed("quantizer_kernel", boolean, "false", "Device kernel."),
                offset("0"),
                parsed("quantize_groups", integer, "1", "Groups with a scale of their own.").range(">0"),
                parsed("quantize_verbose", boolean, "false", "Log."),
                parsed("quantization_type", string, "\"symmetric\"", "Kind.")
                    .one_of({"symmetric", "asymmetric"})
                    .complaining("Invalid weight quantize type. Supported types: [symmetric, asymmetric]"),
                parsed("rounding", string, "\"nearest\"", "Rounding.")
                    .one_of({"nearest", "stochastic"})
                    .complaining("Invalid weight quantize rounding. Supported types: [nearest, stochastic]"),
                parsed("quantize_weight_in_forward", boolean, "false", "In forward, not in the optimizer."),
                parsed("fp16_mixed_quantize", section, "{}", "Blend with the 16-bit weights."),
                parsed("fp16_mixed_quantize.enabled", boolean, "false", "Turn it on."),
                parsed("fp16_mixed_quantize.quantize_change_ratio", number, "0.001", "Change of the blend a step.")
                    .range("0..1"),
            },
            {
                parsed("start_bits", integer, none, "Bits at the start.").range(">0").needed(),
                parsed("target_bits", integer, none, "Bits at the end.").range(">0").needed(),
                parsed("quantization_period", integer, "1", "Steps until a bit goes; doubles each time.").range(">0"),
            });
  technique("activation_quantization", "Activations of few bits.",
            {
                parsed("quantization_type", string, "\"symmetric\"", "Kind.").one_of({"symmetric", "asymmetric"}),
                parsed("range_calibration", string, "\"dynamic\"", "Where the range comes from.")
                    .one_of({"dynamic", "static"}),
                offset("1000"),
            },
            {parsed("bits", integer, none, "Bits.").range(">0").needed()});
  technique(
      "sparse_pruning", "Single weights set to zero.",
      {
          parsed("method", string, "\"l1\"", "Criterion.")
              .one_of({"l1", "topk", "snip_momentum"})
              .complaining("Invalid sparse pruning method. Supported types: [l1, topk, snip_momentum]"),
          offset("1000"),
          parsed("block_pattern", string, "\"4x1\"", "Shape of the blocks of snip_momentum."),
          parsed("dense_ratio", number, "0.1", "Share kept by snip_momentum.")
              .range("0<..<1")
              .complaining("Invalid dense_ratio value. Must be less than 1"),
          parsed("schedule_offset_stride", integer, "1", "Steps between prunings.").range(">0"),
          parsed("schedule_offset_end", integer | null, "null", "Last step; null = schedule_offset.").range(">=0"),
          parsed("excluded_modules", strings, "[]", "Modules left alone."),
      },
      {ratio()});
  technique("row_pruning", "Rows removed.",
            {parsed("method", string, "\"l1\"", "Criterion.").one_of({"l1", "topk"}), offset("1000")}, {ratio()});
  technique("head_pruning", "Attention heads removed.",
            {
                parsed("method", string, "\"topk\"", "Criterion.").one_of({"l1", "topk"}),
                offset("1000"),
                parsed("num_heads", integer | null, "null", "Heads.").range(">0"),
            },
            {ratio()});
  technique("channel_pruning", "Channels removed.",
            {parsed("method", string, "\"l1\"", "Criterion.").one_of({"l1", "topk"}), offset("1000")}, {ratio()});
  keys.push_back(later("layer_reduction", section, "{}", "Fewer layers, from a teacher.").switched_by("enabled"));
  keys.push_back(later("layer_reduction.enabled", boolean, "false", "Turn it on."));
  keys.push_back(parsed("layer_reduction.keep_number_layer", integer | null, "null", "Layers kept.").range(">0"));
  keys.push_back(parsed("layer_reduction.module_name_prefix", string | null, "null", "Path of the list of layers."));
  keys.push_back(
      parsed("layer_reduction.teacher_layer", integers | null, "null", "The teacher's layers.").range(">=0"));
  keys.push_back(parsed("layer_reduction.other_module_name", strings | null, "null", "Modules copied as they are."));
  rows.add(works("compression_training", section | null, "null", "Model compression while training."), std::move(keys));

  rows.add(works("weight_quantization", section, "{}", "Weights of few bits for inference.").as_typed(),
           {
               later("quantized_initialization", open, "{}", "Quantize while the model is made."),
               later("post_init_quant", open, "{}", "Quantize afterwards, by module."),
           });
  const std::vector<Key> eigenvalue = {
      later("enabled", boolean, "false", "Turn it on."),
      parsed("verbose", boolean, "false", "Log."),
      parsed("max_iter", integer, "100", "Most iterations.").range(">0"),
      parsed("tol", number, "1e-2", "Tolerance.").range(">0"),
      parsed("stability", number, "1e-6", "Added against division by zero.").range(">=0"),
      parsed("gas_boundary_resolution", integer, "1", "Optimizer steps between estimates.").range(">0"),
      parsed("layer_name", string, "\"bert.encoder.layer\"", "Path of the list of layers."),
      parsed("layer_num", integer, "0", "Layers.").range(">=0"),
  };
  rows.add(later("eigenvalue", section, "{}", "Curvature for quantize_training.").switched_by("enabled"), eigenvalue);
  rows.add(later("quantize_training", section | open | null, "null", "Quantization while training (MoQ).")
               .switched_by("enabled"),
           {later("enabled", boolean, "false", "Turn it on.")});
  rows.add(later("quantize_training.eigenvalue", section, "{}", "Curvature.").switched_by("enabled"), eigenvalue);
}

void attention_and_compile(Rows& rows) {
  rows.add(later("sparse_attention", section | null, "null", "Block-sparse attention."),
           {
               later("mode", string, "\"fixed\"", "Layout.")
                   .one_of({"dense", "fixed", "variable", "bigbird", "bslongformer"})
                   .complaining("Given sparsity mode, {}, has not been implemented yet!"),
               later("block", integer, "16", "Width of a block.").range(">0"),
               later("different_layout_per_head", boolean, "false", "A layout for each head."),
               later("num_local_blocks", integer, "4", "Blocks of the local window.").range(">0"),
               later("num_global_blocks", integer, "1", "Blocks all look at.").range(">=0"),
               later("attention", string, "\"bidirectional\"", "Mask.")
                   .one_of({"unidirectional", "bidirectional"})
                   .complaining("only \"uni/bi-directional\" attentions are supported for now!"),
               later("horizontal_global_attention", boolean, "false", "Global blocks look at all."),
               later("num_different_global_patterns", integer, "1", "Global patterns.").range(">0"),
               later("num_random_blocks", integer, "0", "Random blocks.").range(">=0"),
               later("local_window_blocks", integers, "[4]", "Windows.").range(">0"),
               later("global_block_indices", integers, "[0]", "Global blocks.").range(">=0"),
               later("global_block_end_indices", integers | null, "null", "Their ends.").range(">=0"),
               later("num_sliding_window_blocks", integer, "3", "Blocks of the sliding window.").range(">0"),
           });
  rows.add(later("compile", section, "{}", "DeepCompile.").switched_by("deepcompile").as_typed(),
           {
               later("deepcompile", boolean, "false", "Turn it on."),
               parsed("autoep_non_moe", boolean, "false", "Also outside the experts."),
               parsed("free_activation", boolean, "false", "Free activations early."),
               parsed("free_activation_threshold", integer, "10485760", "Bytes.").range(">=0"),
               parsed("offload_activation", boolean, "false", "Offload activations."),
               parsed("offload_activation_pin_memory", boolean, "true", "Page-locked memory."),
               parsed("offload_opt_states", boolean, "false", "Offload optimizer states."),
               parsed("offload_parameters", boolean, "false", "Offload parameters."),
               parsed("double_buffer", boolean, "true", "Two reduction buffers."),
               parsed("symmetric_memory", boolean, "false", "Gather through symmetric memory."),
               parsed("debug_log", boolean, "false", "Log."),
               parsed("sync_before_reduce", boolean, "false", "Wait before reductions."),
               parsed("sync_after_reduce", boolean, "false", "Wait after reductions."),
               parsed("sync_before_allgather", boolean, "false", "Wait before gathers."),
               parsed("sync_after_allgather", boolean, "false", "Wait after gathers."),
               parsed("keep_int_input_tensors", boolean, "true", "Keep integer inputs."),
               parsed("keep_all_input_tensors", boolean, "false", "Keep all inputs."),
               parsed("passes", strings | null, "null", "Passes: z1, z3, autosp, autotp."),
           });
  rows.add(
      later("hybrid_engine", section, "{}", "Training and generation in one engine.").switched_by("enabled").as_typed(),
      {
          later("enabled", boolean, "false", "Turn it on."),
          parsed("max_out_tokens", integer, "512", "Tokens of the workspace.").range(">0"),
          parsed("inference_tp_size", integer, "1", "Tensor ranks in generation.").range(">0"),
          parsed("release_inference_cache", boolean, "false", "Free the cache afterwards."),
          parsed("pin_parameters", boolean, "true", "Keep the containers."),
          parsed("tp_gather_partition_size", integer, "8", "Parameters gathered at once.").range(">0"),
          parsed("enable_cuda_graph", boolean, "false", "Replay a CUDA graph."),
      });
}

void inference(Rows& rows) {
  rows.add(
      later("inference", section | null, "null", "What init_inference takes.").as_typed(),
      {
          later("replace_with_kernel_inject", boolean, "false", "Fused transformer kernels.").also({"kernel_inject"}),
          later("dtype", string, "\"fp16\"", "Type of the weights.")
              .one_of({"fp16", "float16", "half", "torch.float16", "torch.half", "bf16", "bfloat16", "bfloat",
                       "torch.bfloat16", "fp32", "float32", "float", "torch.float32", "torch.float", "int8",
                       "torch.int8"})
              .complaining("'{}' is not a valid DtypeEnum"),
          later("tensor_parallel", section, "{}", "Tensor parallelism.").also({"tp"}),
          later("tensor_parallel.tp_size", integer, "1", "Ranks.").range(">0"),
          later("tensor_parallel.enabled", boolean, "true", "Turn it on."),
          later("tensor_parallel.tp_grain_size", integer, "64", "Smallest width of a share.").range(">0"),
          later("tensor_parallel.mpu", open | null, "null", "A Python object."),
          later("tensor_parallel.tp_group", open | null, "null", "A Python object."),
          later("max_out_tokens", integer, "1024", "Tokens of the key/value workspace.")
              .range(">0")
              .also({"max_tokens"}),
          later("min_out_tokens", integer, "1", "Tokens that must fit.").range(">0").also({"min_tokens"}),
          later("enable_cuda_graph", boolean, "false", "Replay a CUDA graph."),
          later("injection_policy", open | null, "null", "Layer classes and their reduced linears.")
              .also({"injection_dict"}),
          later("injection_policy_tuple", list | null, "null", "The same as a list."),
          later("use_triton", boolean, "false", "Triton kernels."),
          later("triton_autotune", boolean, "false", "Tune them."),
          later("zero", open, "{}", "A zero_optimization section."),
          later("triangular_masking", boolean, "true", "Causal mask.").also({"tm"}),
          later("moe", section, "{}", "Mixture of experts."),
          later("moe.enabled", boolean, "true", "Turn it on."),
          later("moe.ep_size", integer, "1", "Expert ranks.").range(">0"),
          later("moe.moe_experts", integers | integer, "[1]", "Experts of each layer.")
              .range(">0")
              .also({"num_experts"}),
          later("moe.type", string, "\"standard\"", "Kind of layer.").one_of({"standard", "residual"}),
          later("moe.ep_mp_group", open | null, "null", "A Python object."),
          later("moe.ep_group", open | null, "null", "A Python object.").also({"expert_group"}),
          later("keep_module_on_host", boolean, "false", "Leave the model in host memory."),
          later("quant", section, "{}", "Quantization with dtype int8."),
          later("quant.enabled", boolean, "true", "Turn it on."),
          later("quant.activation", section, "{}", "Of activations."),
          later("quant.activation.enabled", boolean, "true", "Turn it on."),
          later("quant.activation.num_bits", integer, "8", "Bits.").range(">0"),
          later("quant.activation.q_type", string, "\"symmetric\"", "Kind.").one_of({"symmetric", "asymmetric"}),
          later("quant.activation.q_groups", integer, "1", "Groups.").range(">0"),
          later("quant.weight", section, "{}", "Of weights."),
          later("quant.weight.enabled", boolean, "true", "Turn it on."),
          later("quant.weight.num_bits", integer, "8", "Bits.").range(">0"),
          later("quant.weight.q_type", string, "\"symmetric\"", "Kind.").one_of({"symmetric", "asymmetric"}),
          later("quant.weight.q_groups", integer, "1", "Groups.").range(">0"),
          later("quant.weight.quantized_initialization", open, "{}", "Quantize while loading."),
          later("quant.weight.post_init_quant", open, "{}", "Quantize afterwards."),
          later("quant.qkv", section, "{}", "Of the query, key and value weights."),
          later("quant.qkv.enabled", boolean, "true", "Turn it on."),
          later("checkpoint", string | open | null, "null", "Checkpoint description."),
          later("base_dir", string, "\"\"", "Prefix of its files."),
          later("set_empty_params", boolean, "false", "Leave the weights uninitialised."),
          later("save_mp_checkpoint_path", string | null, "null", "Write the tensor ranks' shares here."),
          later("checkpoint_config", section, "{}", "Checkpoint files.").also({"ckpt_config"}),
          later("checkpoint_config.checkpoint_dir", string | null, "null", "Folder."),
          later("checkpoint_config.save_mp_checkpoint_path", string | null, "null",
                "Write the tensor ranks' shares here."),
          later("checkpoint_config.base_dir", string | null, "null", "Prefix of the files."),
          later("return_tuple", boolean, "true", "Layers return a tuple."),
          later("training_mp_size", integer, "1", "Tensor ranks of the checkpoint.").range(">0"),
          later("replace_method", string, "\"auto\"", "Old key without effect."),
          later("config", open | null, "null", "Old form.").also({"args"}),
          later("transposed_mode", boolean, "false", "Weights are transposed."),
          later("mp_size", integer, "1", "Old name.").replaced("tensor_parallel.tp_size"),
          later("mpu", open | null, "null", "Old name.").replaced("tensor_parallel.mpu"),
          later("ep_size", integer, "1", "Old name.").replaced("moe.ep_size"),
          later("ep_group", open | null, "null", "Old name.").also({"expert_group"}).replaced("moe.ep_group"),
          later("ep_mp_group", open | null, "null", "Old name.").also({"expert_mp_group"}).replaced("moe.ep_mp_group"),
          later("moe_experts", integers | integer, "[1]", "Old name.").replaced("moe.moe_experts"),
          later("moe_type", string, "\"standard\"", "Old name.").replaced("moe.type"),
      });
  rows.add(later("inference_v2", section | null, "null", "What the ragged-batch inference engine takes.").as_typed(),
           {
               later("tensor_parallel", section, "{}", "Tensor parallelism.").also({"tp"}),
               later("tensor_parallel.tp_size", integer, "1", "Ranks.").range(">0"),
               later("state_manager", section, "{}", "Sequences and their cache.").also({"manager"}),
               later("state_manager.max_tracked_sequences", integer, "2048", "Sequences.").range(">0"),
               later("state_manager.max_ragged_batch_size", integer, "768", "Tokens of a batch.").range(">0"),
               later("state_manager.max_ragged_sequence_count", integer, "512", "Sequences of a batch.").range(">0"),
               later("state_manager.max_context", integer, "8192", "Longest context.").range(">0"),
               later("state_manager.offload", boolean, "false", "Offload to host memory."),
               later("state_manager.memory_config", section, "{}", "Memory of the cache."),
               later("state_manager.memory_config.mode", string, "\"reserve\"", "How size is meant.")
                   .one_of({"reserve", "allocate"}),
               later("state_manager.memory_config.size", integer, "1000000000", "Bytes kept free, or allocated.")
                   .range(">0"),
               later("quantization", section, "{}", "Weights of few bits."),
               later("quantization.quantization_mode", string | null, "null", "Format, for example wf6af16."),
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
  parallelism(rows);
  memory_and_files(rows);
  reports(rows);
  batch_control(rows);
  data_and_curriculum(rows);
  compression(rows);
  attention_and_compile(rows);
  inference(rows);
  return rows.take();
}

}  // namespace deepspeed::config
