// SPDX-License-Identifier: Apache-2.0
// Every collective against a closed form, at every rank count that the test program is started with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/trace.h"
#include "comm/floats.h"
#include "comm/mpi_handle.h"
#include "comm/process.h"

namespace deepspeed::comm {
namespace {

using base::Dtype;
using testing::HasSubstr;

constexpr std::array<Dtype, 10> all_types{Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i64,
                                          Dtype::i32, Dtype::i16, Dtype::i8,  Dtype::u8,   Dtype::boolean};

/// The 16-bit codes of 0, 1, ... 15: all that a buffer is filled with.
template <std::uint16_t (*encode)(double)>
std::uint16_t code_of(double value) {
  static const std::vector<std::uint16_t> codes = [] {
    std::vector<std::uint16_t> all;
    for (int i = 0; i < 16; ++i) all.push_back(encode(i));
    return all;
  }();
  return value >= 0 && value < 16 ? codes[static_cast<std::size_t>(value)] : encode(value);
}

/// Elements of any type, seen as numbers.
class Array {
 public:
  Array(Dtype type, std::int64_t numel)
      : type_(type), numel_(numel), bytes_(static_cast<std::size_t>(numel) * size_of(type)) {}
  Buffer buffer() { return {bytes_.data(), numel_, type_}; }
  Buffer part(std::int64_t begin, std::int64_t numel) {
    return {bytes_.data() + static_cast<std::size_t>(begin) * size_of(type_), numel, type_};
  }
  std::int64_t numel() const { return numel_; }

  void set(std::int64_t i, double value) {
    switch (type_) {
      case Dtype::f64:
        return put(i, value);
      case Dtype::f32:
        return put(i, static_cast<float>(value));
      case Dtype::f16:
        return put(i, code_of<test::encode_half>(value));
      case Dtype::bf16:
        return put(i, code_of<test::encode_bfloat>(value));
      case Dtype::i64:
        return put(i, static_cast<std::int64_t>(value));
      case Dtype::i32:
        return put(i, static_cast<std::int32_t>(value));
      case Dtype::i16:
        return put(i, static_cast<std::int16_t>(value));
      case Dtype::i8:
        return put(i, static_cast<std::int8_t>(value));
      case Dtype::u8:
      case Dtype::boolean:
        return put(i, static_cast<std::uint8_t>(value));
    }
  }
  double get(std::int64_t i) const {
    switch (type_) {
      case Dtype::f64:
        return take<double>(i);
      case Dtype::f32:
        return take<float>(i);
      case Dtype::f16:
        return test::decode_half(take<std::uint16_t>(i));
      case Dtype::bf16:
        return test::decode_bfloat(take<std::uint16_t>(i));
      case Dtype::i64:
        return static_cast<double>(take<std::int64_t>(i));
      case Dtype::i32:
        return take<std::int32_t>(i);
      case Dtype::i16:
        return take<std::int16_t>(i);
      case Dtype::i8:
        return take<std::int8_t>(i);
      case Dtype::u8:
      case Dtype::boolean:
        return take<std::uint8_t>(i);
    }
    return 0;
  }

