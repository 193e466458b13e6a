// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/ledger.h"
#include "comm/arguments.h"
#include "comm/group_error.h"
#include "comm/mpi_handle.h"
#include "comm/reduce.h"
#include "comm/self_group.h"

namespace deepspeed::comm {
namespace {

using base::Dtype;

/// Long buffers travel in pieces, a few under way at a time: counts stay below MPI's 2^31, scratch memory stays small,
/// and each piece that arrives tells the communication thread that something moves.
constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;
constexpr std::size_t pieces_under_way = 2;
/// Scratch for one round of slices from all ranks.
constexpr std::int64_t round_bytes = std::int64_t{8} << 20;
constexpr std::int64_t shortest_piece_bytes = std::int64_t{16} << 10;
constexpr std::int64_t longest_piece_bytes = std::int64_t{1} << 20;
/// Below this, a slice is left to MPI's own algorithms, which need fewer messages.
constexpr std::int64_t short_slice_bytes = std::int64_t{8} << 10;
/// Tag of the messages inside collectives; a caller's tag t travels as t + 1.
constexpr int own_tag = 0;

MPI_Datatype mpi_type(Dtype type) {
  switch (type) {
    case Dtype::f64:
      return MPI_DOUBLE;
    case Dtype::f32:
      return MPI_FLOAT;
    case Dtype::f16:
    case Dtype::bf16:
      return MPI_UINT16_T;  // moved, never reduced, by MPI
    case Dtype::i64:
      return MPI_INT64_T;
    case Dtype::i32:
      return MPI_INT32_T;
    case Dtype::i16:
      return MPI_INT16_T;
    case Dtype::i8:
      return MPI_INT8_T;
    case Dtype::u8:
    case Dtype::boolean:
      return MPI_UINT8_T;
  }
  return MPI_BYTE;
}

bool is_float16(Dtype type) {
  return type == Dtype::f16 || type == Dtype::bf16;
}

MPI_Op mpi_op(Dtype type, ReduceOp op) {
  if (op == ReduceOp::min) return MPI_MIN;
  return op == ReduceOp::max || type == Dtype::boolean ? MPI_MAX : MPI_SUM;
}

std::string_view name_of(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::max ? "max" : "min";
}

char* at(void* data, std::int64_t element, Dtype type) {
  return static_cast<char*>(data) + element * static_cast<std::int64_t>(size_of(type));
}
const char* at(const void* data, std::int64_t element, Dtype type) {
  return static_cast<const char*>(data) + element * static_cast<std::int64_t>(size_of(type));
}

std::int64_t elements(std::int64_t bytes, Dtype type) {
  return std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(size_of(type)));
}

/// Piece number `i` of a slice of `count` elements has this many.
std::int64_t piece_of(std::int64_t count, std::int64_t piece, std::int64_t i) {
  return std::clamp<std::int64_t>(count - i * piece, 0, piece);
}

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), std::int64_t{0});
  return offsets;
}

/// Cuts `count` elements into `ranks` slices as evenly as they go.
std::vector<std::int64_t> even(std::int64_t count, int ranks) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), count / ranks);
  for (std::int64_t r = 0; r < count % ranks; ++r) ++counts[static_cast<std::size_t>(r)];
  return counts;
}

/// Memory for slices from other ranks, kept for the next call: fresh pages cost as much as the sum. On the
/// communication thread only.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) {
    auto& pool = kept();
    const auto fit = std::find_if(pool.begin(), pool.end(), [bytes](const auto& m) { return m.size() >= bytes; });
    if (fit != pool.end()) {
      memory_ = std::move(*fit);
      pool.erase(fit);
    } else {
      memory_ = Memory(bytes);
    }
  }
  Scratch(Scratch&&) = default;
  Scratch& operator=(Scratch&&) = default;
  ~Scratch() {
    if (memory_.size() != 0) kept().push_back(std::move(memory_));
  }
  char* data() { return memory_.bytes.data(); }

 private:
  struct Memory {
    Memory() = default;
    explicit Memory(std::size_t size)
        : bytes(size), charge(base::ledger::Category::communication, static_cast<std::int64_t>(size)) {}
    std::size_t size() const { return bytes.size(); }
    std::vector<char> bytes;
    base::ledger::Charge charge;
  };
  static std::vector<Memory>& kept() {
    thread_local std::vector<Memory> pool;
    return pool;
  }
  Memory memory_;
};

