// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::layout {

/// The axes along which ranks differ, outermost first. Ranks that differ in the last ones are neighbours, which wants
/// the fastest links.
enum class Axis { pipe, replica, shard, expert, sequence, tensor };
inline constexpr std::size_t axis_count = 6;

std::string_view name_of(Axis axis);

/// A set of axes, hence a way to cut the mesh into groups: ranks that agree in every other axis form one group.
class Axes {
 public:
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1U << static_cast<unsigned>(axis);
  }
  constexpr Axes(Axis axis) : Axes({axis}) {}  // NOLINT: an axis is a set of one
  constexpr bool has(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis) & 1U) != 0; }
  constexpr Axes operator|(Axes other) const {
    other.bits_ |= bits_;
    return other;
  }
  constexpr bool operator==(const Axes&) const = default;

 private:
  unsigned bits_ = 0;
};

/// Who sees different samples: the dense parameters' data-parallel group. An expert's own group is replica x shard.
inline constexpr Axes data_axes{Axis::replica, Axis::shard, Axis::expert};
inline constexpr Axes expert_data_axes{Axis::replica, Axis::shard};
/// Who holds the same dense parameters, so that gradients are summed over it and ZeRO shards over it (sequence-parallel
/// ranks hold the same weights and see other tokens: Jacobs et al., "DeepSpeed Ulysses", 2023).
inline constexpr Axes gradient_axes = data_axes | Axes{Axis::sequence};
inline constexpr Axes expert_gradient_axes = expert_data_axes | Axes{Axis::sequence};
/// Within one replica of the sharded states (MiCS, hpZ: Zhang et al. 2022; Wang et al., "ZeRO++", 2023).
inline constexpr Axes shard_axes{Axis::shard, Axis::expert, Axis::sequence};
/// One model replica: what DeepSpeed calls the model-parallel ("slice") and pipeline ranks.
inline constexpr Axes model_axes{Axis::pipe, Axis::tensor};

/// Degrees as a configuration states them. `shard` counts data-parallel ranks that share one copy of the sharded
/// states; 0 means all of them.
struct Degrees {
  int pipe = 1;
  int tensor = 1;
  int sequence = 1;
  int expert = 1;
  int shard = 0;
};

/// Ranks as points of a box with named axes. Pure arithmetic: no MPI.
class Mesh {
 public:
  using Coordinate = std::array<int, axis_count>;  ///< one index an axis, in the order of Axis

  /// A box of these extents (each >= 1), in the order of Axis.
  explicit Mesh(const Coordinate& extents);
  /// The mesh of a run on `world` ranks: what pipe, tensor and sequence leave over is data parallel, cut into replicas
  /// of `shard` ranks; experts are spread inside data parallelism. ConfigError if the numbers don't divide.
  Mesh(int world, const Degrees& degrees);

  int size() const { return size_; }
  int extent(Axis axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  /// Product of the extents: ranks in each group over `axes`.
  int extent(Axes axes) const;
  /// Micro batches taken at once: extent(data_axes).
  int data_size() const { return extent(data_axes); }

  Coordinate coordinate(int rank) const;
  int coordinate(int rank, Axis axis) const;
  int rank(const Coordinate& coordinate) const;

  /// The ranks of the group over `axes` that `rank` is in, ascending.
  std::vector<int> ranks(int rank, Axes axes) const;
  /// Place of `rank` in ranks(rank, axes): the key of MPI's split.
  int index(int rank, Axes axes) const;
  /// Number of that group among all groups over `axes`: the color of MPI's split. Groups are ordered by first rank.
  int group(int rank, Axes axes) const;
  /// All groups over `axes`, in that order.
  std::vector<std::vector<int>> groups(Axes axes) const;
  /// The rank whose coordinate is `offset` further along `axis`, or -1 beyond the end: a pipeline neighbour.
  int neighbour(int rank, Axis axis, int offset) const;

  /// "pipe 2 x data 4 (replica 2 x shard 2) x tensor 2": axes of extent 1 left out; "1 rank" if nothing is left.
  std::string describe() const;

 private:
  Coordinate extents_;
  int size_ = 1;
};

}  // namespace deepspeed::layout
