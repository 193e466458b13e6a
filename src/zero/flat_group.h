// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "layout/partition.h"
#include "layout/placement.h"
#include "optim/update_rule.h"

namespace deepspeed::zero {

/// One trainable parameter of the model and its full name, "transformer.h.0.ln_1.weight".
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// Parameters that share their hyper-parameters, in the order that the flat layout takes.
struct ParameterGroup {
  std::vector<NamedParameter> parameters;
  optim::Hyper hyper;
};

/// Half-open range of a flat buffer, in elements.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
};

/// The storage of one parameter group: every parameter of the group in one flat row (ZeRO, Rajbhandari et al. 2020,
/// section 5), and beside it whatever the placement keeps on this rank. The model's parameters become views of
/// `working`, so weights are written, gathered and saved without a copy.
class FlatGroup {
 public:
  /// Moves the parameters into flat storage of dtype `working`. Masters start from the working values, as DeepSpeed's
  /// do; in fp32 they are the working values.
  FlatGroup(ParameterGroup group, int rank, int ranks, const layout::Placement& placement, base::Dtype working,
            base::Dtype accumulation, const std::vector<optim::StateSpec>& states);

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const layout::Partition& partition() const { return partition_; }
  optim::Hyper hyper;

  /// The part of the row whose masters, states and mean gradient live on this rank, without padding.
  Range owned() const { return owned_; }

  at::Tensor working;       ///< [padded], the model's dtype
  at::Tensor accumulation;  ///< [padded], local sum of micro-batch gradients
  at::Tensor reduced;       ///< fp32 [owned]: mean over ranks; undefined with one rank, where the local sum serves
  std::vector<at::Tensor> states;  ///< fp32 each, [owned]

  /// fp32 masters of owned(), as raw memory.
  base::Buffer master() const;
  bool has_own_master() const { return master_.defined(); }
  /// Forgets which parameters have got a gradient: the next one is stored instead of added.
  void clear_gradients();
  std::vector<char> touched;  ///< one a parameter: has a gradient since clear_gradients

 private:
  std::vector<NamedParameter> parameters_;
  layout::Partition partition_;
  Range owned_;
  at::Tensor master_;  // undefined where working is fp32 and serves
};

}  // namespace deepspeed::zero