/// Starts call after call, awaiting the oldest when enough are under way.
class Pipeline {
 public:
  explicit Pipeline(const Call& call, std::size_t depth = pieces_under_way) : call_(call), depth_(depth) {}
  bool full() const { return under_way_.size() >= depth_; }
  bool empty() const { return under_way_.empty(); }
  Requests& push() { return under_way_.emplace_back(call_); }
  Requests& oldest() { return under_way_.front(); }
  void pop() { under_way_.pop_front(); }

 private:
  const Call& call_;
  std::size_t depth_;
  std::deque<Requests> under_way_;
};

Task barrier(const Call& call) {
  Requests requests(call);
  requests.check(MPI_Ibarrier(call.communicator->handle, requests.add()));
  co_await requests;
}

Task all_reduce_by_mpi(const Call& call, Buffer buffer, ReduceOp op) {
  Pipeline pipeline(call);
  const std::int64_t piece = elements(piece_bytes, buffer.type);
  for (std::int64_t begin = 0; begin < buffer.numel; begin += piece) {
    if (pipeline.full()) {
      co_await pipeline.oldest();
      pipeline.pop();
    }
    const int count = static_cast<int>(std::min(piece, buffer.numel - begin));
    Requests& requests = pipeline.push();
    requests.check(MPI_Iallreduce(MPI_IN_PLACE, at(buffer.data, begin, buffer.type), count, mpi_type(buffer.type),
                                  mpi_op(buffer.type, op), call.communicator->handle, requests.add()));
  }
  for (; !pipeline.empty(); pipeline.pop()) co_await pipeline.oldest();
}

/// Slices are exchanged piece by piece; each round's pieces are reduced in rank order while the next ones travel.
Task exchange_and_reduce(const Call& call, ConstBuffer input, std::vector<std::int64_t> counts, Buffer output,
                         ReduceOp op, float scale, bool accumulate) {
  const Communicator& comm = *call.communicator;
  const Dtype type = input.type;
  const auto ranks = static_cast<std::size_t>(comm.size);
  const auto own = static_cast<std::size_t>(comm.rank);
  const std::vector<std::int64_t> offsets = offsets_of(counts);
  const std::int64_t piece =
      elements(std::clamp(round_bytes / comm.size, shortest_piece_bytes, longest_piece_bytes), type);
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  const std::int64_t rounds = (most + piece - 1) / piece;
  const std::int64_t scratch_piece = std::min(piece, counts[own]);

  struct Round {
    Round(const Call& c, std::size_t bytes) : receives(c), sends(c), scratch(bytes) {}
    Requests receives;
    Requests sends;
    Scratch scratch;
  };
  std::vector<Round> round;
  for (std::size_t i = 0; i < pieces_under_way; ++i) {
    round.emplace_back(call, ranks * static_cast<std::size_t>(scratch_piece) * size_of(type));
  }
  const auto post = [&](std::int64_t i) {
    Round& r = round[static_cast<std::size_t>(i) % pieces_under_way];
    // Each rank begins with its right-hand neighbour, so that not all send to the same one.
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t from = (own + ranks - step) % ranks;
      const std::size_t to = (own + step) % ranks;
      if (const std::int64_t n = piece_of(counts[own], piece, i); n > 0) {
        r.receives.check(MPI_Irecv(at(r.scratch.data(), static_cast<std::int64_t>(from) * scratch_piece, type),
                                   static_cast<int>(n), mpi_type(type), static_cast<int>(from), own_tag, comm.handle,
                                   r.receives.add()));
      }
      if (const std::int64_t n = piece_of(counts[to], piece, i); n > 0) {
        r.sends.check(MPI_Isend(at(input.data, offsets[to] + i * piece, type), static_cast<int>(n), mpi_type(type),
                                static_cast<int>(to), own_tag, comm.handle, r.sends.add()));
      }
    }
  };
  std::vector<const void*> slices(ranks);
  if (rounds > 0) post(0);
  for (std::int64_t i = 0; i < rounds; ++i) {
    Round& r = round[static_cast<std::size_t>(i) % pieces_under_way];
    if (i + 1 < rounds) {
      co_await round[static_cast<std::size_t>(i + 1) % pieces_under_way].sends;
      post(i + 1);
    }
    co_await r.receives;
    const std::int64_t n = piece_of(counts[own], piece, i);
    for (std::size_t s = 0; s < ranks; ++s) {
      slices[s] = s == own ? at(input.data, offsets[own] + i * piece, type)
                           : at(r.scratch.data(), static_cast<std::int64_t>(s) * scratch_piece, type);
    }
    const Buffer out{at(output.data, i * piece, output.type), n, output.type};
    if (n > 0) reduce_slices(slices, type, out, op, scale, accumulate);
  }
  for (Round& r : round) co_await r.sends;
}

