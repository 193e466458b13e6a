// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "comm/group.h"

/// Checkpoints whose every byte is known without being kept: element i of a tensor is a function of its name, i and a
/// version.
namespace deepspeed::checkpoint::sample {

struct Spec {
  std::string name;
  std::vector<std::int64_t> shape;
  base::Dtype type;
};

inline std::int64_t numel(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

/// The bytes of elements [offset, offset + count).
inline std::vector<std::byte> bytes_of(const Spec& spec, std::int64_t offset, std::int64_t count,
                                       std::uint64_t version) {
  const std::size_t element = base::size_of(spec.type);
  std::vector<std::byte> out(static_cast<std::size_t>(count) * element);
  const std::uint64_t seed = std::hash<std::string>()(spec.name) + version * 0x9e3779b97f4a7c15U;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t x = seed + static_cast<std::uint64_t>(offset + i) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 30)) * 0x94d049bb133111ebU;
    x ^= x >> 31;
    if (spec.type == base::Dtype::boolean) x &= 1;
    std::memcpy(out.data() + static_cast<std::size_t>(i) * element, &x, element);
  }
  return out;
}

/// Slices and the memory behind them.
struct Held {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Slice> slices;
  void add(const Spec& spec, std::int64_t offset, std::int64_t count, std::uint64_t version) {
    memory.push_back(bytes_of(spec, offset, count, version));
    slices.push_back({spec.name, spec.shape, offset, {memory.back().data(), count, spec.type}});
  }
};

/// Every dtype, with no, one and odd numbers of elements.
inline std::vector<Spec> all_kinds() {
  std::vector<Spec> specs;
  for (const base::Dtype type :
       {base::Dtype::f64, base::Dtype::f32, base::Dtype::f16, base::Dtype::bf16, base::Dtype::i64, base::Dtype::i32,
        base::Dtype::i16, base::Dtype::i8, base::Dtype::u8, base::Dtype::boolean}) {
    const std::string kind(base::name_of(type));
    specs.push_back({"model/" + kind + ".empty", {3, 0, 2}, type});
    specs.push_back({"model/" + kind + ".scalar", {}, type});
    specs.push_back({"model/" + kind + ".one", {1}, type});
    specs.push_back({"model/" + kind + ".matrix", {7, 13}, type});
    specs.push_back({"optimizer/exp_avg/" + kind + ".odd", {1237}, type});
  }
  specs.push_back({"optimizer/step", {}, base::Dtype::i64});
  return specs;
}

/// Cuts every tensor into unaligned pieces, some of them empty, and deals them to `ranks`; this is what `rank` holds.
inline Held deal(const std::vector<Spec>& specs, int rank, int ranks, std::uint64_t version, unsigned seed = 1) {
  std::mt19937 random(seed);
  Held held;
  for (const Spec& spec : specs) {
    const std::int64_t total = numel(spec.shape);
    std::vector<std::int64_t> cuts{0, total};
    for (int i = 1; i < 3 * ranks; ++i)
      cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(total + 1)));
    std::sort(cuts.begin(), cuts.end());
    bool given = false;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const bool mine = random() % static_cast<unsigned>(ranks) == static_cast<unsigned>(rank);
      if (mine) held.add(spec, cuts[i], cuts[i + 1] - cuts[i], version);
      given = given || mine;
    }
    if (total == 0 && rank == 0 && !given) held.add(spec, 0, 0, version);
  }
  std::shuffle(held.slices.begin(), held.slices.end(), random);
  return held;
}

/// Saves whole tensors from a single rank.
inline void save_whole(const std::filesystem::path& folder, const std::string& tag, const std::vector<Spec>& specs,
                       std::uint64_t version, int keep_last = 0) {
  Held held;
  for (const Spec& spec : specs) held.add(spec, 0, numel(spec.shape), version);
  SaveOptions options;
  options.folder = folder;
  options.tag = tag;
  options.keep_last = keep_last;
  save(*comm::self_group(), options, held.slices, {{"version", version}});
}

/// True if [offset, offset + count) of the tensor reads as it was made.
inline bool reads_back(const Reader& reader, const Spec& spec, std::int64_t offset, std::int64_t count,
                       std::uint64_t version) {
  std::vector<std::byte> out(static_cast<std::size_t>(count) * base::size_of(spec.type), std::byte{0xAA});
  reader.read(spec.name, offset, {out.data(), count, spec.type});
  return out == bytes_of(spec, offset, count, version);
}

inline bool all_read_back(const Reader& reader, const std::vector<Spec>& specs, std::uint64_t version) {
  return reader.tensors().size() == specs.size() && reader.state() == nlohmann::json{{"version", version}} &&
         std::all_of(specs.begin(), specs.end(), [&](const Spec& spec) {
           const TensorInfo* info = reader.find(spec.name);
           return info != nullptr && info->shape == spec.shape && info->type == spec.type &&
                  reads_back(reader, spec, 0, numel(spec.shape), version);
         });
}

/// What an expression throws as a CheckpointError; "" if nothing.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const base::CheckpointError& error) {
    return error.what();
  }
  return "";
}

}  // namespace deepspeed::checkpoint::sample
