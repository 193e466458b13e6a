// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"

namespace deepspeed::base::trace {

namespace detail {

std::atomic<bool> on{false};

/// One event holds both ends, so that a full trace never has one without the other.
struct Event {
  std::string name;
  const char* category;
  std::string arguments;  ///< JSON, without the braces
  std::int64_t begin = 0;
  std::int64_t end = 0;
  pid_t thread = 0;
  bool async = false;
  std::uint64_t recording = 0;
};

void Discard::operator()(Event* event) const {
  delete event;
}

}  // namespace detail

namespace {

using detail::Event;

struct State {
  std::mutex mutex;
  std::vector<Event> events;
  std::map<pid_t, std::string> threads;
  Options options;
  std::size_t dropped = 0;
  std::atomic<std::uint64_t> recording{0};  ///< an event that was opened in an earlier one belongs to none
  std::int64_t offset = 0;                  ///< from the steady clock to the trace's time, ns
};

// Never destroyed: threads may end ranges until the end of the process.
State& state() {
  static State& instance = *new State;
  return instance;
}

thread_local std::string_view subject;

std::int64_t steady_time() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string microseconds(std::int64_t ns) {
  return fmt::format("{:.3f}", static_cast<double>(ns) / 1e3);
}

}  // namespace

namespace detail {

Open open(std::string_view name, const char* category, Arguments arguments, bool async) {
  Open event(new Event);
  event->name = name;
  event->category = category;
  event->async = async;
  if (async && !subject.empty()) add(*event, {"for", subject});
  for (const Argument& argument : arguments) add(*event, argument);
  event->thread = ::gettid();
  event->recording = state().recording;
  event->begin = steady_time();
  return event;
}

void add(Event& event, const Argument& argument) {
  event.arguments += fmt::format("{}{}: {}", event.arguments.empty() ? "" : ", ", quoted(argument.key),
                                 argument.is_text ? quoted(argument.text) : std::to_string(argument.number));
}

void close(Open event) {
  event->end = steady_time();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!enabled() || event->recording != s.recording) return;
  if (s.events.size() >= s.options.most_events) {
    ++s.dropped;
    return;
  }
  if (!event->async && !s.threads.contains(event->thread)) {
    char name[16] = {};
    ::prctl(PR_GET_NAME, name);
    s.threads.emplace(event->thread, name);
  }
  s.events.push_back(std::move(*event));
}

}  // namespace detail

std::int64_t system_time() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

void start(const Options& options) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.events.clear();
  s.threads.clear();
  s.options = options;
  s.dropped = 0;
  ++s.recording;
  s.offset = system_time() - steady_time() - options.origin;
  detail::on.store(true, std::memory_order_relaxed);
}

void stop() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  detail::on.store(false, std::memory_order_relaxed);
}

std::size_t dropped() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.dropped;
}

std::string json() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const int rank = log::rank();
  fmt::memory_buffer out;
  const auto put = [&](auto format, auto&&... arguments) {
    fmt::format_to(std::back_inserter(out), format, arguments...);
  };
  put(FMT_STRING("{{\"displayTimeUnit\": \"ms\", \"otherData\": {{\"rank\": {}, \"dropped_events\": {}}}, "
                 "\"traceEvents\": [\n"),
      rank, s.dropped);
  put(FMT_STRING(
          "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {0}, \"args\": {{\"name\": \"rank {0}\"}}}},\n"
          "{{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": {0}, \"args\": {{\"sort_index\": {0}}}}}"),
      rank);
  for (const auto& [thread, name] : s.threads) {
    put(FMT_STRING(
            ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": {}}}}}"),
        rank, thread, quoted(name));
  }
  std::uint64_t number = 0;
  for (const Event& event : s.events) {
    const std::string begin = microseconds(event.begin + s.offset);
    if (!event.async) {
      put(FMT_STRING(
              ",\n{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": {}, "
              "\"args\": {{{}}}}}"),
          quoted(event.name), event.category, rank, event.thread, begin, microseconds(event.end - event.begin),
          event.arguments);
      continue;
    }
    // Numbers of asynchronous events are local to their process.
    const std::string same =
        fmt::format("\"name\": {}, \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, \"id2\": {{\"local\": \"{}\"}}",
                    quoted(event.name), event.category, rank, event.thread, ++number);
    put(FMT_STRING(",\n{{\"ph\": \"b\", {}, \"ts\": {}, \"args\": {{{}}}}},\n{{\"ph\": \"e\", {}, \"ts\": {}}}"), same,
        begin, event.arguments, same, microseconds(event.end + s.offset));
  }
  put(FMT_STRING("\n]}}\n"));
  return fmt::to_string(out);
}

Subject::Subject(std::string_view text) : before_(std::exchange(subject, text)) {}

Subject::~Subject() {
  subject = before_;
}

}  // namespace deepspeed::base::trace
