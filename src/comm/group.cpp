// SPDX-License-Identifier: Apache-2.0
#include "comm/group.h"

#include <numeric>
#include <utility>

#include "comm/work_state.h"

namespace deepspeed::comm {
namespace {

template <class T>
Buffer one(T& value, base::Dtype type) {
  return {&value, 1, type};
}

template <class Bytes>
Buffer bytes_of(Bytes& bytes) {
  return {bytes.data(), static_cast<std::int64_t>(bytes.size()), base::Dtype::u8};
}

}  // namespace

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

void Work::wait() {
  if (state_ != nullptr) state_->wait();
}

bool Work::done() const {
  return state_ == nullptr || state_->done();
}

std::vector<std::byte> Group::broadcast_bytes(std::vector<std::byte> bytes, int root) {
  auto length = static_cast<std::int64_t>(bytes.size());
  broadcast(one(length, base::Dtype::i64), root).wait();
  bytes.resize(static_cast<std::size_t>(length));
  broadcast(bytes_of(bytes), root).wait();
  return bytes;
}

std::string Group::broadcast_text(const std::string& text, int root) {
  std::string result = rank() == root ? text : std::string();
  auto length = static_cast<std::int64_t>(result.size());
  broadcast(one(length, base::Dtype::i64), root).wait();
  result.resize(static_cast<std::size_t>(length));
  broadcast(bytes_of(result), root).wait();
  return result;
}

std::vector<std::string> Group::all_gather_text(const std::string& text) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int64_t> lengths(ranks);
  std::int64_t own = static_cast<std::int64_t>(text.size());
  all_gather(one(own, base::Dtype::i64), std::vector<std::int64_t>(ranks, 1),
             {lengths.data(), static_cast<std::int64_t>(ranks), base::Dtype::i64})
      .wait();
  std::string all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})), '\0');
  all_gather({text.data(), own, base::Dtype::u8}, lengths, bytes_of(all)).wait();
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (const std::int64_t length : lengths) {
    texts.push_back(all.substr(begin, static_cast<std::size_t>(length)));
    begin += static_cast<std::size_t>(length);
  }
  return texts;
}

double Group::all_reduce_value(double value, ReduceOp op) {
  all_reduce(one(value, base::Dtype::f64), op).wait();
  return value;
}

std::int64_t Group::all_reduce_value(std::int64_t value, ReduceOp op) {
  all_reduce(one(value, base::Dtype::i64), op).wait();
  return value;
}

bool Group::any(bool value) {
  return all_reduce_value(std::int64_t{value}, ReduceOp::max) != 0;
}

}  // namespace deepspeed::comm