Task reduce_scatter_by_mpi(const Call& call, ConstBuffer input, Buffer output, ReduceOp op) {
  Requests requests(call);
  requests.check(MPI_Ireduce_scatter_block(input.data, output.data, static_cast<int>(output.numel),
                                           mpi_type(output.type), mpi_op(output.type, op), call.communicator->handle,
                                           requests.add()));
  co_await requests;
}

/// Sends send_counts[r] elements to rank r and receives receive_counts[r] from it, piece by piece; slices lie back to
/// back. The own slice is left out.
Task exchange(const Call& call, ConstBuffer input, std::vector<std::int64_t> send_offsets,
              std::vector<std::int64_t> send_counts, Buffer output, std::vector<std::int64_t> receive_offsets,
              std::vector<std::int64_t> receive_counts) {
  const Communicator& comm = *call.communicator;
  const Dtype type = input.type;
  const auto ranks = static_cast<std::size_t>(comm.size);
  const auto own = static_cast<std::size_t>(comm.rank);
  const std::int64_t piece =
      elements(std::clamp(round_bytes / comm.size, shortest_piece_bytes, longest_piece_bytes), type);
  const std::int64_t most = std::max(*std::max_element(send_counts.begin(), send_counts.end()),
                                     *std::max_element(receive_counts.begin(), receive_counts.end()));
  Pipeline pipeline(call);
  for (std::int64_t i = 0; i * piece < most; ++i) {
    if (pipeline.full()) {
      co_await pipeline.oldest();
      pipeline.pop();
    }
    Requests& requests = pipeline.push();
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t from = (own + ranks - step) % ranks;
      const std::size_t to = (own + step) % ranks;
      if (const std::int64_t n = piece_of(receive_counts[from], piece, i); n > 0) {
        requests.check(MPI_Irecv(at(output.data, receive_offsets[from] + i * piece, type), static_cast<int>(n),
                                 mpi_type(type), static_cast<int>(from), own_tag, comm.handle, requests.add()));
      }
      if (const std::int64_t n = piece_of(send_counts[to], piece, i); n > 0) {
        requests.check(MPI_Isend(at(input.data, send_offsets[to] + i * piece, type), static_cast<int>(n),
                                 mpi_type(type), static_cast<int>(to), own_tag, comm.handle, requests.add()));
      }
    }
  }
  for (; !pipeline.empty(); pipeline.pop()) co_await pipeline.oldest();
}

void copy(const void* from, void* to, std::size_t bytes) {
  if (from != to && bytes > 0) std::memmove(to, from, bytes);
}

/// Within a host each rank hands its slice to each other. Between hosts that would bring every slice to a host once for
/// each of its ranks, so MPI's algorithms are used there, round by round.
Task all_gather(const Call& call, ConstBuffer input, std::vector<std::int64_t> counts, Buffer output) {
  const Communicator& comm = *call.communicator;
  const auto own = static_cast<std::size_t>(comm.rank);
  const std::vector<std::int64_t> offsets = offsets_of(counts);
  char* slot = at(output.data, offsets[own], output.type);
  copy(input.data, slot, input.bytes());
  const bool several_rounds = output.bytes() > static_cast<std::size_t>(piece_bytes);
  if (several_rounds && (comm.one_host || output.numel > INT_MAX)) {
    const std::vector<std::int64_t> same_offset(counts.size(), 0);
    const std::vector<std::int64_t> same_count(counts.size(), counts[own]);
    Task pieces = exchange(call, {slot, input.numel, input.type}, same_offset, same_count, output, offsets, counts);
    co_await pieces;
    co_return;
  }
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  const std::int64_t piece = elements(std::max(piece_bytes / comm.size, shortest_piece_bytes), output.type);
  struct Round {
    explicit Round(const Call& c) : requests(c) {}
    Requests requests;
    std::vector<int> sizes;
    std::vector<int> places;
  };
  std::deque<Round> rounds;
  for (std::int64_t begin = 0; begin < most; begin += piece) {
    if (rounds.size() == pieces_under_way) {
      co_await rounds.front().requests;
      rounds.pop_front();
    }
    Round& round = rounds.emplace_back(call);
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const std::int64_t done = std::min(begin, counts[r]);
      round.sizes.push_back(static_cast<int>(std::min(piece, counts[r] - done)));
      round.places.push_back(static_cast<int>(offsets[r] + done));
    }
    round.requests.check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, output.data, round.sizes.data(),
                                         round.places.data(), mpi_type(output.type), comm.handle,
                                         round.requests.add()));
  }
  for (; !rounds.empty(); rounds.pop_front()) co_await rounds.front().requests;
}

