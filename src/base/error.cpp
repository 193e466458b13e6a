// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <system_error>

namespace deepspeed::base {

MemoryError::MemoryError()
    : Error(ExitCode::failure,
            "out of host memory: a rank holds less under a higher zero_optimization.stage, on more ranks, or with a "
            "smaller train_micro_batch_size_per_gpu; `ds_train --plan` prints what each takes") {}

std::string system_error(const std::string& what, int error_number) {
  return what + ": " + std::generic_category().message(error_number);
}

}  // namespace deepspeed::base