 private:
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T take(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  Dtype type_;
  std::int64_t numel_;
  std::vector<char> bytes_;
};

/// Element i of rank r: small, so that sums over a few ranks are exact in every type.
double value(Dtype type, int rank, std::int64_t i) {
  return type == Dtype::boolean ? static_cast<double>((i + rank) % 3 == 0) : static_cast<double>(i % 5 + rank);
}

double reduced(Dtype type, int ranks, std::int64_t i, ReduceOp op) {
  double result = value(type, 0, i);
  for (int r = 1; r < ranks; ++r) {
    const double next = value(type, r, i);
    const bool sum = op == ReduceOp::sum && type != Dtype::boolean;
    result = sum ? result + next : op == ReduceOp::min ? std::min(result, next) : std::max(result, next);
  }
  return result;
}

Array filled(Dtype type, int rank, std::int64_t numel) {
  Array array(type, numel);
  for (std::int64_t i = 0; i < numel; ++i) array.set(i, value(type, rank, i));
  return array;
}

/// Slices of different sizes, some empty.
std::vector<std::int64_t> uneven(std::int64_t numel, int ranks) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
  std::int64_t left = numel;
  for (std::size_t r = 0; r + 1 < counts.size(); ++r) {
    counts[r] = r % 3 == 1 ? 0 : left / 3;
    left -= counts[r];
  }
  counts.back() = left;
  return counts;
}

enum class Kind {
  all_reduce,
  reduce_scatter,
  ordered,
  all_gather,
  gather_in_place,
  broadcast,
  all_to_all,
  messages,
  barrier
};
constexpr int kinds = 9;

/// Starts a collective; the function that it returns waits and compares.
std::function<void()> launch(Group& group, Kind kind, Dtype type, std::int64_t numel, int variant = 0) {
  const int ranks = group.size();
  const int rank = group.rank();
  const ReduceOp op = std::array{ReduceOp::sum, ReduceOp::max, ReduceOp::min}[static_cast<std::size_t>(variant % 3)];
  const auto finish = [](Work work, std::shared_ptr<Array> array, std::function<double(std::int64_t)> truth,
                         std::shared_ptr<Array> input = nullptr) {
    return [=]() mutable {
      work.wait();
      ASSERT_TRUE(work.done());
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < array->numel(); ++i) {
        if (array->get(i) != truth(i) && ++wrong <= 3) {
          ADD_FAILURE() << "element " << i << " is " << array->get(i) << ", not " << truth(i);
        }
      }
      ASSERT_EQ(wrong, 0);
      input.reset();
    };
  };
  switch (kind) {
    case Kind::all_reduce: {
      auto x = std::make_shared<Array>(filled(type, rank, numel));
      return finish(group.all_reduce(x->buffer(), op), x, [=](std::int64_t i) { return reduced(type, ranks, i, op); });
    }
    case Kind::reduce_scatter: {
      auto x = std::make_shared<Array>(filled(type, rank, numel * ranks));
      auto y = std::make_shared<Array>(type, numel);
      return finish(
          group.reduce_scatter(x->buffer(), y->buffer(), op), y,
          [=](std::int64_t i) { return reduced(type, ranks, rank * numel + i, op); }, x);
    }
    case Kind::ordered: {
      const Dtype floating = type == Dtype::f32 || type == Dtype::f16 || type == Dtype::bf16 ? type : Dtype::f64;
      const std::vector<std::int64_t> counts = uneven(numel, ranks);
      const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
      auto x = std::make_shared<Array>(filled(floating, rank, numel));
      auto y = std::make_shared<Array>(filled(Dtype::f32, 3, counts[static_cast<std::size_t>(rank)]));
      const bool accumulate = variant % 2 == 1;
      return finish(
          group.ordered_reduce_scatter(x->buffer(), counts, y->buffer(), 0.5F, accumulate), y,
          [=](std::int64_t i) {
            return 0.5 * reduced(floating, ranks, begin + i, ReduceOp::sum) +
                   (accumulate ? value(Dtype::f32, 3, i) : 0);
          },
          x);
    }
    case Kind::all_gather:
    case Kind::gather_in_place: {
      const std::vector<std::int64_t> counts =
          variant % 2 == 0 ? uneven(numel, ranks) : std::vector<std::int64_t>(static_cast<std::size_t>(ranks), numel);
      const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
      const std::int64_t own = counts[static_cast<std::size_t>(rank)];
      auto y = std::make_shared<Array>(type, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
      auto x = std::make_shared<Array>(filled(type, rank, own));
      ConstBuffer input = x->buffer();
      if (kind == Kind::gather_in_place) {
        for (std::int64_t i = 0; i < own; ++i) y->set(begin + i, value(type, rank, i));
        input = y->part(begin, own);
      }
      return finish(
          group.all_gather(input, counts, y->buffer()), y,
          [=](std::int64_t i) {
            int r = 0;
            while (i >= counts[static_cast<std::size_t>(r)]) i -= counts[static_cast<std::size_t>(r++)];
            return value(type, r, i);
          },
          x);
    }
    case Kind::broadcast: {
      const int root = variant % ranks;
      auto x = std::make_shared<Array>(filled(type, rank, numel));
      return finish(group.broadcast(x->buffer(), root), x, [=](std::int64_t i) { return value(type, root, i); });
    }
    case Kind::all_to_all: {
      auto x = std::make_shared<Array>(filled(type, rank, numel * ranks));
      auto y = std::make_shared<Array>(type, numel * ranks);
      return finish(
          group.all_to_all(x->buffer(), y->buffer()), y,
          [=](std::int64_t i) { return value(type, static_cast<int>(i / numel), rank * numel + i % numel); }, x);
    }
    case Kind::messages: {
      // Around the ring; the receive is started last, so no rank may wait for its send first.
      auto x = std::make_shared<Array>(filled(type, rank, numel));
      auto y = std::make_shared<Array>(type, numel);
      Work sent = group.send(x->buffer(), (rank + 1) % ranks, variant);
      const int from = (rank + ranks - 1) % ranks;
      auto received =
          finish(group.receive(y->buffer(), from, variant), y, [=](std::int64_t i) { return value(type, from, i); });
      return [=]() mutable {
        received();
        sent.wait();
        x.reset();
      };
    }
    case Kind::barrier:
      return [work = group.barrier()]() mutable { work.wait(); };
  }
  return [] {};
}

class CollectivesRanks : public testing::Test {
 public:
  static void SetUpTestSuite() {
    setenv("DS_COMM_CHECK", "1", 1);
    process = new Process(nullptr, nullptr);
    world = process->world();
  }
  static void TearDownTestSuite() {
    world.reset();
    delete process;
  }
  static Process* process;
  static std::shared_ptr<Group> world;
};
Process* CollectivesRanks::process = nullptr;
std::shared_ptr<Group> CollectivesRanks::world;

void check_all(Group& group, const std::vector<Dtype>& types = {all_types.begin(), all_types.end()},
               const std::vector<std::int64_t>& sizes = {0, 1, 3, 20011}) {
  for (const Dtype type : types) {
    for (const std::int64_t numel : sizes) {
      for (int kind = 0; kind < kinds; ++kind) {
        for (int variant = 0; variant < 3; ++variant) {
          SCOPED_TRACE(testing::Message()
                       << "kind " << kind << ", " << name_of(type) << "[" << numel << "], variant " << variant);
          launch(group, static_cast<Kind>(kind), type, numel, variant)();
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// The same with each rank taken to be on a host of its own.
class BetweenHostsRanks : public CollectivesRanks {
 public:
  static void SetUpTestSuite() {
    setenv("DS_COMM_SEPARATE_HOSTS", "1", 1);
    CollectivesRanks::SetUpTestSuite();
  }
  static void TearDownTestSuite() {
    CollectivesRanks::TearDownTestSuite();
    unsetenv("DS_COMM_SEPARATE_HOSTS");
  }
};

TEST_F(BetweenHostsRanks, EveryCollective) {
  check_all(*world, {Dtype::f32, Dtype::bf16}, {3, 20011});
}

TEST_F(BetweenHostsRanks, LongBuffers) {
  launch(*world, Kind::all_reduce, Dtype::f32, 3000000)();
  launch(*world, Kind::all_gather, Dtype::f32, 3000000, 0)();
  launch(*world, Kind::all_gather, Dtype::bf16, 2500000, 1)();
}

TEST(SelfGroup, EveryCollective) {
  check_all(*self_group());
}

TEST(SelfGroup, ReceiveBeforeSend) {
  const auto group = self_group();
  int x = 0;
  Work received = group->receive({&x, 1, Dtype::i32}, 0, 5);
  EXPECT_FALSE(received.done());
  const int y = 42;
  group->send({&y, 1, Dtype::i32}, 0, 5).wait();
  received.wait();
  EXPECT_EQ(x, 42);
  std::int64_t wrong = 0;
  group->send({&y, 1, Dtype::i32}, 0, 6).wait();
  EXPECT_THROW(group->receive({&wrong, 1, Dtype::i64}, 0, 6).wait(), base::CommError);
  EXPECT_EQ(group->split(-1, 0, "none"), nullptr);
  EXPECT_EQ(group->split(0, 0, "part")->name(), "part");
}

TEST_F(CollectivesRanks, EveryCollectiveTypeAndSize) {
  check_all(*world);
}

TEST_F(CollectivesRanks, LongBuffers) {
  for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
    for (int kind = 0; kind < kinds; ++kind) {
      SCOPED_TRACE(testing::Message() << "kind " << kind << ", " << name_of(type));
      launch(*world, static_cast<Kind>(kind), type, 1000001, 1)();
    }
  }
  // More than one piece of the pieces that long buffers are cut into.
  launch(*world, Kind::ordered, Dtype::f32, 3000000)();
}

TEST_F(CollectivesRanks, RandomSequencesOnTwoGroups) {
  const auto part = world->split(world->rank() % 2, -world->rank(), "part");
  EXPECT_EQ(part->rank(), (world->size() - 1 - world->rank()) / 2);
  std::mt19937 random(11);  // the same on every rank
  std::vector<std::function<void()>> under_way;
  for (int step = 0; step < 300; ++step) {
    Group& group = random() % 2 == 0 ? *world : *part;
    const auto kind = static_cast<Kind>(random() % kinds);
    const Dtype type = all_types[random() % all_types.size()];
    const std::int64_t numel = static_cast<std::int64_t>(random() % (step % 50 == 0 ? 300000 : 2000));
    under_way.push_back(launch(group, kind, type, numel, static_cast<int>(random() % 12)));
    if (random() % 4 == 0) {
      std::shuffle(under_way.begin(), under_way.end(), random);
      while (under_way.size() > 6) {
        under_way.back()();
        under_way.pop_back();
        ASSERT_FALSE(HasFailure()) << "step " << step;
      }
    }
    // Arithmetic of another length on each rank.
    const auto work = (random() % 2000) * static_cast<unsigned>(world->rank() + 1);
    volatile double x = 1;
    for (unsigned i = 0; i < work; ++i) x = x * 1.0000001;
  }
  for (auto& wait : under_way) wait();
}

// The whole point of the ordered reduction: no cut into buckets or owners changes a bit.
TEST_F(CollectivesRanks, OrderedSumsDontDependOnTheCut) {
  constexpr std::int64_t numel = 70001;
  const int ranks = world->size();
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < ranks; ++r) {
    std::mt19937 random(static_cast<unsigned>(r));
    std::vector<float> x(numel);
    for (float& v : x)
      v = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random), static_cast<int>(random() % 20));
    inputs.push_back(std::move(x));
  }
  std::vector<float> truth(numel);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    float sum = inputs[0][i];
    for (int r = 1; r < ranks; ++r) sum += inputs[static_cast<std::size_t>(r)][i];
    truth[i] = sum * 0.3F;
  }
  std::mt19937 random(5);
  const auto own = static_cast<std::size_t>(world->rank());
  for (int round = 0; round < 20; ++round) {
    for (std::int64_t begin = 0; begin < numel;) {
      const std::int64_t length =
          std::min<std::int64_t>(numel - begin, 1 + static_cast<std::int64_t>(random() % 40000));
      // Random owners' shares of the bucket.
      std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
      std::int64_t left = length;
      for (std::size_t r = 0; r + 1 < counts.size(); ++r) {
        counts[r] = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % static_cast<unsigned>(left + 1));
        left -= counts[r];
      }
      counts.back() = left;
      std::vector<float> sum(static_cast<std::size_t>(counts[own]));
      world
          ->ordered_reduce_scatter({inputs[own].data() + begin, length, Dtype::f32}, counts,
                                   {sum.data(), counts[own], Dtype::f32}, 0.3F)
          .wait();
      const std::int64_t at = begin + std::accumulate(counts.begin(), counts.begin() + world->rank(), std::int64_t{0});
      if (!sum.empty()) {
        ASSERT_EQ(std::memcmp(sum.data(), truth.data() + at, sum.size() * sizeof(float)), 0) << "round " << round;
      }
      begin += length;
    }
  }
}

TEST_F(CollectivesRanks, SixteenBitSumsAreFormedInFp32) {
  // In 16 bits each 1 would be lost.
  for (const Dtype type : {Dtype::bf16, Dtype::f16}) {
    const double large = type == Dtype::bf16 ? 256 : 2048;
    Array x(type, 5);
    for (std::int64_t i = 0; i < 5; ++i) x.set(i, world->rank() == 0 ? large : 1);
    world->all_reduce(x.buffer()).wait();
    const float sum = static_cast<float>(large) + static_cast<float>(world->size() - 1);
    const double truth =
        type == Dtype::bf16 ? test::decode_bfloat(test::encode_bfloat(sum)) : test::decode_half(test::encode_half(sum));
    for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(x.get(i), truth);
  }
}

TEST_F(CollectivesRanks, GroupsProgressIndependently) {
  // Rank 0 enters the first group's collective late; the second group's must not wait for that.
  if (world->size() < 3) GTEST_SKIP();
  const auto others = world->split(world->rank() == 0 ? 0 : 1, world->rank(), "others");
  Work first;
  if (world->rank() != 0) {
    first = world->barrier();
    others->barrier().wait();
    float x = 1;
    others->all_reduce({&x, 1, Dtype::f32}).wait();
    EXPECT_EQ(x, static_cast<float>(world->size() - 1));
    world->send({&x, 1, Dtype::f32}, 0, 1).wait();
  } else {
    // Would hang here if the others waited for the barrier.
    for (int r = 1; r < world->size(); ++r) {
      float x = 0;
      world->receive({&x, 1, Dtype::f32}, r, 1).wait();
    }
    first = world->barrier();
  }
  first.wait();
}

TEST_F(CollectivesRanks, Helpers) {
  const int rank = world->rank();
  const int size = world->size();
  EXPECT_EQ(world->broadcast_text(rank == size - 1 ? "hello" : "", size - 1), "hello");
  EXPECT_EQ(world->broadcast_text("", 0), "");
  const std::vector<std::byte> bytes =
      world->broadcast_bytes(std::vector<std::byte>(rank == 0 ? 3 : 0, std::byte{7}), 0);
  EXPECT_EQ(bytes, std::vector<std::byte>(3, std::byte{7}));
  const std::vector<std::string> texts = world->all_gather_text(std::string(static_cast<std::size_t>(rank) * 3, 'x'));
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(size));
  for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], std::string(r * 3, 'x'));
  EXPECT_EQ(world->all_reduce_value(std::int64_t{1} << 60 | rank, ReduceOp::max), std::int64_t{1} << 60 | (size - 1));
  EXPECT_EQ(world->all_reduce_value(0.5), 0.5 * size);
  EXPECT_TRUE(world->any(rank == size - 1));
  EXPECT_FALSE(world->any(false));
}

