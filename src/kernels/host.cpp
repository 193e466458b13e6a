// SPDX-License-Identifier: Apache-2.0
#include "kernels/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/log.h"
#include "kernels/threads.h"

namespace deepspeed::kernels {

namespace {

/// Elements that pass through fp32 buffers at a time where a type isn't fp32: all of them stay in the first cache.
constexpr std::int64_t tile_size = 1024;

void check(bool fits, const char* kernel, const char* wanted) {
  if (!fits) throw std::invalid_argument(fmt::format("kernels::{}: {}", kernel, wanted));
}

Element element_of(Dtype type, const char* kernel) {
  switch (type) {
    case Dtype::f32:
      return f32;
    case Dtype::f16:
      return f16;
    case Dtype::bf16:
      return bf16;
    default:
      throw std::invalid_argument(
          fmt::format("kernels::{}: {} isn't one of fp32, fp16, bf16", kernel, base::name_of(type)));
  }
}

constexpr std::int64_t bytes_of(Element type) {
  return type == f32 ? 4 : 2;
}

/// A typed pointer that can be moved by elements.
struct Cursor {
  char* data = nullptr;
  Element type = f32;
  void* at(std::int64_t i) const { return data + i * bytes_of(type); }
};

Cursor cursor(const void* data, Dtype type, const char* kernel) {
  return {static_cast<char*>(const_cast<void*>(data)), element_of(type, kernel)};
}

/// An fp32 view of part of a buffer: the memory itself where it is fp32, else a widened copy.
struct Tile {
  alignas(64) std::array<float, tile_size> copy;
  float* read(const Loops& loops, const Cursor& from, std::int64_t begin, std::int64_t n) {
    if (from.data == nullptr) return nullptr;
    if (from.type == f32) return static_cast<float*>(from.at(begin));
    loops.cast[f32][from.type](copy.data(), from.at(begin), n);
    return copy.data();
  }
  void write_back(const Loops& loops, const Cursor& to, std::int64_t begin, std::int64_t n) {
    if (to.data != nullptr && to.type != f32) loops.cast[to.type][f32](to.at(begin), copy.data(), n);
  }
};

std::vector<const Loops*> find_usable() {
#if defined(__x86_64__)
  std::vector<const Loops*> usable{&loops_x86_64_v2};
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  if (v3) usable.push_back(&loops_x86_64_v3);
  if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    usable.push_back(&loops_x86_64_v4);
  }
  if (!v3) {
    log::warn_once("This CPU has no fused multiply-add: optimizer steps on the host take about 15 times longer.");
  }
  return usable;
#else
  return {&loops_generic};
#endif
}

}  // namespace

std::span<const Loops* const> usable_loops() {
  static const std::vector<const Loops*> usable = find_usable();
  return usable;
}

const Loops& host_loops() {
  static const Loops* const best = usable_loops().back();
  return *best;
}

void cast(Buffer to, ConstBuffer from) {
  check(to.numel == from.numel, "cast", "sizes differ");
  if (to.type == from.type) {
    const auto width = static_cast<std::int64_t>(base::size_of(to.type));
    for_chunks(to.numel, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(static_cast<char*>(to.data) + begin * width, static_cast<const char*>(from.data) + begin * width,
                  static_cast<std::size_t>((end - begin) * width));
    });
    return;
  }
  const Cursor out = cursor(to.data, to.type, "cast");
  const Cursor in = cursor(from.data, from.type, "cast");
  const auto loop = host_loops().cast[out.type][in.type];
  for_chunks(to.numel, [&](std::int64_t begin, std::int64_t end) { loop(out.at(begin), in.at(begin), end - begin); });
}

void zero(Buffer y) {
  const auto width = static_cast<std::int64_t>(base::size_of(y.type));
  for_chunks(y.numel, [&](std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<char*>(y.data) + begin * width, 0, static_cast<std::size_t>((end - begin) * width));
  });
}

void scale(Buffer y, float a) {
  const Cursor out = cursor(y.data, y.type, "scale");
  const auto loop = host_loops().scale[out.type];
  for_chunks(y.numel, [&](std::int64_t begin, std::int64_t end) { loop(out.at(begin), a, end - begin); });
}

void accumulate(Buffer y, ConstBuffer x, float a) {
  check(y.numel == x.numel, "accumulate", "sizes differ");
  const Cursor out = cursor(y.data, y.type, "accumulate");
  const Cursor in = cursor(x.data, x.type, "accumulate");
  const Loops& loops = host_loops();
  for_chunks(y.numel, [&](std::int64_t begin, std::int64_t end) {
    if (a == 1) {
      loops.add[out.type][in.type](out.at(begin), in.at(begin), end - begin);
    } else {
      loops.add_scaled[out.type][in.type](out.at(begin), in.at(begin), a, end - begin);
    }
  });
}

