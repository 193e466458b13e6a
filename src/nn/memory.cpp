// SPDX-License-Identifier: Apache-2.0
#include "nn/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/ledger.h"

namespace deepspeed::nn {
namespace {

namespace ledger = base::ledger;

/// Stands before the data, so that freeing needs the data's address only, as raw_deallocate does. Its size keeps the
/// alignment that torch's own allocator gives.
struct alignas(64) Header {
  std::uint64_t mark;
  std::int64_t bytes;
  ledger::Category category;
  bool own_pages;

  std::uint64_t own_mark() const { return reinterpret_cast<std::uintptr_t>(this) ^ 0x64732d6c65646772; }
};

/// What doesn't come and go with every step gets pages of its own, which go back to the system at once. On the heap the
/// whole weights of a unit, which are there only until zero::Init shards them, would leave a hole, and the first small
/// block in it keeps the next unit's weights out: a sharded model would take as much as a whole one.
bool lasts(ledger::Category category) {
  using ledger::Category;
  return category == Category::other || category == Category::parameters || category == Category::optimizer;
}

/// Instead of torch's own error, which is a place in torch and a stack trace.
void* system_memory(std::size_t bytes, bool own_pages) {
  if (own_pages) {
    void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw base::MemoryError();
    return pages;
  }
  try {
    return c10::alloc_cpu(bytes);
  } catch (const c10::Error&) {
    throw base::MemoryError();
  }
}

/// Also gets blocks from before the count: torch's oneDNN layer frees by raw_deallocate of whatever allocator is there
/// by then. They have no mark; in front of an aligned block of the heap there is always memory that can be read.
void free_counted(void* data) {
  if (data == nullptr) return;
  auto* header = static_cast<Header*>(data) - 1;
  if (header->mark != header->own_mark()) return c10::free_cpu(data);
  header->mark = 0;
  ledger::charge(header->category, -header->bytes);
  if (header->own_pages) {
    ::munmap(header, static_cast<std::size_t>(header->bytes) + sizeof(Header));
  } else {
    c10::free_cpu(header);
  }
}

at::DataPtr counted_memory(std::size_t bytes, bool own_pages) {
  if (bytes == 0) return {nullptr, nullptr, &free_counted, at::kCPU};
  own_pages = own_pages && bytes >= 128 * 1024;  // below, half-used pages would cost as much as the holes
  auto* header = new (system_memory(bytes + sizeof(Header), own_pages))
      Header{0, static_cast<std::int64_t>(bytes), ledger::category(), own_pages};
  header->mark = header->own_mark();
  ledger::charge(header->category, header->bytes);
  return {header + 1, header + 1, &free_counted, at::kCPU};
}

class CountingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override { return counted_memory(bytes, lasts(ledger::category())); }
  at::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

void count_allocations() {
  // Above whatever else may be set, and never destroyed: tensors are made and freed until the end of the process.
  static const bool set = [] {
    c10::SetCPUAllocator(new CountingAllocator, 255);
    return true;
  }();
  static_cast<void>(set);
}

at::DataPtr own_pages(std::size_t bytes) {
  return counted_memory(bytes, true);
}

}  // namespace deepspeed::nn
