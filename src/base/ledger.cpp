// SPDX-License-Identifier: Apache-2.0
#include "base/ledger.h"

#include <array>
#include <atomic>

namespace deepspeed::base::ledger {
namespace {

struct Counter {
  std::atomic<std::int64_t> now{0};
  std::atomic<std::int64_t> most{0};

  void add(std::int64_t bytes) {
    const std::int64_t sum = now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t seen = most.load(std::memory_order_relaxed);
    while (sum > seen && !most.compare_exchange_weak(seen, sum, std::memory_order_relaxed)) {
    }
  }
  void reset() { most.store(now.load(std::memory_order_relaxed), std::memory_order_relaxed); }
};

std::array<Counter, categories> counters;
Counter total;
thread_local Category current_category = Category::other;

Counter& of(Category category) {
  return counters[static_cast<std::size_t>(category)];
}

}  // namespace

std::string_view name_of(Category category) {
  constexpr std::array<std::string_view, categories> names{"other",     "parameters", "gathered",      "gradients",
                                                           "optimizer", "buckets",    "communication", "activations"};
  return names[static_cast<std::size_t>(category)];
}

std::int64_t current(Category category) {
  return of(category).now.load(std::memory_order_relaxed);
}

std::int64_t peak(Category category) {
  return of(category).most.load(std::memory_order_relaxed);
}

std::int64_t current_total() {
  return total.now.load(std::memory_order_relaxed);
}

std::int64_t peak_total() {
  return total.most.load(std::memory_order_relaxed);
}

void reset_peaks() {
  for (Counter& counter : counters) counter.reset();
  total.reset();
}

void charge(Category category, std::int64_t bytes) {
  of(category).add(bytes);
  total.add(bytes);
}

Category category() {
  return current_category;
}

Scope::Scope(Category category) : before_(std::exchange(current_category, category)) {}

Scope::~Scope() {
  current_category = before_;
}

}  // namespace deepspeed::base::ledger
