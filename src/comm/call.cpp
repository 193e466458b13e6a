// SPDX-License-Identifier: Apache-2.0
#include "comm/call.h"

#include <fmt/format.h>

#include "comm/group_error.h"

namespace deepspeed::comm {

void Call::fail(const std::string& what) const {
  throw GroupError(fmt::format("{} #{} on group '{}'", name, number, communicator->name),
                   fmt::format("rank {} of {} ({})", communicator->rank, communicator->size, communicator->host), what);
}

void Call::check(int code) const {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(std::string(text, static_cast<std::size_t>(length)));
}

bool Requests::test() {
  if (list_.empty()) return true;
  int all = 0;
  statuses_.resize(list_.size());
  code_ = MPI_Testall(static_cast<int>(list_.size()), list_.data(), &all, statuses_.data());
  if (code_ == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_) {
      if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) code_ = status.MPI_ERROR;
    }
  }
  return all != 0 || code_ != MPI_SUCCESS;
}

void Requests::finish() {
  call_->check(code_);
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    int bytes = 0;
    if (expected_[i] >= 0) check(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
    if (expected_[i] >= 0 && bytes != expected_[i]) {
      call_->fail(fmt::format("{} bytes came where {} are awaited", bytes, expected_[i]));
    }
  }
  list_.clear();
  expected_.clear();
}

}  // namespace deepspeed::comm
