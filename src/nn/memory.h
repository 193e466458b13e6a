// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deepspeed::nn {

/// From now on the memory of every host tensor is charged to base::ledger, in the category that the allocating thread
/// names. What was allocated before is not counted and is freed as ever. Any number of calls.
void count_allocations();

}  // namespace deepspeed::nn
