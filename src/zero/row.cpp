// SPDX-License-Identifier: Apache-2.0
#include "zero/row.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/ledger.h"
#include "base/trace.h"
#include "kernels/host.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::zero {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Row*> rows;  // by TensorImpl
};

Registry& registry() {
  static Registry rows;
  return rows;
}

std::vector<std::int64_t> numels_of(const std::vector<NamedParameter>& parameters) {
  std::vector<std::int64_t> numels;
  numels.reserve(parameters.size());
  for (const NamedParameter& p : parameters) numels.push_back(p.tensor.numel());
  return numels;
}

/// The modules that all names have in common; one parameter's is its own.
std::string common_name(const std::vector<NamedParameter>& parameters) {
  if (parameters.empty()) return "";
  const std::string& first = parameters.front().name;
  const std::string& last = parameters.back().name;
  if (parameters.size() == 1) return first;
  const auto differ = std::mismatch(first.begin(), first.end(), last.begin(), last.end()).first;
  const std::size_t dot = std::string_view(first.begin(), differ).rfind('.');
  return dot == std::string_view::npos ? first + " ..." : first.substr(0, dot);
}

/// A storage of this size whose memory can't be read: whoever tries gets the message.
c10::Storage absent_storage(std::size_t bytes, const std::string& message) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU), nullptr, false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

}  // namespace

Row::Row(std::vector<NamedParameter> parameters, std::shared_ptr<comm::Group> group, const Holding& holding,
         Arena gathered)
    : parameters_(std::move(parameters)),
      name_(common_name(parameters_)),
      group_(std::move(group)),
      holding_(holding),
      arena_(std::move(gathered)),
      partition_(numels_of(parameters_), group_->size(), 2, holding.round_robin) {
  const c10::AutoGradMode no_grad(false);
  slice_ = {partition_.slice_begin(group_->rank()), partition_.slice_begin(group_->rank()) + partition_.slice_size()};

  const base::ledger::Scope scope(base::ledger::Category::parameters);
  working_ = holding_.sharded ? arena_.tensor(partition_.padded(), holding_.type)
                              : at::empty({partition_.padded()}, nn::scalar_type(holding_.type));
  if (partition_.padded() > partition_.numel()) {
    kernels::zero(nn::view(working_, partition_.numel(), partition_.padded() - partition_.numel()));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    at::Tensor place = working_.narrow(0, partition_.offset_of(i), parameter.numel()).view(parameter.sizes());
    place.copy_(parameter);
    parameter.set_data(place);
  }
  // Weights built or loaded on each rank may differ; all start from those of rank 0.
  group_->broadcast(nn::view(working_), 0).wait();
  shard_ = working_.narrow(0, slice_.begin, slice_.numel());
  if (holding_.sharded) shard_ = shard_.clone();

  if (!holding_.keep_whole) {
    make_absent_storages();
    release();
  }
  const std::lock_guard lock(registry().mutex);
  for (const NamedParameter& p : parameters_) registry().rows[p.tensor.unsafeGetTensorImpl()] = this;
}

Row::~Row() {
  try {
    if (state_ == State::coming) coming_.wait();
    for (Stray& stray : strays_) stray.work.wait();
  } catch (const std::exception&) {  // the collective's own failure has been told
  }
  const std::lock_guard lock(registry().mutex);
  for (const NamedParameter& p : parameters_) {
    if (!p.tensor.defined()) continue;
    const auto found = registry().rows.find(p.tensor.unsafeGetTensorImpl());
    if (found != registry().rows.end() && found->second == this) registry().rows.erase(found);
  }
}

void Row::make_absent_storages() {
  absent_.clear();
  for (const NamedParameter& p : parameters_) {
    absent_.push_back(absent_storage(
        working_.storage().nbytes(),
        fmt::format("parameter '{}' is sharded over the ranks (ZeRO stage 3) and not gathered here: use it inside its "
                    "unit's forward, or inside a zero::GatheredParameters",
                    p.name)));
  }
}

void Row::rename(const std::vector<NamedParameter>& parameters) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].name = parameters[i].name;
  name_ = common_name(parameters_);
  if (holding_.keep_whole) return;
  make_absent_storages();
  if (state_ != State::absent) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(absent_[i]);
  }
}

Range Row::share() const {
  return {std::min(slice_.begin, partition_.numel()), std::min(slice_.end, partition_.numel())};
}

void Row::refresh(comm::Group& group) {
  if (state_ == State::absent) throw std::logic_error("Row::refresh: the row isn't here");
  wait();
  const base::trace::Subject subject(name_);
  state_ = State::coming;
  coming_ = group.all_gather(
      weights(), std::vector<std::int64_t>(static_cast<std::size_t>(group.size()), slice_.numel()), whole_weights());
}

void Row::gather(comm::Group& group) {
  const base::trace::Subject subject(name_);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), slice_.numel());
  if (state_ != State::absent) {
    std::erase_if(strays_, [](const Stray& stray) { return stray.work.done(); });
    const auto bytes = static_cast<std::int64_t>(working_.storage().nbytes());
    at::DataPtr memory = arena_.take(bytes);
    const base::Buffer scratch{memory.get(), partition_.padded(), holding_.type};
    strays_.push_back({group.all_gather(weights(), counts, scratch), std::move(memory)});
    return;
  }
  // Autograd's saved views hold this same storage, so it gets the memory and keeps its identity.
  working_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      arena_.take(static_cast<std::int64_t>(working_.storage().nbytes())));
  for (const NamedParameter& p : parameters_) {
    if (p.tensor.defined()) p.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(working_.storage());
  }
  state_ = State::coming;
  coming_ = group.all_gather(weights(), counts, whole_weights());
}

void Row::wait() {
  if (state_ != State::coming) return;
  const base::trace::Range range("wait for weights", "zero", {{"row", name_}});
  coming_.wait();
  coming_ = comm::Work();
  state_ = State::whole;
}

void Row::bring() {
  if (holding_.keep_whole) return wait();
  gather(*group_);
  wait();
  for (Stray& stray : strays_) stray.work.wait();
  strays_.clear();
}

void Row::release() {
  if (holding_.keep_whole || state_ == State::absent) return;
  wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    if (parameter.defined()) parameter.unsafeGetTensorImpl()->set_storage_keep_dtype(absent_[i]);
  }
  working_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  state_ = State::absent;
}

base::Buffer Row::whole_weights() const {
  return nn::view(working_);
}

base::Buffer Row::weights() const {
  return nn::view(shard_);
}

void Row::follow(int root) {
  if (state_ != State::whole) throw std::logic_error("Row::follow: the row isn't whole");
  group_->broadcast(whole_weights(), root).wait();
  if (holding_.sharded) kernels::cast(weights(), nn::view(working_, slice_.begin, slice_.numel()));
  if (on_change) on_change();
}

Row* row_of(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().rows.find(parameter.unsafeGetTensorImpl());
  return found == registry().rows.end() ? nullptr : found->second;
}

void Row::take_out(const at::Tensor& parameter) {
  const c10::AutoGradMode no_grad(false);
  const auto place = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const NamedParameter& p) { return p.tensor.is_same(parameter); });
  if (place == parameters_.end()) throw std::logic_error("Row::take_out: the row doesn't hold this parameter");
  bring();
  place->tensor.set_data(place->tensor.detach().clone());
  place->tensor = at::Tensor();
  if (users == 0) release();
  const std::lock_guard lock(registry().mutex);
  registry().rows.erase(parameter.unsafeGetTensorImpl());
}

}  // namespace deepspeed::zero