TEST_F(CollectivesRanks, Split) {
  const int rank = world->rank();
  const auto reversed = world->split(0, -rank, "reversed");
  EXPECT_EQ(reversed->rank(), world->size() - 1 - rank);
  EXPECT_EQ(reversed->name(), "reversed");
  const auto alone = world->split(rank, 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  const auto some = world->split(rank == 0 ? -1 : 0, 0, "some");
  if (rank == 0) {
    EXPECT_EQ(some, nullptr);
  } else {
    EXPECT_EQ(some->size(), world->size() - 1);
    EXPECT_EQ(some->all_reduce_value(std::int64_t{1}), world->size() - 1);
  }
}

TEST_F(CollectivesRanks, ErrorsNameCallGroupAndRank) {
  float x[8] = {};
  const auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const base::CommError& error) {
      return error.what();
    }
    return "";
  };
  const int size = world->size();
  const std::string rank = "rank " + std::to_string(world->rank()) + " of " + std::to_string(size);
  EXPECT_THAT(message([&] {
                world->broadcast({x, 1, Dtype::f32}, size).wait();
              }),
              testing::AllOf(HasSubstr("broadcast on group 'world'"), HasSubstr(rank)));
  EXPECT_THAT(message([&] {
                world->reduce_scatter({x, size + 1, Dtype::f32}, {x, 1, Dtype::f32}).wait();
              }),
              HasSubstr("input has " + std::to_string(size + 1) + " elements where " + std::to_string(size)));
  EXPECT_THAT(message([&] {
                world->all_gather({x, 1, Dtype::f32}, {1}, {x, 2, Dtype::f32}).wait();
              }),
              HasSubstr("all_gather"));
  EXPECT_THAT(message([&] { world->send({x, 1, Dtype::f32}, 0, -1).wait(); }), HasSubstr("tag -1"));
  if (size > 1) {
    // A message of another length than awaited: told by wait, on the rank that receives.
    Work sent = world->send({x, 2, Dtype::f32}, (world->rank() + 1) % size, 9);
    float y[4] = {};
    EXPECT_THAT(message([&] {
                  world->receive({y, 4, Dtype::f32}, (world->rank() + size - 1) % size, 9).wait();
                }),
                testing::AllOf(HasSubstr("receive from"), HasSubstr("8 bytes came where 16"), HasSubstr(rank)));
    sent.wait();
    // Different collectives: found by the check that this suite runs with, on all ranks.
    const std::string mismatch = message([&] {
      if (world->rank() == 0) {
        world->barrier().wait();
      } else {
        world->all_reduce({x, 8, Dtype::f32}).wait();
      }
    });
    EXPECT_THAT(mismatch, testing::AllOf(HasSubstr("the ranks don't call the same collective"), HasSubstr("barrier"),
                                         HasSubstr("all_reduce"), HasSubstr("fp32[8] sum")));
  }
  // The group goes on.
  EXPECT_EQ(world->all_reduce_value(std::int64_t{1}), size);
}

