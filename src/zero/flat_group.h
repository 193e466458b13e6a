// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/group.h"
#include "layout/partition.h"
#include "layout/placement.h"
#include "optim/update_rule.h"

namespace deepspeed::zero {

/// One trainable parameter of the model and its full name, "transformer.h.0.ln_1.weight".
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// What becomes one flat row: the parameters of one unit, or of the root, that share a set of hyper-parameters.
struct ParameterGroup {
  std::vector<NamedParameter> parameters;
  std::size_t hyper = 0;    ///< which hyper-parameters
  bool keep_whole = false;  ///< never released, also where parameters are sharded: the root, which belongs to no unit
};

/// Half-open range of a flat row, in elements.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
};

/// One flat row: parameters back to back, padded, cut into one slice a rank (ZeRO, Rajbhandari et al. 2020, section 5),
/// with whatever the placement keeps of it on this rank. The model's parameters are views of the row, so weights are
/// written, gathered and saved without a copy.
class FlatGroup {
 public:
  /// Moves the parameters into flat storage of dtype `working`. Masters start from the working values, as DeepSpeed's
  /// do; in fp32 they are the working values. Where parameters are sharded the row is released at once, unless it is
  /// to be kept whole.
  FlatGroup(ParameterGroup group, int rank, int ranks, const layout::Placement& placement, base::Dtype working,
            base::Dtype accumulation, const std::vector<optim::StateSpec>& states);

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const layout::Partition& partition() const { return partition_; }
  std::size_t hyper() const { return hyper_; }
  bool keep_whole() const { return keep_whole_; }

  /// This rank's slice, padding included.
  Range slice() const { return slice_; }
  /// The part of the row whose masters, states and mean gradient live on this rank, without padding.
  Range owned() const { return owned_; }

  /// Whether the weights are all here. While they aren't, reading a parameter throws an error that names it.
  bool whole() const { return whole_; }
  /// Collective: starts to bring the whole row here; the parameters may be read once the Work is waited for. Views that
  /// autograd saved see the new memory.
  comm::Work gather(comm::Group& group);
  /// Gives the row's memory back; this rank's slice stays.
  void release();

  /// The whole row, [padded] in the working type; its memory is null while it isn't whole.
  base::Buffer row() const;
  /// This rank's slice of the weights in the working type.
  base::Buffer weights() const;
  /// The working weights of owned().
  base::Buffer owned_working() const;
  /// fp32 masters of owned().
  base::Buffer master() const;
  bool has_own_master() const { return master_.defined(); }
  std::vector<at::Tensor> states;  ///< [owned], of the types that the rule declares

  /// Adds one parameter's gradient of this rank to the local row.
  void accumulate(std::size_t parameter, const at::Tensor& gradient);
  /// The local row of gradients [padded], zero where a parameter got none; made if there was none at all.
  base::Buffer local_gradient();
  /// Forgets the local row; `free` gives its memory back.
  void drop_local_gradient(bool free);

 private:
  std::vector<NamedParameter> parameters_;
  std::size_t hyper_;
  bool keep_whole_;
  bool optimizer_sharded_;
  layout::Partition partition_;
  base::Dtype accumulation_type_;
  Range slice_;
  Range owned_;
  at::Tensor working_;  // [padded]; the parameters are views of its storage while whole
  at::Tensor shard_;    // [slice]: own memory where parameters are sharded, else a view of working_
  at::Tensor master_;   // undefined where the weights are fp32 and serve
  at::Tensor local_;    // [padded] local sum of gradients; undefined while there is none
  std::vector<char> touched_;
  std::vector<c10::Storage> absent_;  // one a parameter: storage that throws its error
  bool whole_ = true;
};

}  // namespace deepspeed::zero
