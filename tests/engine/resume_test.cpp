// SPDX-License-Identifier: Apache-2.0
// Stop, load, go on: bit for bit what the uninterrupted run gives.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "engine/training_case.h"

namespace deepspeed::engine::testing {
namespace {

nlohmann::json config_for(const std::string& dtype, const std::string& schedule, int stage) {
  nlohmann::json config = {
      {"train_batch_size", 16},
      {"gradient_accumulation_steps", 2},
      {"gradient_clipping", 1.0},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
      {"zero_optimization", {{"stage", stage}}},
  };
  if (schedule == "WarmupDecayLR") {
    config["scheduler"] = {
        {"type", schedule},
        {"params",
         {{"total_num_steps", 20}, {"warmup_num_steps", 4}, {"warmup_max_lr", 2e-3}, {"warmup_type", "linear"}}}};
  } else if (schedule == "WarmupLR") {
    config["scheduler"] = {{"type", schedule}, {"params", {{"warmup_num_steps", 12}, {"warmup_max_lr", 2e-3}}}};
  } else if (schedule == "WarmupCosineLR") {
    config["scheduler"] = {{"type", schedule}, {"params", {{"total_num_steps", 20}, {"warmup_num_steps", 4}}}};
  } else if (schedule == "OneCycle") {
    config["scheduler"] = {{"type", schedule},
                           {"params", {{"cycle_min_lr", 1e-4}, {"cycle_max_lr", 2e-3}, {"cycle_first_step_size", 6}}}};
  } else if (schedule == "LRRangeTest") {
    config["scheduler"] = {{"type", schedule},
                           {"params", {{"lr_range_test_min_lr", 1e-4}, {"lr_range_test_step_size", 3}}}};
  }
  if (dtype == "bf16") config["bf16"] = {{"enabled", true}};
  if (dtype == "fp16") {
    config["fp16"] = {{"enabled", true}, {"initial_scale_power", 20}, {"loss_scale_window", 3}, {"hysteresis", 2}};
  }
  return config;
}

void check(const std::string& dtype, const std::string& schedule, int stage) {
  SCOPED_TRACE(dtype + " " + schedule);
  setenv("DS_ACCELERATOR", "cpu", 1);
  const nlohmann::json config = config_for(dtype, schedule, stage);
  const Folder folder("resume_");
  constexpr int stop = 7;
  constexpr int end = 20;
  std::vector<std::vector<double>> losses;
  std::vector<double> rates;
  std::string want;
  {
    Case whole("gpt2-tiny", config, world());
    for (int s = 0; s < end; ++s) {
      if (s == stop) whole.engine->save_checkpoint(folder.path, "", {{"note", "stopped"}});
      losses.push_back(whole.step());
      rates.push_back(whole.engine->get_lr()[0]);
    }
    want = fingerprint(*whole.engine);
  }
  Case resumed("gpt2-tiny", config, world());
  const nlohmann::json client = resumed.engine->load_checkpoint(folder.path);
  EXPECT_EQ(client.at("note"), "stopped");
  EXPECT_EQ(resumed.engine->global_steps(), stop);
  EXPECT_EQ(resumed.engine->global_samples(), stop * 16);
  resumed.next_batch = stop * 2;
  for (int s = stop; s < end; ++s) {
    ASSERT_EQ(resumed.step(), losses[static_cast<std::size_t>(s)]) << "step " << s;
    ASSERT_EQ(resumed.engine->get_lr()[0], rates[static_cast<std::size_t>(s)]) << "step " << s;
  }
  EXPECT_TRUE(fingerprint(*resumed.engine) == want);
}

TEST(ResumeRanks, Fp32) {
  check("fp32", "WarmupDecayLR", 0);
}
TEST(ResumeRanks, Bf16) {
  check("bf16", "WarmupLR", 0);
}
TEST(ResumeRanks, Fp16) {
  check("fp16", "WarmupCosineLR", 0);
}
TEST(ResumeRanks, OneCycle) {
  check("fp32", "OneCycle", 0);
}
TEST(ResumeRanks, RangeTest) {
  check("bf16", "LRRangeTest", 0);
}
TEST(ResumeRanks, Stage1) {
  check("bf16", "WarmupDecayLR", 1);
}
TEST(ResumeRanks, Stage2) {
  check("fp32", "WarmupDecayLR", 2);
}
TEST(ResumeRanks, Stage3) {
  check("bf16", "WarmupDecayLR", 3);
}

// A checkpoint knows no stage: each one's is every other's.
TEST(ResumeRanks, AnyStageReadsAnyOther) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (int from = 0; from < 4; ++from) {
      const Folder folder("stages_");
      Case first("gpt2-tiny", config_for(dtype, "WarmupLR", from), world());
      for (int s = 0; s < 2; ++s) first.step();
      first.engine->save_checkpoint(folder.path);
      const std::vector<float> want = weights_of(*first.engine);
      for (int to = 0; to < 4; ++to) {
        SCOPED_TRACE(dtype + " stage " + std::to_string(from) + " to " + std::to_string(to));
        Case second("gpt2-tiny", config_for(dtype, "WarmupLR", to), world());
        second.engine->load_checkpoint(folder.path);
        EXPECT_EQ(weights_of(*second.engine), want);
        second.engine->save_checkpoint(folder.path, "again");
        const checkpoint::Reader a(folder.path, "global_step2");
        const checkpoint::Reader b(folder.path, "again");
        ASSERT_EQ(a.tensors().size(), b.tensors().size());
        for (const checkpoint::TensorInfo& info : a.tensors()) {
          std::string x(static_cast<std::size_t>(info.numel) * base::size_of(info.type), '\0');
          std::string y(x.size(), '\0');
          a.read(info.name, 0, {x.data(), info.numel, info.type});
          b.read(info.name, 0, {y.data(), info.numel, info.type});
          EXPECT_TRUE(x == y) << info.name;
        }
      }
    }
  }
}

