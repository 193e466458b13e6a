// SPDX-License-Identifier: Apache-2.0
// Rules between keys. Each error holds DeepSpeed's own words where it has some, so that searches find them.
#include <fmt/format.h>

#include <algorithm>

#include "base/dtype.h"
#include "config/validate.h"

namespace deepspeed::config {

using nlohmann::json;

namespace {

class Conflicts {
 public:
  Conflicts(const json& resolved, const Canonical& user, const Facts& facts, Findings& findings)
      : resolved_(resolved), user_(user), facts_(facts), findings_(findings) {}

  void run() {
    precision();
    gradients();
    zero();
    offload();
    zenflow();
    optimizer_and_schedule();
    checkpointing();
    elasticity();
    data();
    parallelism();
    own_sections();
  }

 private:
  const json& value(std::string_view path) const {
    static const json nothing;
    const json* found = at_path(resolved_, path);
    return found == nullptr ? nothing : *found;
  }
  bool on(std::string_view path) const { return value(path) == true; }
  bool set(std::string_view path) const { return !value(path).is_null(); }
  bool given(const std::string& path) const { return user_.given.count(path) != 0; }
  std::int64_t integer_of(std::string_view path) const { return value(path).get<std::int64_t>(); }
  double number_of(std::string_view path) const { return value(path).get<double>(); }
  std::string text_of(std::string_view path) const {
    const json& found = value(path);
    return found.is_string() ? found.get<std::string>() : "";
  }
  std::int64_t stage() const { return integer_of("zero_optimization.stage"); }
  void error(const std::string& path, const std::string& problem) { findings_.error(path, problem); }
  void warning(const std::string& path, const std::string& problem) { findings_.warning(path, problem); }

  void precision() {
    const bool fp16 = on("fp16.enabled"), bf16 = on("bf16.enabled");
    if (fp16 && bf16) error("bf16.enabled", "bfloat16 and fp16 modes cannot be simultaneously enabled; turn one off");
    if (fp16 && value("fp16.loss_scale") == 0.0)
      for (const char* key : {"loss_scale_window", "min_loss_scale"})
        if (const std::string path = std::string("fp16.") + key; integer_of(path) <= 0)
          error(path, fmt::format("{} must be > 0 when dynamic loss scaling is enabled (loss_scale=0)", path));
    if (fp16 && integer_of("fp16.hysteresis") < 1)
      warning("fp16.hysteresis", "below 1 the loss scale is never lowered after an overflow");

    const bool zero_on = stage() > 0;
    if (on("fp16.fp16_master_weights_and_grads")) {
      if (!zero_on)
        error("fp16.fp16_master_weights_and_grads",
              "Fp16_master_weights_and_grads is only supported with ZeRO Stage 1, 2, or 3.");
      if (on("bf16.bf16_master_weights_and_grads"))
        error("fp16.fp16_master_weights_and_grads",
              "fp16_master_weights_and_gradients and bf16_master_weights_and_gradients are mutually exclusive.");
    }
    if (on("bf16.bf16_master_weights_and_grads") && !zero_on)
      error("bf16.bf16_master_weights_and_grads",
            "Bf16_master_weights_and_grads is only supported with ZeRO Stage 1, 2, or 3.");
    if (on("bf16.bf16_optimizer_states")) {
      if (!zero_on)
        error("bf16.bf16_optimizer_states", "bf16_optimizer_states is only supported with ZeRO Stage 1, 2, or 3.");
      else if (!on("bf16.bf16_master_weights_and_grads"))
        error("bf16.bf16_optimizer_states",
              "bf16_optimizer_states requires bf16_master_weights_and_grads to be enabled.");
    }

    if (on("torch_autocast.enabled")) {
      if (on("zero_optimization.zero_quantized_weights"))
        error("torch_autocast.enabled", "Cannot enable both torch autocast and zero quantized weights");
      const std::string type = text_of("torch_autocast.dtype");
      if (type == "int8" || type == "torch.int8")
        error("torch_autocast.dtype", fmt::format("Invalid dtype for torch autocast: {}", type));
    }
    if (on("amp.enabled")) {
      if (zero_on)
        error("amp.enabled",
              "Amp and ZeRO are not currently compatible, please use (legacy) fp16 mode which performs similar to amp "
              "opt_mode=O2");
      if (fp16 || bf16) error("amp.enabled", "Cannot enable both amp with (legacy) fp16 or bfloat16 mode");
    }

    base::Dtype wanted{};
    const std::string param = text_of("data_types.param_dtype");
    if (!param.empty() && base::parse_dtype(param, wanted)) {
      const base::Dtype model = fp16 ? base::Dtype::f16 : bf16 ? base::Dtype::bf16 : base::Dtype::f32;
      if (wanted != model)
        error("data_types.param_dtype",
              fmt::format("data_types.param_dtype='{}' conflicts with the enabled precision mode (model dtype {}). Set "
                          "the matching fp16/bf16 'enabled' flag or omit data_types.param_dtype.",
                          param,
                          fp16   ? "fp16"
                          : bf16 ? "bf16"
                                 : "fp32"));
    }
  }

