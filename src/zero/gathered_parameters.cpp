// SPDX-License-Identifier: Apache-2.0
#include "zero/gathered_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "base/log.h"

namespace deepspeed::zero {

GatheredParameters::GatheredParameters(const std::vector<at::Tensor>& parameters, std::optional<int> modifier_rank,
                                       bool enabled)
    : modifier_rank_(modifier_rank), exceptions_(std::uncaught_exceptions()) {
  if (!enabled) return;
  for (const at::Tensor& parameter : parameters) {
    Row* row = row_of(parameter);
    if (row == nullptr) continue;
    if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= row->group().size())) {
      throw std::invalid_argument(fmt::format("GatheredParameters: modifier_rank is {}, ranks are 0 to {}",
                                              *modifier_rank, row->group().size() - 1));
    }
    if (std::none_of(rows_.begin(), rows_.end(), [&](const auto& r) { return r.get() == row; })) {
      rows_.push_back(row->shared_from_this());
    }
  }
  for (const auto& row : rows_) {
    ++row->users;
    row->bring();
  }
  for (const at::Tensor& parameter : parameters) versions_.emplace_back(parameter, parameter._version());
}

GatheredParameters::~GatheredParameters() {
  if (std::uncaught_exceptions() > exceptions_) {
    let_go();
    return;
  }
  try {
    close();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

void GatheredParameters::let_go() {
  for (const auto& row : rows_) {
    if (--row->users == 0) row->release();
  }
  rows_.clear();
}

void GatheredParameters::close() {
  const auto changed = std::find_if(versions_.begin(), versions_.end(),
                                    [](const auto& item) { return item.first._version() != item.second; });
  if (modifier_rank_) {
    for (const auto& row : rows_) row->follow(*modifier_rank_);
  }
  const bool refused = !modifier_rank_ && changed != versions_.end() && !rows_.empty();
  let_go();
  versions_.clear();
  if (refused) {
    throw std::runtime_error(
        "Detected in-place modification of ZeRO-3 parameters inside GatheredParameters with modifier_rank=None. Use "
        "modifier_rank=<rank> to broadcast updates across ranks.");
  }
}

}  // namespace deepspeed::zero
