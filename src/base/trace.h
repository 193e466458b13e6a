// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

/// What this process does, and when: ranges of time on its threads, and what is under way between them (collectives).
/// Nothing is recorded until start(); until then a range costs one relaxed load. Safe from any thread.
namespace deepspeed::base::trace {

/// Detail of an event, shown when it is clicked on: a number or a text.
struct Argument {
  Argument(const char* name, std::int64_t value) : key(name), number(value) {}
  Argument(const char* name, std::string_view value) : key(name), text(value), is_text(true) {}
  const char* key;
  std::int64_t number = 0;
  std::string_view text;
  bool is_text = false;
};
using Arguments = std::initializer_list<Argument>;

struct Options {
  /// Nanoseconds of the system clock that count as zero, so that ranks' traces have one time axis.
  std::int64_t origin = 0;
  /// Later events are dropped, and the trace says so.
  std::size_t most_events = std::size_t{1} << 18;
};

/// Nanoseconds of the system clock.
std::int64_t system_time();

/// Begins anew, without what was recorded before.
void start(const Options& options);
/// What is open then is left out.
void stop();
/// Events that the limit kept out.
std::size_t dropped();
/// Everything recorded, in Chrome's trace format (a JSON object), which Perfetto (ui.perfetto.dev) and chrome://tracing
/// show. The process id is the rank; times are in microseconds.
std::string json();

namespace detail {
extern std::atomic<bool> on;
struct Event;
struct Discard {
  void operator()(Event* event) const;
};
using Open = std::unique_ptr<Event, Discard>;
Open open(std::string_view name, const char* category, Arguments arguments, bool async);
void add(Event& event, const Argument& argument);
void close(Open event);
}  // namespace detail

inline bool enabled() {
  return detail::on.load(std::memory_order_relaxed);
}

/// The time between construction and destruction, on this thread. `category`: "unit", "comm", ..., a literal.
class Range {
 public:
  explicit Range(std::string_view name, const char* category = "run", Arguments arguments = {}) {
    if (enabled()) event_ = detail::open(name, category, arguments, false);
  }
  ~Range() {
    if (event_) detail::close(std::move(event_));
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  detail::Open event_;
};

/// Time that no thread is busy with: it may end on another one than where it began, and overlap others.
class AsyncRange {
 public:
  AsyncRange() = default;
  AsyncRange(std::string_view name, const char* category, Arguments arguments = {}) {
    if (enabled()) event_ = detail::open(name, category, arguments, true);
  }
  AsyncRange(AsyncRange&&) = default;
  AsyncRange& operator=(AsyncRange&& other) noexcept {
    end();
    event_ = std::move(other.event_);
    return *this;
  }
  ~AsyncRange() { end(); }
  /// Known only now.
  void add(const Argument& argument) {
    if (event_) detail::add(*event_, argument);
  }
  void end() {
    if (event_) detail::close(std::move(event_));
  }
  /// Whether it was begun while recording, and not ended.
  explicit operator bool() const { return event_ != nullptr; }

 private:
  detail::Open event_;
};

/// What asynchronous ranges that begin on this thread in this scope are for, as their argument "for": so a collective
/// names the weights it carries. The text must outlive the scope.
class Subject {
 public:
  explicit Subject(std::string_view text);
  ~Subject();
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

 private:
  std::string_view before_;
};

}  // namespace deepspeed::base::trace