TEST(ResumeRanks, MastersCanComeFromTheWorkingWeights) {
  const auto parameters = [](const Case& c) { return c.model->parameters(); };
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Folder folder("masters_");
    nlohmann::json config = config_for("bf16", "", stage);
    Case saved("llama-tiny", config, world());
    for (int s = 0; s < 3; ++s) saved.step();
    saved.engine->save_checkpoint(folder.path);
    for (const bool fp32 : {true, false}) {
      config["zero_optimization"]["load_from_fp32_weights"] = fp32;
      Case loaded("llama-tiny", config, world());
      loaded.engine->load_checkpoint(folder.path);
      EXPECT_EQ(weights_of(*loaded.engine), weights_of(*saved.engine));
      bool same = true;
      for (std::size_t i = 0; i < parameters(saved).size(); ++i) {
        const at::Tensor before = *saved.engine->safe_get_full_fp32_param(parameters(saved)[i]);
        const at::Tensor after = *loaded.engine->safe_get_full_fp32_param(parameters(loaded)[i]);
        same = same && at::equal(before, after);
        EXPECT_TRUE(at::equal(after, fp32 ? before : before.to(at::kBFloat16).to(at::kFloat))) << i;
        EXPECT_TRUE(at::equal(*saved.engine->safe_get_full_optimizer_state(parameters(saved)[i], "exp_avg"),
                              *loaded.engine->safe_get_full_optimizer_state(parameters(loaded)[i], "exp_avg")));
      }
      EXPECT_EQ(same, fp32);
    }
  }
}

// Case C15: from all ranks to one, and from one to all.
TEST(ResumeRanks, AnotherRankCount) {
  const auto near = [](const Case& a, const Case& b) {
    const std::vector<float> x = weights_of(*a.engine);
    const std::vector<float> y = weights_of(*b.engine);
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-6) << i;
  };
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Folder folder("count_");
    const nlohmann::json config = config_for("fp32", "WarmupDecayLR", stage);
    Case many("llama-tiny", config, world());
    for (int s = 0; s < 5; ++s) many.step();
    many.engine->save_checkpoint(folder.path);

    Case one("llama-tiny", config, comm::self_group());
    one.engine->load_checkpoint(folder.path);
    one.next_batch = many.next_batch;
    for (int s = 0; s < 3; ++s) {
      many.step();
      one.step();
    }
    near(many, one);

    if (world()->rank() == 0) one.engine->save_checkpoint(folder.path, "alone");
    world()->barrier().wait();
    Case again("llama-tiny", config, world());
    again.engine->load_checkpoint(folder.path, "alone");
    again.next_batch = one.next_batch;
    for (int s = 0; s < 3; ++s) {
      many.step();
      again.step();
    }
    near(many, again);
  }
}

// Case C18: before any step, and loading then saving at once, tensor for tensor.
TEST(ResumeRanks, SaveLoadSaveKeepsEverything) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(dtype);
    const Folder folder("again_");
    Case first("gpt2-tiny", config_for(dtype, "WarmupLR", 0), world());
    first.engine->save_checkpoint(folder.path, "start");
    for (int s = 0; s < 3; ++s) first.step();
    first.engine->save_checkpoint(folder.path, "three");
    Case second("gpt2-tiny", config_for(dtype, "WarmupLR", 0), world());
    second.engine->load_checkpoint(folder.path, "three");
    second.engine->save_checkpoint(folder.path, "copy");
    const checkpoint::Reader a(folder.path, "three");
    const checkpoint::Reader b(folder.path, "copy");
    EXPECT_EQ(a.state(), b.state());
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (const checkpoint::TensorInfo& info : a.tensors()) {
      const std::size_t bytes = static_cast<std::size_t>(info.numel) * base::size_of(info.type);
      std::string x(bytes, '\0');
      std::string y(bytes, '\0');
      a.read(info.name, 0, {x.data(), info.numel, info.type});
      b.read(info.name, 0, {y.data(), info.numel, info.type});
      EXPECT_TRUE(x == y) << info.name;
    }
  }
}

TEST(ResumeRanks, AnotherModelIsRefusedAndNothingChanges) {
  const Folder folder("other_");
  Case gpt2("gpt2-tiny", config_for("fp32", "", 0), world());
  gpt2.engine->save_checkpoint(folder.path);
  Case llama("llama-tiny", config_for("fp32", "", 0), world());
  const std::string before = fingerprint(*llama.engine);
  try {
    llama.engine->load_checkpoint(folder.path);
    FAIL() << "a checkpoint of another model was loaded";
  } catch (const base::CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("global_step0"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(fingerprint(*llama.engine) == before);
}

TEST(ResumeRanks, NotBetweenBoundaries) {
  const Folder folder("between_");
  Case run("gpt2-tiny", config_for("fp32", "", 0), world());
  const at::Tensor ids = recorded_tokens(0, world()->rank(), world()->size());
  run.engine->backward(run.model->forward(ids, ids).loss);
  run.engine->step();
  EXPECT_THROW(run.engine->save_checkpoint(folder.path), base::CheckpointError);
}

}  // namespace
}  // namespace deepspeed::engine::testing
