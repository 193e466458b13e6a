// SPDX-License-Identifier: Apache-2.0
#include "nn/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/ledger.h"
#include "nn/unit.h"

namespace deepspeed::nn {
namespace {

namespace ledger = base::ledger;
using ledger::Category;

TEST(CountedAllocations, GoToTheCategoryOfTheirScopeAndLeaveIt) {
  std::optional<at::Tensor> early = at::ones({1000});
  void* early_raw = c10::GetCPUAllocator()->raw_allocate(100);
  count_allocations();
  count_allocations();
  const std::int64_t before = ledger::current(Category::optimizer);
  const std::int64_t other = ledger::current(Category::other);
  early.reset();  // not counted, so not taken back
  c10::GetCPUAllocator()->raw_deallocate(early_raw);
  EXPECT_EQ(ledger::current(Category::other), other);
  at::Tensor kept;
  {
    const ledger::Scope scope(Category::optimizer);
    kept = at::empty({250});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.data_ptr()) % 64, 0U);
    EXPECT_EQ(ledger::current(Category::optimizer), before + 1000);
    kept.resize_({500});
    EXPECT_EQ(ledger::current(Category::optimizer), before + 2000);
    const at::Tensor view = kept.view({5, 100});
    float blob[4] = {};
    const at::Tensor borrowed = at::from_blob(blob, {4});
    const at::Tensor nothing = at::empty({0});
    EXPECT_EQ(ledger::current(Category::optimizer), before + 2000);
  }
  EXPECT_EQ(ledger::current(Category::optimizer), before + 2000);
  kept = at::Tensor();  // outside of the scope
  EXPECT_EQ(ledger::current(Category::optimizer), before);
}

// Autograd may run a unit's backward on a thread of its own.
TEST(CountedAllocations, WhatAUnitMakesAreActivations) {
  struct Twice : Unit {
    Tensors compute(const Tensors& inputs) override { return {inputs[0] * 2, inputs[0] * inputs[0]}; }
  };
  count_allocations();
  const std::int64_t before = ledger::current(Category::activations);
  const auto unit = std::make_shared<Twice>();
  const at::Tensor x = at::ones({1000}).requires_grad_(true);
  {
    Unit::Tensors y = unit->run({x});
    EXPECT_EQ(ledger::current(Category::activations), before + 2 * 4000);
    const at::Tensor sum = (y[0] + y[1]).sum();
    y.clear();
    ledger::reset_peaks();
    std::thread([&] { sum.backward(); }).join();
    EXPECT_GT(ledger::peak(Category::activations), before);
  }
  EXPECT_EQ(x.grad()[0].item<float>(), 4);
}

TEST(CountedAllocations, WorkWithRawMemoryAndProducts) {
  count_allocations();
  const std::int64_t before = ledger::current(Category::buckets);
  {
    const ledger::Scope scope(Category::buckets);
    void* raw = c10::GetCPUAllocator()->raw_allocate(100);
    EXPECT_EQ(ledger::current(Category::buckets), before + 100);
    c10::GetCPUAllocator()->raw_deallocate(raw);
    const at::Tensor a = at::ones({64, 64}).to(at::kBFloat16);
    EXPECT_EQ(at::matmul(a, a)[0][0].item<float>(), 64);
  }
  EXPECT_EQ(ledger::current(Category::buckets), before);
}

TEST(CountedAllocations, MemoryThatIsNotThereIsAClearError) {
  count_allocations();
  for (const Category category : {Category::activations, Category::optimizer}) {
    const ledger::Scope scope(category);
    const std::int64_t before = ledger::current(category);
    EXPECT_THROW(at::empty({std::int64_t{1} << 50}), base::MemoryError);
    EXPECT_EQ(ledger::current(category), before);
  }
}

// What a model's weights are made in leaves no hole behind, also where something small was kept meanwhile.
TEST(CountedAllocations, WhatLastsStaysOffTheHeap) {
  count_allocations();
  const auto heap = [] {
    const struct mallinfo2 all = ::mallinfo2();
    return all.arena + all.hblkhd;
  };
  std::vector<std::unique_ptr<char[]>> small;
  const std::size_t before = heap();
  for (int i = 0; i < 50; ++i) {
    const at::Tensor whole = at::ones({1 << 18});
    small.push_back(std::make_unique<char[]>(1000));
  }
  const ledger::Scope scope(Category::optimizer);
  const at::Tensor kept = at::ones({1 << 18});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.data_ptr()) % 64, 0U);
  EXPECT_LT(heap(), before + (1 << 20));
}

}  // namespace
}  // namespace deepspeed::nn