/// Reduce-scatter into the own slice, then gather. For 16-bit types, which MPI can't add up; and within a host, where
/// it is faster.
Task all_reduce_by_slices(const Call& call, Buffer buffer, ReduceOp op) {
  const auto own = static_cast<std::size_t>(call.communicator->rank);
  const std::vector<std::int64_t> counts = even(buffer.numel, call.communicator->size);
  const Buffer slice{at(buffer.data, offsets_of(counts)[own], buffer.type), counts[own], buffer.type};
  Task reduce = exchange_and_reduce(call, buffer, counts, slice, op, 1.0F, false);
  co_await reduce;
  Task gather = all_gather(call, slice, counts, buffer);
  co_await gather;
}

Task broadcast(const Call& call, Buffer buffer, int root) {
  Pipeline pipeline(call);
  const std::int64_t piece = elements(longest_piece_bytes, buffer.type);
  for (std::int64_t begin = 0; begin < buffer.numel; begin += piece) {
    if (pipeline.full()) {
      co_await pipeline.oldest();
      pipeline.pop();
    }
    const int count = static_cast<int>(std::min(piece, buffer.numel - begin));
    Requests& requests = pipeline.push();
    requests.check(MPI_Ibcast(at(buffer.data, begin, buffer.type), count, mpi_type(buffer.type), root,
                              call.communicator->handle, requests.add()));
  }
  for (; !pipeline.empty(); pipeline.pop()) co_await pipeline.oldest();
}

Task all_to_all(const Call& call, ConstBuffer input, Buffer output) {
  const Communicator& comm = *call.communicator;
  const std::int64_t slice = input.numel / comm.size;
  if (slice * static_cast<std::int64_t>(size_of(input.type)) <= short_slice_bytes) {
    Requests requests(call);
    requests.check(MPI_Ialltoall(input.data, static_cast<int>(slice), mpi_type(input.type), output.data,
                                 static_cast<int>(slice), mpi_type(output.type), comm.handle, requests.add()));
    co_await requests;
    co_return;
  }
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.size), slice);
  const std::vector<std::int64_t> offsets = offsets_of(counts);
  copy(at(input.data, slice * comm.rank, input.type), at(output.data, slice * comm.rank, output.type),
       static_cast<std::size_t>(slice) * size_of(input.type));
  Task pieces = exchange(call, input, offsets, counts, output, offsets, counts);
  co_await pieces;
}

constexpr std::int64_t message_bytes = std::int64_t{1} << 30;

Task send(const Call& call, ConstBuffer buffer, int tag) {
  Requests requests(call);
  const std::int64_t piece = elements(message_bytes, buffer.type);
  std::int64_t begin = 0;
  do {  // an empty buffer is a message too
    const int count = static_cast<int>(std::min(piece, buffer.numel - begin));
    requests.check(MPI_Isend(at(buffer.data, begin, buffer.type), count, mpi_type(buffer.type), call.peer, tag + 1,
                             call.communicator->handle, requests.add()));
    begin += piece;
  } while (begin < buffer.numel);
  co_await requests;
}

Task receive(const Call& call, Buffer buffer, int tag) {
  Requests requests(call);
  const std::int64_t piece = elements(message_bytes, buffer.type);
  std::int64_t begin = 0;
  do {
    const int count = static_cast<int>(std::min(piece, buffer.numel - begin));
    requests.check(MPI_Irecv(at(buffer.data, begin, buffer.type), count, mpi_type(buffer.type), call.peer, tag + 1,
                             call.communicator->handle, requests.add()));
    requests.expect(count * static_cast<int>(size_of(buffer.type)));
    begin += piece;
  } while (begin < buffer.numel);
  co_await requests;
}

constexpr std::size_t signature_length = 96;

