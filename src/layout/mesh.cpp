// SPDX-License-Identifier: Apache-2.0
#include "layout/mesh.h"

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>

#include "base/error.h"

namespace deepspeed::layout {
namespace {

Mesh::Coordinate extents_of(int world, const Degrees& degrees) {
  const auto positive = [](int value, std::string_view what) {
    if (value < 1)
      throw base::ConfigError(fmt::format("the {} parallel degree is {}; it must be at least 1", what, value));
  };
  positive(world, "world");
  positive(degrees.pipe, "pipeline");
  positive(degrees.tensor, "tensor");
  positive(degrees.sequence, "sequence");
  positive(degrees.expert, "expert");
  const std::int64_t model = std::int64_t{degrees.pipe} * degrees.tensor * degrees.sequence;
  if (world % model != 0) {
    throw base::ConfigError(
        fmt::format("{} ranks can't be divided by pipeline {} x tensor {} x sequence {} = {}; start a multiple of {} "
                    "ranks, or lower a degree",
                    world, degrees.pipe, degrees.tensor, degrees.sequence, model, model));
  }
  const int data = static_cast<int>(world / model);
  if (data % degrees.expert != 0) {
    throw base::ConfigError(
        fmt::format("{} data-parallel ranks can't be divided by the expert parallel degree {}; use a divisor of {}, or "
                    "a multiple of "
                    "{} data-parallel ranks",
                    data, degrees.expert, data, degrees.expert));
  }
  const int shard = degrees.shard == 0 ? data : degrees.shard;
  if (shard < 1 || data % shard != 0) {
    throw base::ConfigError(fmt::format(
        "{} data-parallel ranks can't be cut into shard groups of {}; use a divisor of {}", data, shard, data));
  }
  if (shard % degrees.expert != 0) {
    throw base::ConfigError(fmt::format(
        "a shard group of {} ranks can't hold experts spread over {}; the shard size must be a multiple of the expert "
        "parallel degree",
        shard, degrees.expert));
  }
  return {degrees.pipe, data / shard, shard / degrees.expert, degrees.expert, degrees.sequence, degrees.tensor};
}

}  // namespace

std::string_view name_of(Axis axis) {
  static constexpr std::array<std::string_view, axis_count> names{"pipe",   "replica",  "shard",
                                                                  "expert", "sequence", "tensor"};
  return names[static_cast<std::size_t>(axis)];
}

Mesh::Mesh(const Coordinate& extents) : extents_(extents) {
  for (const int extent : extents_) {
    if (extent < 1) throw std::invalid_argument(fmt::format("Mesh: an axis of {} ranks", extent));
    size_ *= extent;
  }
}

Mesh::Mesh(int world, const Degrees& degrees) : Mesh(extents_of(world, degrees)) {}

int Mesh::extent(Axes axes) const {
  int product = 1;
  for (std::size_t i = 0; i < axis_count; ++i) {
    if (axes.has(static_cast<Axis>(i))) product *= extents_[i];
  }
  return product;
}

Mesh::Coordinate Mesh::coordinate(int rank) const {
  if (rank < 0 || rank >= size_) throw std::out_of_range(fmt::format("Mesh: rank {} of {}", rank, size_));
  Coordinate result{};
  for (std::size_t i = axis_count; i-- > 0;) {
    result[i] = rank % extents_[i];
    rank /= extents_[i];
  }
  return result;
}

int Mesh::coordinate(int rank, Axis axis) const {
  return coordinate(rank)[static_cast<std::size_t>(axis)];
}

int Mesh::rank(const Coordinate& coordinate) const {
  int result = 0;
  for (std::size_t i = 0; i < axis_count; ++i) {
    if (coordinate[i] < 0 || coordinate[i] >= extents_[i]) {
      throw std::out_of_range(
          fmt::format("Mesh: {} {} of {}", name_of(static_cast<Axis>(i)), coordinate[i], extents_[i]));
    }
    result = result * extents_[i] + coordinate[i];
  }
  return result;
}

std::vector<int> Mesh::ranks(int rank, Axes axes) const {
  Coordinate at = coordinate(rank);
  for (std::size_t i = 0; i < axis_count; ++i) {
    if (axes.has(static_cast<Axis>(i))) at[i] = 0;
  }
  std::vector<int> members(static_cast<std::size_t>(extent(axes)));
  for (int& member : members) {
    member = this->rank(at);
    // Count up along the chosen axes, innermost first.
    for (std::size_t i = axis_count; i-- > 0;) {
      if (!axes.has(static_cast<Axis>(i))) continue;
      if (++at[i] < extents_[i]) break;
      at[i] = 0;
    }
  }
  return members;
}

int Mesh::index(int rank, Axes axes) const {
  const Coordinate at = coordinate(rank);
  int result = 0;
  for (std::size_t i = 0; i < axis_count; ++i) {
    if (axes.has(static_cast<Axis>(i))) result = result * extents_[i] + at[i];
  }
  return result;
}

int Mesh::group(int rank, Axes axes) const {
  const Coordinate at = coordinate(rank);
  int result = 0;
  for (std::size_t i = 0; i < axis_count; ++i) {
    if (!axes.has(static_cast<Axis>(i))) result = result * extents_[i] + at[i];
  }
  return result;
}

std::vector<std::vector<int>> Mesh::groups(Axes axes) const {
  std::vector<std::vector<int>> result(static_cast<std::size_t>(size_ / extent(axes)));
  for (int r = 0; r < size_; ++r) result[static_cast<std::size_t>(group(r, axes))].push_back(r);
  return result;
}

int Mesh::neighbour(int rank, Axis axis, int offset) const {
  Coordinate at = coordinate(rank);
  int& position = at[static_cast<std::size_t>(axis)];
  position += offset;
  return position < 0 || position >= extent(axis) ? -1 : this->rank(at);
}

std::string Mesh::describe() const {
  std::string text;
  const auto add = [&text](std::string_view name, int extent) {
    if (extent > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, extent);
  };
  add("pipe", extent(Axis::pipe));
  add("data", data_size());
  std::string inner;
  for (const Axis axis : {Axis::replica, Axis::shard, Axis::expert}) {
    if (extent(axis) > 1 && extent(axis) < data_size()) {
      inner += fmt::format("{}{} {}", inner.empty() ? "" : " x ", name_of(axis), extent(axis));
    }
  }
  if (!inner.empty()) text += fmt::format(" ({})", inner);
  add("sequence", extent(Axis::sequence));
  add("tensor", extent(Axis::tensor));
  return text.empty() ? "1 rank" : text;
}

}  // namespace deepspeed::layout
