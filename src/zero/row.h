// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/group.h"
#include "layout/partition.h"
#include "zero/arena.h"

namespace deepspeed::zero {

/// One parameter of the model and its full name, "transformer.h.0.ln_1.weight".
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// Half-open range of a flat row, in elements.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
};

/// How the weights of a row are held.
struct Holding {
  base::Dtype type = base::Dtype::f32;
  bool sharded = false;      ///< this rank owns its slice; else every rank owns the whole row
  bool keep_whole = true;    ///< whole all the time, also where it is sharded
  bool round_robin = false;  ///< layout::Partition's order
};

/// The weights of one flat row: parameters back to back, padded, cut into one slice a rank (ZeRO, Rajbhandari et al.
/// 2020, section 5). The model's parameters are views of the row, so weights are written, gathered and saved without a
/// copy. While a row isn't whole, reading one of its parameters throws an error that names it.
class Row : public std::enable_shared_from_this<Row> {
 public:
  /// Collective: moves the parameters, with the values of the group's rank 0, into flat storage. A row that is not to
  /// be kept whole is released at once. `gathered`: where whole rows of sharded weights get their memory.
  Row(std::vector<NamedParameter> parameters, std::shared_ptr<comm::Group> group, const Holding& holding,
      Arena gathered);
  ~Row();
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  /// Those taken out are undefined.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// What the parameters' names begin with, "transformer.h.0": for people.
  const std::string& name() const { return name_; }
  /// The same parameters under their full names.
  void rename(const std::vector<NamedParameter>& parameters);
  const layout::Partition& partition() const { return partition_; }
  std::int64_t numel() const { return partition_.numel(); }
  const Holding& holding() const { return holding_; }
  comm::Group& group() const { return *group_; }
  /// This rank's slice, padding included, and without it.
  Range slice() const { return slice_; }
  Range share() const;

  enum class State { absent, coming, whole };
  State state() const { return state_; }
  bool whole() const { return state_ == State::whole; }
  /// Collective on `group`, any of the same ranks: starts to bring the whole row here. Views that autograd saved see
  /// the new memory. Where the row is here already it is sent to the others only.
  void gather(comm::Group& group);
  /// Collective: starts to bring the others' slices anew into a row that is here, after slices changed.
  void refresh(comm::Group& group);
  /// Until the row is whole.
  void wait();
  /// Collective on the row's own group: gather and wait.
  void bring();
  /// Gives the row's memory back; this rank's slice stays. Nothing happens to one that is kept whole.
  void release();

  /// Who needs the row whole right now; it isn't to be released while anybody does.
  int users = 0;

  /// The whole row, [padded]; its memory is null while it isn't whole.
  base::Buffer whole_weights() const;
  /// This rank's slice of the weights.
  base::Buffer weights() const;

  /// Collective: rank `root`'s whole weights become everybody's, slices and masters too. The row must be whole.
  void follow(int root);
  /// Collective: the parameter gets memory of its own with its whole value; its place in the row stays, unused.
  void take_out(const at::Tensor& parameter);
  /// Called when weights were changed by hand: masters are to follow.
  std::function<void()> on_change;

 private:
  void make_absent_storages();
  struct Stray {
    comm::Work work;
    at::DataPtr memory;
  };
  std::vector<NamedParameter> parameters_;
  std::string name_;
  std::shared_ptr<comm::Group> group_;
  Holding holding_;
  Arena arena_;
  layout::Partition partition_;
  Range slice_;
  at::Tensor working_;                // [padded]; the parameters are views of its storage while whole
  at::Tensor shard_;                  // [slice]: own memory where parameters are sharded, else a view of working_
  std::vector<c10::Storage> absent_;  // one a parameter: storage that throws its error
  State state_ = State::whole;
  comm::Work coming_;
  std::vector<Stray> strays_;  // what others asked for while it was here
};

/// The row that holds a parameter, of any engine or zero::Init of this process; nullptr if none does.
Row* row_of(const at::Tensor& parameter);

}  // namespace deepspeed::zero