/// Compares the signatures of all ranks before the call itself: a mismatch would hang, or mix up data.
Task checked(const Call& call, std::function<Task(const Call&)> make) {
  const Communicator& comm = *call.communicator;
  const auto ranks = static_cast<std::size_t>(comm.size);
  std::vector<char> all(ranks * signature_length);
  std::string own = fmt::format("{} #{} {}", call.name, call.number, call.signature);
  own.resize(signature_length - 1);
  std::memcpy(all.data() + static_cast<std::size_t>(comm.rank) * signature_length, own.c_str(), signature_length);
  Requests requests(call);
  requests.check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all.data(), static_cast<int>(signature_length),
                                MPI_CHAR, comm.handle, requests.add()));
  co_await requests;
  const std::string first(all.data());
  for (std::size_t r = 1; r < ranks; ++r) {
    const std::string other(all.data() + r * signature_length);
    if (other != first) {
      call.fail(
          fmt::format("the ranks don't call the same collective: rank 0 calls {}, rank {} calls {}", first, r, other));
    }
  }
  Task body = make(call);
  co_await body;
}

class MpiGroup : public Group, public std::enable_shared_from_this<MpiGroup> {
 public:
  MpiGroup(std::shared_ptr<MpiSession> session, const Communicator& communicator)
      : session_(std::move(session)), comm_(communicator), channel_(session_->thread().make_channel()) {}

  int rank() const override { return comm_.rank; }
  int size() const override { return comm_.size; }
  const std::string& name() const override { return comm_.name; }
  MPI_Comm handle() const { return comm_.handle; }

  Work all_reduce(Buffer buffer, ReduceOp op) override {
    return submit("all_reduce", describe(buffer, name_of(op)), buffer.bytes(), [=](const Call& call) {
      const std::size_t slice = buffer.bytes() / static_cast<std::size_t>(call.communicator->size);
      const bool by_slices = is_float16(buffer.type) ||
                             (call.communicator->one_host && slice > static_cast<std::size_t>(short_slice_bytes));
      return by_slices ? all_reduce_by_slices(call, buffer, op) : all_reduce_by_mpi(call, buffer, op);
    });
  }

  Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override {
    arguments::reduce_scatter(*this, input, output);
    return submit("reduce_scatter", describe(input, name_of(op)), input.bytes(),
                  [=, size = comm_.size](const Call& call) {
                    const bool small = output.bytes() <= static_cast<std::size_t>(short_slice_bytes);
                    if (small && !is_float16(input.type)) return reduce_scatter_by_mpi(call, input, output, op);
                    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), output.numel);
                    return exchange_and_reduce(call, input, counts, output, op, 1.0F, false);
                  });
  }

  Work ordered_reduce_scatter(ConstBuffer input, const std::vector<std::int64_t>& counts, Buffer output, float scale,
                              bool accumulate) override {
    arguments::ordered_reduce_scatter(*this, input, counts, output);
    return submit("ordered_reduce_scatter", describe(input, fmt::format("x {}", scale)), input.bytes(),
                  [=](const Call& call) {
                    return exchange_and_reduce(call, input, counts, output, ReduceOp::sum, scale, accumulate);
                  });
  }

  Work all_gather(ConstBuffer input, const std::vector<std::int64_t>& counts, Buffer output) override {
    arguments::all_gather(*this, input, counts, output);
    return submit("all_gather", describe(output, ""), output.bytes(),
                  [=](const Call& call) { return comm::all_gather(call, input, counts, output); });
  }

  Work broadcast(Buffer buffer, int root) override {
    arguments::rank(*this, "broadcast", root);
    return submit("broadcast", describe(buffer, fmt::format("from {}", root)), buffer.bytes(),
                  [=](const Call& call) { return comm::broadcast(call, buffer, root); });
  }

  Work all_to_all(ConstBuffer input, Buffer output) override {
    arguments::all_to_all(*this, input, output);
    return submit("all_to_all", describe(input, ""), input.bytes(),
                  [=](const Call& call) { return comm::all_to_all(call, input, output); });
  }

  Work send(ConstBuffer buffer, int to, int tag) override {
    arguments::rank(*this, "send", to);
    arguments::tag(*this, "send", tag);
    return submit_message(fmt::format("send to {} (tag {})", to, tag), to, buffer.bytes(),
                          [=](const Call& call) { return comm::send(call, buffer, tag); });
  }

  Work receive(Buffer buffer, int from, int tag) override {
    arguments::rank(*this, "receive", from);
    arguments::tag(*this, "receive", tag);
    return submit_message(fmt::format("receive from {} (tag {})", from, tag), from, buffer.bytes(),
                          [=](const Call& call) { return comm::receive(call, buffer, tag); });
  }

  Work barrier() override {
    return submit("barrier", "", 0, [](const Call& call) { return comm::barrier(call); });
  }

  std::shared_ptr<Group> split(int color, int key, const std::string& name) override {
    const Communicator* part = nullptr;
    submit("split", "", 0, [&](const Call& call) { return divide(call, color, key, name, part); }).wait();
    if (part == nullptr) return nullptr;
    return part->size == 1 ? make_self_group(name) : make_mpi_group(session_, *part);
  }

 private:
  /// MPI's split blocks, so all ranks meet first: then each is in it at once, and the thread stands still for a moment
  /// only.
  Task divide(const Call& call, int color, int key, std::string name, const Communicator*& part) {
    Task meet = comm::barrier(call);
    co_await meet;
    MPI_Comm handle = MPI_COMM_NULL;
    call.check(MPI_Comm_split(comm_.handle, color < 0 ? MPI_UNDEFINED : color, key, &handle));
    if (handle != MPI_COMM_NULL) part = &session_->adopt(handle, name);
  }

  static std::string describe(const ConstBuffer& buffer, std::string_view more) {
    return fmt::format("{}[{}] {}", base::name_of(buffer.type), buffer.numel, more);
  }

  std::unique_ptr<Call> make_call(std::string name, std::string signature, std::size_t bytes) const {
    auto call = std::make_unique<Call>();
    call->communicator = &comm_;
    call->name = std::move(name);
    call->signature = std::move(signature);
    call->bytes = static_cast<std::int64_t>(bytes);
    return call;
  }

  Work submit(std::string name, std::string signature, std::size_t bytes, std::function<Task(const Call&)> make) {
    auto call = make_call(std::move(name), std::move(signature), bytes);
    if (session_->thread().check()) {
      make = [body = std::move(make)](const Call& c) { return checked(c, body); };
    }
    return session_->thread().submit(channel_, std::move(call), std::move(make));
  }

  Work submit_message(std::string name, int peer, std::size_t bytes, std::function<Task(const Call&)> make) {
    auto call = make_call(std::move(name), "", bytes);
    call->peer = peer;
    return session_->thread().submit(channel_, std::move(call), std::move(make), false);
  }

  std::shared_ptr<MpiSession> session_;
  const Communicator& comm_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace

