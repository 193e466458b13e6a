// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

/// Who holds how much host memory. Allocators charge what they give out to the category that the allocating thread
/// names, so the figures are counts, not formulas.
namespace deepspeed::base::ledger {

enum class Category : std::uint8_t {
  other,          ///< of no part of training: data, tables, what came before the count began
  parameters,     ///< weights that this rank owns
  gathered,       ///< weights of others that are here for a while, or all the time (the root's under ZeRO-3)
  gradients,      ///< summed up: the local sum over micro batches or the mean
  optimizer,      ///< masters and states
  buckets,        ///< gradients on their way from backward to the mean
  communication,  ///< memory that collectives need themselves
  activations,    ///< all else that forward and backward allocate
  count,
};

constexpr std::size_t categories = static_cast<std::size_t>(Category::count);

/// "parameters", ...
std::string_view name_of(Category category);

/// Bytes charged now, and the most since the last reset_peaks().
std::int64_t current(Category category);
std::int64_t peak(Category category);
/// The same of all categories together.
std::int64_t current_total();
std::int64_t peak_total();
void reset_peaks();

/// Negative bytes take back. Any thread.
void charge(Category category, std::int64_t bytes);

/// What this thread's allocations are for.
Category category();

/// Sets it for a scope.
class Scope {
 public:
  explicit Scope(Category category);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Category before_;
};

/// A charge for memory that comes from elsewhere than a counting allocator.
class Charge {
 public:
  Charge() = default;
  Charge(Category category, std::int64_t bytes) : category_(category), bytes_(bytes) { charge(category_, bytes_); }
  Charge(Charge&& other) noexcept : category_(other.category_), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(category_, other.category_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (bytes_ != 0) charge(category_, -bytes_);
  }

 private:
  Category category_ = Category::other;
  std::int64_t bytes_ = 0;
};

}  // namespace deepspeed::base::ledger