TEST_F(CollectivesRanks, WorkIsSharedAndThreadsMayUseGroupsOfTheirOwn) {
  const auto a = world->split(0, world->rank(), "a");
  const auto b = world->split(0, world->rank(), "b");
  const auto many = [](Group& group, int step) {
    for (int i = 0; i < 200; ++i) {
      std::int64_t x = step;
      Work work = group.all_reduce({&x, 1, Dtype::i64});
      Work copy = work;
      copy.wait();
      work.wait();
      ASSERT_EQ(x, step * group.size());
    }
  };
  std::thread other([&] { many(*a, 2); });
  many(*b, 3);
  other.join();
}

TEST_F(CollectivesRanks, JobsRunOnTheCommunicationThread) {
  std::thread::id id;
  process->run([&] { id = std::this_thread::get_id(); }).wait();
  EXPECT_EQ(id == std::this_thread::get_id(), world->size() == 1);
  Work work = process->run([] { throw base::IoError("no"); });
  EXPECT_THROW(work.wait(), base::IoError);
}

TEST_F(CollectivesRanks, OtherLibrariesGetACommunicator) {
  int size = 0;
  int sum = 0;
  process
      ->run([&] {
        const MPI_Comm handle = mpi_handle(*world);
        MPI_Comm_size(handle, &size);
        const int one = 1;
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, handle);
      })
      .wait();
  EXPECT_EQ(size, world->size());
  EXPECT_EQ(sum, world->size());
}