  void gradients() {
    if (text_of("gradient_allreduce_op") == "sum") {
      const char* with = stage() == 3                       ? "ZeRO stage 3"
                         : set("zero_optimization.zenflow") ? "ZenFlow"
                         : on("compile.deepcompile")        ? "DeepCompile"
                                                            : nullptr;
      if (with != nullptr)
        error("gradient_allreduce_op", fmt::format("gradient_allreduce_op='sum' is not supported with {}", with));
    }
    if (!on("managed_gradient_accumulation")) {
      if (on("zero_optimization.overlap_comm") && stage() > 0 && stage() != 2)
        error("managed_gradient_accumulation",
              "managed_gradient_accumulation=False supports ZeRO overlap_comm only with ZeRO stage 2");
      if (on("compile.deepcompile"))
        error("managed_gradient_accumulation", "managed_gradient_accumulation=False is not supported with DeepCompile");
      if (on("amp.enabled"))
        error("managed_gradient_accumulation", "managed_gradient_accumulation=False is not supported with Apex AMP");
    }
    if (set("vocabulary_size") && integer_of("vocabulary_size") % 8 != 0)
      warning(
          "vocabulary_size",
          fmt::format("DeepSpeedConfig: vocabulary size {} is not aligned to 8, may import tensor core utilization.",
                      integer_of("vocabulary_size")));
  }

  void zero() {
    const std::string z = "zero_optimization.";
    if (on(z + "legacy_stage1"))
      error(z + "legacy_stage1",
            "The deprecated version of ZeRO Stage 1 is not supported in deepspeed >= 0.5.9. Please downgrade to a "
            "version "
            "less than 0.5.9 if you need to use this deprecated version of ZeRO.");
    if (stage() == 3 && on(z + "elastic_checkpoint"))
      error(z + "elastic_checkpoint",
            "ZeRO-3 does not yet support elastic checkpointing, please disable for now. Checkpoints here load at any "
            "rank "
            "count without it.");
    if (stage() > 0 && on(z + "reduce_scatter")) {
      if (number_of("gradient_predivide_factor") != 1.0)
        error("gradient_predivide_factor",
              fmt::format(
                  "gradient_predivide_factor != 1.0 is not yet supported with ZeRO-{} with reduce scatter enabled",
                  stage()));
      if (on("prescale_gradients"))
        error(
            "prescale_gradients",
            fmt::format("pre-scale gradients is not yet supported with ZeRO-{} with reduce scatter enabled", stage()));
    }
    if ((stage() == 1 || stage() == 2) && integer_of(z + "allgather_bucket_size") % 2 != 0)
      error(z + "allgather_bucket_size",
            fmt::format("allgather_bucket_size must be a multiple of nccl_start_alignment_factor, 2; got {}",
                        integer_of(z + "allgather_bucket_size")));
    if (on(z + "zero_quantized_gradients") && !on(z + "reduce_scatter"))
      error(z + "zero_quantized_gradients",
            "when enable all_to_all_reduce, reduce_scatter should also be enabled for data type checks.");
    if (on(z + "pipeline_loading_checkpoint") && stage() != 3)
      error(z + "pipeline_loading_checkpoint", "Only stage3 support for pipeline checkpoint loading");
    if (!on(z + "compute_grad_norm") && stage() != 1 && stage() != 2)
      error(z + "compute_grad_norm", "false is only possible with ZeRO stage 1 or 2");
  }

