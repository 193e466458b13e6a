// SPDX-License-Identifier: Apache-2.0
#include "comm/self_group.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "comm/arguments.h"
#include "comm/group_error.h"
#include "comm/reduce.h"
#include "comm/work_state.h"

namespace deepspeed::comm {
namespace {

void copy(const ConstBuffer& from, const Buffer& to) {
  if (from.data != to.data && from.numel > 0) std::memmove(to.data, from.data, from.bytes());
}

/// A receive whose send hasn't come yet.
struct Promise : Work::State {
  explicit Promise(Buffer where) : buffer(where) {}
  Buffer buffer;
  std::string error;
  std::atomic<bool> ready{false};

  void fill(const void* data, std::size_t bytes, base::Dtype type) {
    if (bytes != buffer.bytes() || type != buffer.type) {
      error = fmt::format("{} bytes of {} were sent, {} of {} are awaited", bytes, name_of(type), buffer.bytes(),
                          name_of(buffer.type));
    } else if (bytes > 0) {
      std::memcpy(buffer.data, data, bytes);
    }
    ready = true;
    ready.notify_all();
  }
  void wait() override {
    ready.wait(false);
    if (!error.empty()) throw GroupError("receive on a group of one rank", "rank 0 of 1", error);
  }
  bool done() const override { return ready; }
};

class SelfGroup : public Group {
 public:
  explicit SelfGroup(std::string name) : name_(std::move(name)) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }

  Work all_reduce(Buffer /*buffer*/, ReduceOp /*op*/) override { return {}; }

  Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp /*op*/) override {
    arguments::reduce_scatter(*this, input, output);
    copy(input, output);
    return {};
  }

  Work ordered_reduce_scatter(ConstBuffer input, const std::vector<std::int64_t>& counts, Buffer output, float scale,
                              bool accumulate) override {
    arguments::ordered_reduce_scatter(*this, input, counts, output);
    const bool same = input.data == output.data && input.type == output.type && scale == 1.0F && !accumulate;
    if (!same) reduce_slices({input.data}, input.type, output, ReduceOp::sum, scale, accumulate);
    return {};
  }

  Work all_gather(ConstBuffer input, const std::vector<std::int64_t>& counts, Buffer output) override {
    arguments::all_gather(*this, input, counts, output);
    copy(input, output);
    return {};
  }

  Work broadcast(Buffer /*buffer*/, int root) override {
    arguments::rank(*this, "broadcast", root);
    return {};
  }

  Work all_to_all(ConstBuffer input, Buffer output) override {
    arguments::all_to_all(*this, input, output);
    copy(input, output);
    return {};
  }

  Work send(ConstBuffer buffer, int to, int tag) override {
    arguments::rank(*this, "send", to);
    arguments::tag(*this, "send", tag);
    const std::lock_guard lock(mutex_);
    Mailbox& box = mailboxes_[tag];
    if (!box.awaited.empty()) {
      box.awaited.front()->fill(buffer.data, buffer.bytes(), buffer.type);
      box.awaited.pop_front();
    } else {
      const auto* bytes = static_cast<const std::byte*>(buffer.data);
      box.sent.push_back({{bytes, bytes + buffer.bytes()}, buffer.type});
    }
    return {};
  }

  Work receive(Buffer buffer, int from, int tag) override {
    arguments::rank(*this, "receive", from);
    arguments::tag(*this, "receive", tag);
    auto promise = std::make_shared<Promise>(buffer);
    const std::lock_guard lock(mutex_);
    Mailbox& box = mailboxes_[tag];
    if (box.sent.empty()) {
      box.awaited.push_back(promise);
    } else {
      promise->fill(box.sent.front().bytes.data(), box.sent.front().bytes.size(), box.sent.front().type);
      box.sent.pop_front();
    }
    return Work(promise);
  }

  Work barrier() override { return {}; }

  std::shared_ptr<Group> split(int color, int /*key*/, const std::string& name) override {
    return color < 0 ? nullptr : make_self_group(name);
  }

 private:
  struct Message {
    std::vector<std::byte> bytes;
    base::Dtype type;
  };
  struct Mailbox {
    std::deque<Message> sent;
    std::deque<std::shared_ptr<Promise>> awaited;
  };
  std::string name_;
  std::mutex mutex_;
  std::map<int, Mailbox> mailboxes_;  // by tag
};

}  // namespace

std::shared_ptr<Group> make_self_group(const std::string& name) {
  return std::make_shared<SelfGroup>(name);
}

std::shared_ptr<Group> self_group() {
  return make_self_group("self");
}

}  // namespace deepspeed::comm
