// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace deepspeed::nn {

/// From now on the memory of every host tensor is charged to base::ledger, in the category that the allocating thread
/// names. What was allocated before is not counted and is freed as ever. Any number of calls.
void count_allocations();

/// Counted memory in pages of its own, uninitialized: none of the heap's, so it leaves no hole there, and the system
/// has it back at once. Slow to get.
at::DataPtr own_pages(std::size_t bytes);

}  // namespace deepspeed::nn
