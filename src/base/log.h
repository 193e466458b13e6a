// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

/// Messages for people, on stderr (data goes to stdout) and, once a run folder exists, to its log file.
/// Rank 0 speaks; other ranks are silent below `error`. Who decides that something is an error logs it.
namespace deepspeed::log {

enum class Level { debug, info, warning, error, critical, off };

/// Sets who speaks. Until it is called the process is rank 0 of 1.
void set_rank(int rank, int size);
int rank();

void set_level(Level level);
/// "debug", "info", "warning", "error", "critical"; anything else throws ConfigError.
Level parse_level(std::string_view name);

/// Also appends every message to this file (rank 0 only), first those of before. An empty path stops it.
void set_file(const std::string& path);

/// Called before and after a message is printed, for a live progress line that shares the terminal.
void set_terminal_hooks(void (*before)(), void (*after)());

void write(Level level, std::string_view message);
/// To the log file alone, where the terminal shows the same in another way.
void write_to_file(std::string_view message);
/// Writes a message once in the life of the process for each `key`.
void write_once(Level level, std::string_view key, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn_once(fmt::format_string<Args...> format, Args&&... args) {
  const std::string message = fmt::format(format, std::forward<Args>(args)...);
  write_once(Level::warning, message, message);
}

}  // namespace deepspeed::log