void ordered_sum(Buffer out, std::span<const void* const> inputs, Dtype type, float scale) {
  check(!inputs.empty(), "ordered_sum", "no inputs");
  const Cursor to = cursor(out.data, out.type, "ordered_sum");
  const Element from = element_of(type, "ordered_sum");
  const Loops& loops = host_loops();
  for_chunks(out.numel, [&](std::int64_t begin, std::int64_t end) {
    Tile tile;
    for (std::int64_t i = begin; i < end; i += tile_size) {
      const std::int64_t n = std::min(tile_size, end - i);
      float* sum = to.type == f32 ? static_cast<float*>(to.at(i)) : tile.copy.data();
      const auto input = [&](std::size_t k) { return static_cast<const char*>(inputs[k]) + i * bytes_of(from); };
      if (static_cast<const void*>(sum) != input(0)) loops.cast[f32][from](sum, input(0), n);
      for (std::size_t k = 1; k < inputs.size(); ++k) loops.add[f32][from](sum, input(k), n);
      if (scale != 1) loops.scale[f32](sum, scale, n);
      tile.write_back(loops, to, i, n);
    }
  });
}

double sum_squares(ConstBuffer x) {
  const Cursor in = cursor(x.data, x.type, "sum_squares");
  const auto loop = host_loops().sum_squares[in.type];
  std::vector<double> partial(static_cast<std::size_t>((x.numel + chunk_size - 1) / chunk_size));
  for_chunks(x.numel, [&](std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(begin / chunk_size)] = loop(in.at(begin), end - begin);
  });
  double sum = 0;
  for (const double p : partial) sum += p;
  return sum;
}

void gelu_tanh(Buffer y, ConstBuffer x) {
  check(y.numel == x.numel && y.type == x.type, "gelu_tanh", "sizes or types differ");
  const Cursor out = cursor(y.data, y.type, "gelu_tanh");
  const Cursor in = cursor(x.data, x.type, "gelu_tanh");
  const auto loop = host_loops().gelu_tanh[out.type];
  for_chunks(y.numel, [&](std::int64_t begin, std::int64_t end) { loop(out.at(begin), in.at(begin), end - begin); });
}

void gelu_tanh_backward(Buffer dx, ConstBuffer dy, ConstBuffer x) {
  const char* const name = "gelu_tanh_backward";
  check(dx.numel == x.numel && dx.type == x.type && dy.numel == x.numel && dy.type == x.type, name,
        "sizes or types differ");
  const Cursor out = cursor(dx.data, dx.type, name);
  const Cursor gradient = cursor(dy.data, dy.type, name);
  const Cursor in = cursor(x.data, x.type, name);
  const auto loop = host_loops().gelu_tanh_backward[out.type];
  for_chunks(x.numel, [&](std::int64_t begin, std::int64_t end) {
    loop(out.at(begin), gradient.at(begin), in.at(begin), end - begin);
  });
}

int states_of(Rule rule) {
  switch (rule) {
    case adam:
    case adamw:
      return 2;
    case sgd:
      return 0;
    default:
      return 1;
  }
}

void update(Rule rule, const Update& buffers, const UpdateStep& step) {
  const std::int64_t numel = buffers.master.numel;
  check(buffers.gradient.numel == numel, "update", "the gradient's size differs from the weights'");
  check(static_cast<int>(buffers.states.size()) == states_of(rule), "update", "wrong number of states");
  const Cursor master = cursor(buffers.master.data, buffers.master.type, "update");
  const Cursor gradient = cursor(buffers.gradient.data, buffers.gradient.type, "update");
  std::array<Cursor, 2> states;
  for (std::size_t k = 0; k < buffers.states.size(); ++k) {
    check(buffers.states[k].numel == numel, "update", "a state's size differs from the weights'");
    states[k] = cursor(buffers.states[k].data, buffers.states[k].type, "update");
  }
  Cursor working;
  if (buffers.working.data != nullptr) {
    check(buffers.working.numel == numel, "update", "the working copy's size differs from the weights'");
    working = cursor(buffers.working.data, buffers.working.type, "update");
  }
  const Loops& loops = host_loops();
  const auto loop = loops.update[rule];
  const bool direct = master.type == f32 && gradient.type == f32 && states[0].type == f32 && states[1].type == f32 &&
                      working.data == nullptr;
  for_chunks(numel, [&](std::int64_t begin, std::int64_t end) {
    if (direct) {
      const auto at = [&](const Cursor& c) { return c.data ? static_cast<float*>(c.at(begin)) : nullptr; };
      loop(at(master), at(gradient), at(states[0]), at(states[1]), step, end - begin);
      return;
    }
    Tile master_tile, gradient_tile, state_tile[2];
    for (std::int64_t i = begin; i < end; i += tile_size) {
      const std::int64_t n = std::min(tile_size, end - i);
      float* weights = master_tile.read(loops, master, i, n);
      loop(weights, gradient_tile.read(loops, gradient, i, n), state_tile[0].read(loops, states[0], i, n),
           state_tile[1].read(loops, states[1], i, n), step, n);
      master_tile.write_back(loops, master, i, n);
      for (int k = 0; k < 2; ++k) state_tile[k].write_back(loops, states[static_cast<std::size_t>(k)], i, n);
      if (working.data != nullptr) loops.cast[working.type][f32](working.at(i), weights, n);
    }
  });
}

}  // namespace deepspeed::kernels
