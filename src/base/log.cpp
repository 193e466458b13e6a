// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cctype>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/error.h"

namespace deepspeed::log {
namespace {

constexpr std::size_t most_early = 1000;

struct State {
  std::mutex mutex;
  int rank = 0;
  int size = 1;
  Level level = Level::info;
  std::shared_ptr<spdlog::logger> terminal;
  std::shared_ptr<spdlog::logger> file;
  /// What was said before there was a file.
  struct Early {
    spdlog::log_clock::time_point time;
    std::string line;
  };
  std::vector<Early> early;
  void (*before)() = nullptr;
  void (*after)() = nullptr;
  std::set<std::string, std::less<>> once;

  State() {
    terminal = std::make_shared<spdlog::logger>("ds", std::make_shared<spdlog::sinks::stderr_sink_st>());
    terminal->set_pattern("[%H:%M:%S] %v");
    terminal->set_level(spdlog::level::trace);
  }
};

State& state() {
  static State instance;
  return instance;
}

std::string_view prefix(Level level) {
  switch (level) {
    case Level::debug:
      return "debug: ";
    case Level::warning:
      return "warning: ";
    case Level::error:
      return "error: ";
    case Level::critical:
      return "error: ";
    default:
      return "";
  }
}

void write_locked(State& s, Level level, std::string_view message) {
  if (level < s.level || (s.rank != 0 && level < Level::error)) return;
  std::string line{prefix(level)};
  if (s.rank != 0) line += fmt::format("rank {}: ", s.rank);
  line += message;
  if (s.before != nullptr) s.before();
  s.terminal->info("{}", line);
  s.terminal->flush();
  if (s.after != nullptr) s.after();
  if (s.file != nullptr) {
    s.file->info("{}", line);
    s.file->flush();
  } else if (s.early.size() < most_early) {
    s.early.push_back({spdlog::log_clock::now(), std::move(line)});
  }
}

}  // namespace

void set_rank(int rank, int size) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.rank = rank;
  s.size = size;
}

int rank() {
  return state().rank;
}

void set_level(Level level) {
  state().level = level;
}

Level parse_level(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "debug") return Level::debug;
  if (lower == "info") return Level::info;
  if (lower == "warning") return Level::warning;
  if (lower == "error") return Level::error;
  if (lower == "critical") return Level::critical;
  throw base::ConfigError(
      fmt::format("log_level: '{}' is not a level; use debug, info, warning, error or critical", name));
}

void set_file(const std::string& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (path.empty() || s.rank != 0) {
    s.file.reset();
    return;
  }
  s.file = std::make_shared<spdlog::logger>("file", std::make_shared<spdlog::sinks::basic_file_sink_st>(path, false));
  s.file->set_pattern("[%Y-%m-%d %H:%M:%S] %v");
  s.file->set_level(spdlog::level::trace);
  for (const State::Early& early : s.early) {
    s.file->log(early.time, spdlog::source_loc{}, spdlog::level::info, early.line);
  }
  s.early.clear();
  s.file->flush();
}

void set_terminal_hooks(void (*before)(), void (*after)()) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.before = before;
  s.after = after;
}

void write(Level level, std::string_view message) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  write_locked(s, level, message);
}

void write_to_file(std::string_view message) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.file == nullptr) return;
  s.file->info("{}", message);
  s.file->flush();
}

void write_once(Level level, std::string_view key, std::string_view message) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.once.emplace(key).second) return;
  write_locked(s, level, message);
}

}  // namespace deepspeed::log
