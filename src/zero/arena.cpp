// SPDX-License-Identifier: Apache-2.0
#include "zero/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "nn/memory.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::zero {

struct Arena::Pool {
  Pool(base::ledger::Category what, Holds how_much) : category(what), holds(how_much) {}
  const base::ledger::Category category;
  const Holds holds;
  std::mutex mutex;
  std::multimap<std::int64_t, at::DataPtr> free;
  std::int64_t held = 0;
  std::int64_t largest = 0;

  at::DataPtr take(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    largest = std::max(largest, bytes);
    const auto found = free.find(bytes);
    if (found == free.end()) {
      const base::ledger::Scope scope(category);
      const auto size = static_cast<std::size_t>(bytes);
      return holds == Holds::all ? nn::own_pages(size) : c10::GetCPUAllocator()->allocate(size);
    }
    at::DataPtr data = std::move(found->second);
    free.erase(found);
    held -= bytes;
    return data;
  }

  void give(std::int64_t bytes, at::DataPtr data) {
    const std::lock_guard lock(mutex);
    // What no longer fits the requests makes room for what does.
    while (holds == Holds::two && !free.empty() && held + bytes > 2 * largest) {
      held -= free.begin()->first;
      free.erase(free.begin());
    }
    held += bytes;
    free.emplace(bytes, std::move(data));
  }
};

namespace {

template <class Pool>
struct Piece {
  std::shared_ptr<Pool> pool;
  std::int64_t bytes;
  at::DataPtr data;
  static void free(void* piece) {
    auto* self = static_cast<Piece*>(piece);
    self->pool->give(self->bytes, std::move(self->data));
    delete self;
  }
};

}  // namespace

Arena::Arena(base::ledger::Category category, Holds holds) : pool_(std::make_shared<Pool>(category, holds)) {}

at::DataPtr Arena::take(std::int64_t bytes) {
  auto piece = std::make_unique<Piece<Pool>>(Piece<Pool>{pool_, bytes, pool_->take(bytes)});
  void* data = piece->data.get();
  return {data, piece.release(), &Piece<Pool>::free, at::kCPU};
}

at::Tensor Arena::tensor(std::int64_t numel, base::Dtype type) {
  const std::int64_t bytes = numel * static_cast<std::int64_t>(base::size_of(type));
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, take(bytes), nullptr, false);
  at::Tensor tensor = at::empty({0}, nn::scalar_type(type));
  tensor.set_(storage, 0, {numel}, {1});
  return tensor;
}

}  // namespace deepspeed::zero
