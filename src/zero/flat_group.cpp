// SPDX-License-Identifier: Apache-2.0
#include "zero/flat_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/host.h"
#include "zero/tensor_buffer.h"

namespace deepspeed::zero {
namespace {

std::vector<std::int64_t> numels_of(const std::vector<NamedParameter>& parameters) {
  std::vector<std::int64_t> numels;
  numels.reserve(parameters.size());
  for (const NamedParameter& p : parameters) numels.push_back(p.tensor.numel());
  return numels;
}

/// A storage of this size whose memory can't be read: whoever tries gets the message.
c10::Storage absent_storage(std::size_t bytes, const std::string& message) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU), nullptr, false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

}  // namespace

FlatGroup::FlatGroup(ParameterGroup group, int rank, int ranks, const layout::Placement& placement,
                     base::Dtype working_type, base::Dtype accumulation_type,
                     const std::vector<optim::StateSpec>& state_specs)
    : parameters_(std::move(group.parameters)),
      hyper_(group.hyper),
      keep_whole_(group.keep_whole || placement.parameters == layout::Spread::replicated),
      optimizer_sharded_(placement.optimizer == layout::Spread::sharded),
      partition_(numels_of(parameters_), ranks),
      accumulation_type_(accumulation_type) {
  const c10::AutoGradMode no_grad(false);
  slice_ = {partition_.slice_begin(rank), partition_.slice_begin(rank) + partition_.slice_size()};
  owned_ = {std::min(slice_.begin, partition_.numel()), std::min(slice_.end, partition_.numel())};
  if (!optimizer_sharded_) owned_ = {0, partition_.numel()};
  touched_.assign(parameters_.size(), 0);

  working_ = at::zeros({partition_.padded()}, scalar_type(working_type));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    at::Tensor place = working_.narrow(0, partition_.offset_of(i), parameter.numel()).view(parameter.sizes());
    place.copy_(parameter);
    parameter.set_data(place);
  }
  shard_ = working_.narrow(0, slice_.begin, slice_.numel());
  if (placement.parameters == layout::Spread::sharded) shard_ = shard_.clone();
  if (working_type != base::Dtype::f32) {
    master_ = working_.narrow(0, owned_.begin, owned_.numel()).to(at::kFloat);
  }
  for (const optim::StateSpec& spec : state_specs) {
    states.push_back(at::zeros({owned_.numel()}, scalar_type(spec.type)));
  }
  if (!keep_whole_) {
    for (const NamedParameter& p : parameters_) {
      absent_.push_back(absent_storage(
          working_.storage().nbytes(),
          fmt::format(
              "parameter '{}' is sharded over the ranks (ZeRO stage 3) and not gathered here: use it inside its "
              "unit's forward, or gather it first",
              p.name)));
    }
    release();
  }
}

comm::Work FlatGroup::gather(comm::Group& group) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), slice_.numel());
  if (!whole_) {
    // Autograd's saved views hold this same storage, so it gets the memory and keeps its identity.
    working_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::GetCPUAllocator()->allocate(working_.storage().nbytes()));
    for (const NamedParameter& p : parameters_) {
      p.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(working_.storage());
    }
    whole_ = true;
  }
  return group.all_gather(weights(), counts, row());
}

void FlatGroup::release() {
  if (keep_whole_ || !whole_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(absent_[i]);
  }
  working_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  whole_ = false;
}

base::Buffer FlatGroup::row() const {
  return view(working_);
}

base::Buffer FlatGroup::weights() const {
  return view(shard_);
}

base::Buffer FlatGroup::owned_working() const {
  return optimizer_sharded_ ? view(shard_, 0, owned_.numel()) : view(working_, 0, owned_.numel());
}

base::Buffer FlatGroup::master() const {
  if (master_.defined()) return view(master_);
  return owned_working();
}

void FlatGroup::accumulate(std::size_t parameter, const at::Tensor& gradient) {
  if (!local_.defined()) local_ = at::empty({partition_.padded()}, scalar_type(accumulation_type_));
  const at::Tensor contiguous = gradient.contiguous();
  const base::Buffer place = view(local_, partition_.offset_of(parameter), contiguous.numel());
  if (touched_[parameter] != 0) {
    kernels::accumulate(place, view(contiguous));
  } else {
    kernels::cast(place, view(contiguous));
    touched_[parameter] = 1;
  }
}

base::Buffer FlatGroup::local_gradient() {
  if (!local_.defined()) local_ = at::empty({partition_.padded()}, scalar_type(accumulation_type_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (touched_[i] != 0) continue;
    kernels::zero(view(local_, partition_.offset_of(i), partition_.numel_of(i)));
    touched_[i] = 1;
  }
  return view(local_, 0, partition_.numel());
}

void FlatGroup::drop_local_gradient(bool free) {
  std::fill(touched_.begin(), touched_.end(), 0);
  if (free) local_ = at::Tensor();
}

}  // namespace deepspeed::zero
