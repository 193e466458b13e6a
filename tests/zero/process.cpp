// SPDX-License-Identifier: Apache-2.0
#include "zero/process.h"

#include <gtest/gtest.h>

#include "comm/process.h"

namespace deepspeed::zero {
namespace {

std::unique_ptr<comm::Process> process;

class ProcessEnvironment : public testing::Environment {
 public:
  void SetUp() override { process = std::make_unique<comm::Process>(nullptr, nullptr); }
  void TearDown() override { process.reset(); }
};
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new ProcessEnvironment);

}  // namespace

std::shared_ptr<comm::Group> world() {
  return process->world();
}

}  // namespace deepspeed::zero
