// SPDX-License-Identifier: Apache-2.0
#include "zero/gatherer.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"

namespace deepspeed::zero {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a rank waits for another collective before it supposes that the others want a row first.
constexpr auto patience = std::chrono::milliseconds(2);

}  // namespace

Gatherer::Gatherer(comm::Group& data, std::vector<Row*> rows, const Settings& settings)
    : data_(&data), rows_(std::move(rows)), settings_(settings), fresh_(rows_.size(), 0) {
  // Gathers and reductions come in an order of their own on each rank, so they need a queue each.
  if (!rows_.empty() && data.size() > 1) channel_ = data.split(0, data.rank(), data.name() + "/parameters");
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    index_[rows_[i]] = i;
  }
  peak_live_ = live();
}

std::int64_t Gatherer::live() const {
  std::int64_t numel = 0;
  for (const Row* row : rows_) numel += row->state() == Row::State::absent ? 0 : row->numel();
  return numel;
}

Gatherer::~Gatherer() {
  try {
    if (announced_) announced_->agreed.wait();
  } catch (const std::exception&) {  // the collective's own failure has been told
  }
}

void Gatherer::announce(std::size_t wish) {
  announced_ = std::make_unique<Announcement>();
  announced_->value = static_cast<double>(wish);
  if (channel_)
    announced_->agreed = channel_->all_reduce({&announced_->value, 1, base::Dtype::f64}, comm::ReduceOp::min);
}

// One slot: what all agreed on is gathered. Returns it.
std::size_t Gatherer::resolve() {
  const std::unique_ptr<Announcement> announced = std::move(announced_);
  announced->agreed.wait();
  const auto agreed = static_cast<std::size_t>(announced->value);
  if (agreed < rows_.size()) start(agreed);
  return agreed;
}

void Gatherer::start(std::size_t index) {
  Row& row = *rows_[index];
  if (row.state() == Row::State::absent) {
    make_room(row.numel());
    fresh_[index] = 1;
  }
  ++gathers_;
  row.gather(channel_ ? *channel_ : *data_);
  peak_live_ = std::max(peak_live_, live());
}

void Gatherer::let_go(std::size_t index) {
  Row& row = *rows_[index];
  if (row.users > 0 || row.state() == Row::State::absent) return;
  row.release();
  fresh_[index] = 0;
}

// What is kept for later makes room for what is needed now, what is used last first.
void Gatherer::make_room(std::int64_t numel) {
  while (live() + numel > settings_.max_live) {
    std::optional<std::size_t> victim;
    std::int64_t farthest = -1;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i]->users > 0 || rows_[i]->state() == Row::State::absent) continue;
      const std::int64_t distance = distance_to_next_use(i).value_or(std::numeric_limits<std::int64_t>::max());
      if (distance <= farthest) continue;
      farthest = distance;
      victim = i;
    }
    if (!victim) return;
    let_go(*victim);
  }
}

void Gatherer::fetch(std::size_t index) {
  Row& row = *rows_[index];
  if (row.state() != Row::State::absent && fresh_[index] != 0) ++ahead_count_;
  while (row.state() == Row::State::absent) {
    if (!announced_) announce(index);
    resolve();
  }
  fresh_[index] = 0;
  row.wait();
}

// Elements of other rows that come before this one's next use, as far as the last pass tells.
std::optional<std::int64_t> Gatherer::distance_to_next_use(std::size_t index) const {
  if (!predicted_) return std::nullopt;
  std::int64_t distance = 0;
  for (std::size_t at = this_pass_.size(); at < last_pass_.size(); ++at) {
    if (last_pass_[at] == index) return distance;
    distance += rows_[last_pass_[at]]->numel();
  }
  return std::nullopt;
}

void Gatherer::note_use(std::size_t index) {
  const std::size_t at = this_pass_.size();
  this_pass_.push_back(index);
  if (!predicted_ || at >= last_pass_.size() || last_pass_[at] == index) return;
  predicted_ = false;
  if (settings_.log_changes) {
    log::warn("the units ran in another order than in the last pass: nothing is gathered ahead until the next one");
  }
}

// Whether a row that is let go now would be fetched again too soon for that.
bool Gatherer::stays(std::size_t index) const {
  const std::optional<std::int64_t> distance = distance_to_next_use(index);
  return distance && *distance < settings_.reuse_distance;
}

// The first row that will have to be fetched; none yet if that is one which is still here for its last use.
std::optional<std::size_t> Gatherer::next_wish() const {
  for (std::size_t at = this_pass_.size(); at < last_pass_.size(); ++at) {
    const std::size_t index = last_pass_[at];
    if (rows_[index]->state() == Row::State::absent) return index;
    if (rows_[index]->users > 0 && !stays(index)) return std::nullopt;
  }
  return std::nullopt;
}

// The next wish is spoken as soon as there is one; what was agreed on is started once there is room for it.
void Gatherer::prefetch() {
  if (!predicted_ || settings_.prefetch <= 0) return;
  for (;;) {
    if (!announced_) {
      const std::optional<std::size_t> next = next_wish();
      if (!next) return;
      announce(*next);
    }
    if (channel_ && !announced_->agreed.done()) return;
    const auto wish = static_cast<std::size_t>(announced_->value);
    if (wish < rows_.size() && rows_[wish]->state() == Row::State::absent) {
      std::int64_t unused = 0;
      for (std::size_t i = 0; i < rows_.size(); ++i) unused += fresh_[i] != 0 ? rows_[i]->numel() : 0;
      if (unused >= settings_.prefetch || rows_[wish]->numel() > settings_.max_live - live()) return;
    }
    resolve();
  }
}

void Gatherer::begin_pass() {
  if (rows_.empty()) return;
  // An evaluation's pass is the beginning of a training step's, which is worth more.
  const bool prefix =
      this_pass_.size() <= last_pass_.size() && std::equal(this_pass_.begin(), this_pass_.end(), last_pass_.begin());
  if (!prefix) last_pass_ = this_pass_;
  this_pass_.clear();
  predicted_ = !last_pass_.empty();
}

void Gatherer::use(std::span<Row* const> rows) {
  if (rows_.empty() || rows.empty()) return;
  for (Row* row : rows) {
    const std::size_t index = index_.at(row);
    note_use(index);
    ++row->users;
    fetch(index);
  }
  prefetch();
}

void Gatherer::done(std::span<Row* const> rows) {
  if (rows_.empty()) return;
  for (Row* row : rows) {
    if (--row->users > 0) continue;
    const std::size_t index = index_.at(row);
    if (stays(index) && live() <= settings_.max_live) continue;
    let_go(index);
  }
  prefetch();
}

void Gatherer::wait(comm::Work& work) {
  if (!channel_) return work.wait();
  const Clock::time_point start = Clock::now();
  auto nap = std::chrono::microseconds(20);
  while (!work.done()) {
    if (Clock::now() - start > patience) {
      if (!announced_) announce(pass());
      if (announced_->agreed.done() && resolve() == pass()) nap = std::min(2 * nap, std::chrono::microseconds(1000));
    }
    std::this_thread::sleep_for(nap);
  }
  work.wait();
}

void Gatherer::finish() {
  if (rows_.empty()) return;
  if (channel_) {
    do {
      if (!announced_) announce(end());
    } while (resolve() != end());
  } else if (announced_) {
    resolve();
  }
  for (std::size_t i = 0; i < rows_.size(); ++i) let_go(i);
  begin_pass();
}

}  // namespace deepspeed::zero