MpiSession::MpiSession(std::chrono::nanoseconds timeout, bool check, std::string host, std::vector<int> nodes)
    : host_(std::move(host)),
      nodes_(std::move(nodes)),
      thread_(std::make_unique<CommunicationThread>(timeout, check)) {}

MpiSession::~MpiSession() = default;

const Communicator& MpiSession::adopt(MPI_Comm handle, const std::string& name) {
  MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
  MPI_Comm_set_name(handle, name.c_str());
  Communicator communicator;
  communicator.handle = handle;
  communicator.name = name;
  communicator.host = host_;
  MPI_Comm_rank(handle, &communicator.rank);
  MPI_Comm_size(handle, &communicator.size);
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(handle, &members);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> ranks(static_cast<std::size_t>(communicator.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  communicator.world_ranks.resize(ranks.size());
  MPI_Group_translate_ranks(members, communicator.size, ranks.data(), world, communicator.world_ranks.data());
  const auto node = [this](int world_rank) { return nodes_[static_cast<std::size_t>(world_rank)]; };
  const std::vector<int>& of = communicator.world_ranks;
  communicator.one_host = std::all_of(of.begin(), of.end(), [&](int rank) { return node(rank) == node(of[0]); });
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  const std::lock_guard lock(mutex_);
  return communicators_.emplace_back(std::move(communicator));
}

bool MpiSession::close() {
  const bool sound = thread_->end();
  if (sound) {
    for (auto it = communicators_.rbegin(); it != communicators_.rend(); ++it) MPI_Comm_free(&it->handle);
  }
  return sound;
}

MPI_Comm mpi_handle(const Group& group) {
  if (group.size() == 1) return MPI_COMM_SELF;
  const auto* mpi = dynamic_cast<const MpiGroup*>(&group);
  if (mpi == nullptr) throw base::CommError(fmt::format("group '{}' has no MPI communicator", group.name()));
  return mpi->handle();
}

std::shared_ptr<Group> make_mpi_group(std::shared_ptr<MpiSession> session, const Communicator& communicator) {
  return std::make_shared<MpiGroup>(std::move(session), communicator);
}

}  // namespace deepspeed::comm