  void offload() {
    for (const std::string block : {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"}) {
      const std::string device = text_of(block + ".device");
      if (device.empty() || device == "none") continue;
      const bool params = block == "zero_optimization.offload_param";
      if (params && stage() != 3)
        error(block + ".device",
              fmt::format("parameters are only offloaded with ZeRO stage 3, and stage is {}", stage()));
      if (!params && stage() == 0)
        error(block + ".device", "optimizer states are only offloaded with ZeRO stage 1, 2 or 3, and stage is 0");
      if (device == "nvme") {
        if (!params && (stage() == 1 || stage() == 2))
          error(block + ".device", fmt::format("nvme needs ZeRO stage 3, and stage is {}; use cpu", stage()));
        if (text_of(block + ".nvme_path").empty())
          error(
              block + ".nvme_path",
              "\"nvme_path\" in DeepSpeed Config cannot be None if remote device is nvme; name a folder on the drive");
      }
    }
    const std::string block = "zero_optimization.offload_optimizer.";
    if (!set("zero_optimization.offload_optimizer")) return;
    if (number_of(block + "ratio") < 1.0 && stage() != 3)
      error(block + "ratio", "Partial offloading only supported for ZeRO Stage 3.");
    if (on(block + "super_offload") && stage() != 3)
      error(block + "super_offload", fmt::format("SuperOffload needs ZeRO stage 3, and stage is {}", stage()));
  }

  void zenflow() {
    const std::string block = "zero_optimization.zenflow";
    if (!set(block)) return;
    if (text_of("zero_optimization.offload_optimizer.device") != "cpu")
      error(block, "Zenflow must be used with cpu offload");
    if (on(block + ".offload") && !on("zero_optimization.overlap_comm"))
      error(block + ".offload", "offload selective optimizer should be used with overlap_comm");
    const json &select = value(block + ".select_interval"), &update = value(block + ".update_interval");
    if (text_of(block + ".select_strategy") != "auto" && select.is_string())
      error(block + ".select_interval", "If don't use auto select strategy, select_interval must be a number.");
    if (text_of(block + ".select_strategy") == "step" && select.is_number() && update.is_number() && select < update)
      error(block + ".select_interval", "Select interval must be greater or equal to update interval");
  }

  void optimizer_and_schedule() {
    const std::string type = text_of("optimizer.type");
    if (type.empty() && given("optimizer.params")) warning("optimizer.params", "has no effect without optimizer.type");
    const bool muon = type == "Muon";
    if (muon && stage() == 3 && on("zero_optimization.reduce_scatter"))
      error("optimizer.type",
            "Muon and reduce scatter cannot be used together; set zero_optimization.reduce_scatter to false");
    if (muon && stage() == 3 && on("zero_optimization.zero_quantized_gradients"))
      error("optimizer.type", "Muon and all2all process group cannot be used together");
    if (muon && (stage() == 1 || stage() == 2) && on("zero_optimization.reduce_scatter") &&
        text_of("zero_optimization.offload_optimizer.device") == "cpu")
      error(
          "optimizer.type",
          "Muon with reduce scatter does not support optimizer offload because offload retains only partition slices; "
          "disable reduce scatter or optimizer offload");
    if (on("optimizer.params.amsgrad"))
      error("optimizer.params.amsgrad", type.rfind("OneBit", 0) == 0 || type == "ZeroOneAdam"
                                            ? "1-bit Adam does not support the AMSGrad variant."
                                            : "FusedAdam does not support the AMSGrad variant.");
    if (const json& betas = value("optimizer.params.betas"); betas.is_array() && betas.size() != 2)
      error("optimizer.params.betas", fmt::format("wants two numbers, got {}", show(betas)));
    if (type == "SGD" && on("optimizer.params.nesterov") &&
        (number_of("optimizer.params.momentum") <= 0 || number_of("optimizer.params.dampening") != 0))
      error("optimizer.params.nesterov", "Nesterov momentum requires a momentum and zero dampening");
    if (on("fp16.enabled") && number_of("fp16.loss_scale") != 0 &&
        (type == "Lamb" || type == "OneBitAdam" || type == "OneBitLamb" || type == "ZeroOneAdam"))
      error("fp16.loss_scale", fmt::format("DeepSpeed {} optimizer requires dynamic loss scaling", type));

    if (text_of("scheduler.type").empty() && given("scheduler.params"))
      warning("scheduler.params", "has no effect without scheduler.type");
    const json &warm = value("scheduler.params.warmup_num_steps"), &total = value("scheduler.params.total_num_steps");
    if (warm.is_number() && total.is_number() && total < std::max<std::int64_t>(2, warm.get<std::int64_t>()))
      warning("scheduler.params.total_num_steps",
              fmt::format("total_num_steps {} is less than warmup_num_steps {}", total.dump(), warm.dump()));
    const json& low = value("scheduler.params.cycle_min_lr");
    const json& high = value("scheduler.params.cycle_max_lr");
    if (low.is_number() && high.is_number() && low > high)
      error("scheduler.params.cycle_min_lr", fmt::format("{} is above cycle_max_lr, {}", low.dump(), high.dump()));
  }

  void checkpointing() {
    const std::string block = "activation_checkpointing.";
    if (on(block + "contiguous_memory_optimization")) {
      if (!on(block + "partition_activations"))
        error(block + "contiguous_memory_optimization",
              "Contiguous Checkpointing is only available with partitioned activations. Set partitioned activations to "
              "true in deepspeed config");
      if (!set(block + "number_checkpoints"))
        error(block + "number_checkpoints", "Must specify the number of layers with contiguous memory checkpointing");
    }
  }

  void elasticity() {
    if (!on("elasticity.enabled")) return;
    const std::string block = "elasticity.";
    for (const char* key : {"max_train_batch_size", "micro_batch_sizes"})
      if (!given(block + key)) error(block + key, fmt::format("Elasticity config missing {}", key));
    const std::int64_t low = integer_of(block + "min_gpus"), high = integer_of(block + "max_gpus");
    if (low < 1 || high < 1)
      error(block + "min_gpus",
            fmt::format("Elasticity min/max gpus must be > 0, given min_gpus: {}, max_gpus: {}", low, high));
    else if (low > high)
      error(block + "min_gpus",
            fmt::format("Elasticity min_gpus cannot be greater than max_gpus, given min_gpus: {}, max_gpus: {}", low,
                        high));
    const std::int64_t model = integer_of(block + "model_parallel_size"),
                       node = integer_of(block + "num_gpus_per_node");
    if (model < 1)
      error(block + "model_parallel_size",
            fmt::format("Model-Parallel size cannot be less than 1, given model-parallel size: {}", model));
    if (node < 1)
      error(block + "num_gpus_per_node",
            fmt::format("Number of GPUs per node cannot be less than 1, given number of GPUs per node: {}", node));
    if (integer_of(block + "min_time") < 0)
      error(block + "min_time",
            fmt::format("Elasticity min time needs to be >= 0: given {}", integer_of(block + "min_time")));
    const double version = number_of(block + "version");
    if (version > 0.2)
      error(block + "version",
            fmt::format("Attempting to run elasticity version {} but runtime only supports up to 0.2", version));
    else if (version != 0.1 && version != 0.2)
      error(block + "version", fmt::format("Unable to find elastic logic for version: {}", version));
    if (version < 0.2 && model > 1)
      error(block + "model_parallel_size",
            fmt::format("Elasticity V{} does not support model-parallel training. Given model-parallel size: {}",
                        version, model));
    if (version == 0.2 && model >= 1 && node >= 1 && node % model != 0)
      error(block + "num_gpus_per_node",
            fmt::format("In Elasticity v0.2, number of GPUs per node:{} should be divisible by model parallel size {}",
                        node, model));
    const std::int64_t largest = integer_of(block + "max_train_batch_size");
    for (const json& micro : value(block + "micro_batch_sizes"))
      if (micro > largest) {
        error(block + "micro_batch_sizes",
              fmt::format("All micro batches must be less than or equal to max_acceptable_batch_size: {}", largest));
        break;
      }
    if (!on(block + "ignore_non_elastic_batch_info") &&
        (given("train_batch_size") || given("train_micro_batch_size_per_gpu") || given("gradient_accumulation_steps")))
      error(block + "ignore_non_elastic_batch_info",
            "One or more batch related parameters were found in your ds_config (train_batch_size, "
            "train_micro_batch_size_per_gpu, and/or gradient_accumulation_steps). These parameters *will not be used* "
            "since "
            "elastic training is enabled, which takes control of these parameters. If you want to suppress this error "
            "(the "
            "parameters will be silently ignored) please set ignore_non_elastic_batch_info':true in your elasticity "
            "config.");
  }

  void curriculum(const std::string& block) {
    for (const char* key : {"min_difficulty", "max_difficulty", "schedule_type"})
      if (!set(block + key)) error(block + key, fmt::format("Curriculum learning requires the config '{}'", key));
    schedule(block);
  }

  void schedule(const std::string& block) {
    const std::string type = text_of(block + "schedule_type");
    std::vector<const char*> wanted;
    if (type == "fixed_discrete") wanted = {"difficulty", "max_step"};
    if (type == "fixed_linear") wanted = {"total_curriculum_step", "difficulty_step"};
    if (type == "fixed_root") wanted = {"total_curriculum_step", "difficulty_step", "root_degree"};
    const std::string numbers_block = block + "schedule_config.";
    for (const char* key : wanted)
      if (!set(numbers_block + key))
        error(numbers_block + key,
              fmt::format("Curriculum learning with {} schedule requires the schedule_config '{}'", type, key));
    const json &stairs = value(numbers_block + "difficulty"), &ends = value(numbers_block + "max_step");
    if (type == "fixed_discrete" && stairs.is_array() && ends.is_array() &&
        (ends.empty() || stairs.size() != ends.size() + 1))
      error(numbers_block + "difficulty",
            fmt::format("has {} entries; one more than max_step's {} is wanted, and at least two", stairs.size(),
                        ends.size()));
  }

  void data() {
    if (on("curriculum_learning.enabled")) {
      if (!set("curriculum_learning.curriculum_type"))
        error("curriculum_learning.curriculum_type", "Curriculum learning requires the config 'curriculum_type'");
      curriculum("curriculum_learning.");
    }
    const std::string sampling = "data_efficiency.data_sampling.";
    if (on("data_efficiency.enabled") && on(sampling + "enabled")) {
      const std::string metrics = sampling + "curriculum_learning.curriculum_metrics";
      if (on(sampling + "curriculum_learning.enabled")) {
        if (!set(metrics) || value(metrics).empty())
          error(metrics, "Curriculum learning is enabled, curriculum_metrics must be specified");
        else
          for (const auto& [name, metric] : value(metrics).items()) schedule(metrics + "." + name + ".");
      }
      if (on(sampling + "dynamic_batching.enabled") && !set(sampling + "dynamic_batching.max_tokens"))
        error(sampling + "dynamic_batching.max_tokens", "Dynamic batching is enabled, so max_tokens must be specified");
    }
    const std::string ltd = "data_efficiency.data_routing.random_ltd.";
    if (on("data_efficiency.enabled") && on("data_efficiency.data_routing.enabled") && on(ltd + "enabled")) {
      for (const char* key : {"total_layer_num", "random_ltd_layer_num", "random_ltd_layer_id", "model_type",
                              "hidden_state_order", "random_ltd_schedule"})
        if (!set(ltd + key)) error(ltd + key, "Field required where random_ltd is enabled");
      const json &count = value(ltd + "random_ltd_layer_num"), &ids = value(ltd + "random_ltd_layer_id");
      if (count.is_number() && ids.is_array() && count != ids.size())
        error(ltd + "random_ltd_layer_num",
              fmt::format("random_ltd_layer_num {} must be equivalent to the len of random_ltd_layer_id {}",
                          count.dump(), ids.size()));
    }
    if (on("progressive_layer_drop.enabled"))
      for (const char* key : {"theta", "gamma"})
        if (!set(std::string("progressive_layer_drop.") + key))
          error(std::string("progressive_layer_drop.") + key, "Field required where progressive_layer_drop is enabled");
  }

  void parallelism() {
    const std::int64_t size = integer_of("tensor_parallel.autotp_size");
    const std::int64_t inner = integer_of("tensor_parallel.tp.tp_size");
    if (size > 1 && inner != 1 && inner != size)
      error(
          "tensor_parallel.tp.tp_size",
          fmt::format("tensor_parallel.tp.tp_size ({}) does not match tensor_parallel.autotp_size ({}).", inner, size));
    if (on("eigenvalue.enabled")) error("eigenvalue.enabled", "Eigenvalue based MoQ is temporarily disabled");
    if (on("quantize_training.eigenvalue.enabled"))
      error("quantize_training.eigenvalue.enabled", "Eigenvalue based MoQ is temporarily disabled");
    if (set("sequence_parallel_size") && integer_of("sequence_parallel_size") > facts_.world_size)
      error("sequence_parallel_size", fmt::format("world_size ({}) is less than sequence_parallel_size {}",
                                                  facts_.world_size, integer_of("sequence_parallel_size")));
    const json &groups = value("expert_parallel.num_expert_groups"),
               &kept = value("expert_parallel.num_limited_groups");
    if (groups.is_number() && kept.is_number() && kept > groups)
      error("expert_parallel.num_limited_groups",
            fmt::format("{} is above num_expert_groups, {}", kept.dump(), groups.dump()));
    for (const char* key : {"results_dir", "exps_dir"})
      if (text_of(std::string("autotuning.") + key).empty())
        error(std::string("autotuning.") + key, fmt::format("{} cannot be empty", key));
    if (on("compile.offload_opt_states") && on("compile.offload_parameters"))
      error("compile.offload_opt_states", "can't be used together with compile.offload_parameters");
    if (on("inference.enable_cuda_graph") && value("inference.tensor_parallel.tp_size") != 1)
      error("inference.enable_cuda_graph", "Cuda graph is not supported for model parallelism");
  }

  void own_sections() {
    if (set("model.path") && set("model.type"))
      error("model.type",
            "a model has either a path or a type: the folder's config.json names its type; leave one out");
    if (set("model") && !set("model.path") && !set("model.type"))
      error("model", "wants path (a Hugging Face folder) or type (gpt2, llama, ...)");
    if (value("data.train").is_array() && value("data.train").empty()) error("data.train", "the list is empty");
    double seconds = 0;
    if (const std::string limit = text_of("training.time_limit"); !limit.empty() && !parse_duration(limit, seconds))
      error("training.time_limit", fmt::format("wants seconds or \"HH:MM:SS\", got \"{}\"", limit));
    if (const json& steps = value("training.profile"); steps.is_array() && (steps.size() != 2 || steps[0] > steps[1]))
      error("training.profile", fmt::format("wants two steps, [first, last], got {}", show(steps)));
    if (text_of("training.output").empty()) error("training.output", "wants the name of a folder");
  }

  const json& resolved_;
  const Canonical& user_;
  const Facts& facts_;
  Findings& findings_;
};

}  // namespace

void check_conflicts(const json& resolved, const Canonical& user, const Facts& facts, Findings& findings) {
  Conflicts(resolved, user, facts, findings).run();
}

}  // namespace deepspeed::config