TEST_F(CollectivesRanks, TheTraceShowsWhatIsUnderWay) {
  Array values(Dtype::f32, 1000);
  base::trace::start({});
  {
    const base::trace::Subject subject("layer.1");
    Work work = world->all_reduce(values.buffer());
    const base::trace::Range waits("wait");
    work.wait();
  }
  world->barrier().wait();
  base::trace::stop();
  world->all_reduce(values.buffer()).wait();
  std::map<std::string, std::vector<nlohmann::json>> events;
  const nlohmann::json trace = nlohmann::json::parse(base::trace::json());
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "M") events[event["name"]].push_back(event);
  }
  ASSERT_EQ(events["wait"].size(), 1U);
  if (world->size() == 1) return;  // nothing is ever under way
  ASSERT_EQ(events["all_reduce"].size(), 2U);
  const nlohmann::json begin = events["all_reduce"][0];
  EXPECT_EQ(begin["ph"], "b");
  EXPECT_EQ(begin["args"]["for"], "layer.1");
  EXPECT_EQ(begin["args"]["group"], world->name());
  EXPECT_EQ(begin["args"]["bytes"], 4000);
  EXPECT_GE(begin["args"]["waited_us"].get<double>(), 0);
  EXPECT_LE(begin["ts"], events["wait"][0]["ts"]);
  EXPECT_GE(events["all_reduce"][1]["ts"], events["wait"][0]["ts"]);
  EXPECT_EQ(events["barrier"].size(), 2U);
}

TEST_F(CollectivesRanks, PlaceOnTheHost) {
  EXPECT_EQ(process->size(), world->size());
  EXPECT_EQ(process->local_size(), world->size());  // the tests run on one host
  EXPECT_EQ(process->local_rank(), world->rank());
  EXPECT_FALSE(process->host().empty());
  EXPECT_GE(process->threads_per_rank(), 1);
}

}  // namespace
}  // namespace deepspeed::comm
