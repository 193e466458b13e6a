// SPDX-License-Identifier: Apache-2.0
#include "profile/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/log.h"
#include "profile/throughput.h"

namespace deepspeed::profile {
namespace {

constexpr std::string_view erase = "\r\x1b[K";  // to the start of the line, then all of it
constexpr std::string_view bold = "\x1b[1m";
constexpr std::string_view normal = "\x1b[0m";

/// The one that log messages have to make room for.
std::atomic<Progress*> current = nullptr;

/// A descriptor of the terminal behind `descriptor`, none if it isn't shown on one.
io::Descriptor find_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  if (term != nullptr && std::string_view(term) == "dumb") return {};
  if (::isatty(descriptor) != 0) return io::Descriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (descriptor != STDERR_FILENO) return {};
  std::string parent;
  std::ifstream(fmt::format("/proc/{}/comm", ::getppid())) >> parent;
  static constexpr std::array<std::string_view, 5> launchers{"mpirun", "mpiexec", "orterun", "prterun",
                                                             "mpiexec.hydra"};
  if (std::find(launchers.begin(), launchers.end(), parent) == launchers.end()) return {};
  io::Descriptor theirs(::open(fmt::format("/proc/{}/fd/2", ::getppid()).c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  return theirs && ::isatty(theirs.get()) != 0 ? std::move(theirs) : io::Descriptor();
}

std::size_t columns_of(int terminal) {
  winsize size{};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

}  // namespace

std::string format_progress(const ProgressState& s) {
  std::string line =
      s.total_steps > 0 ? fmt::format("step {}/{}", s.step, s.total_steps) : fmt::format("step {}", s.step);
  line += fmt::format("  loss {:.4f}", s.loss);
  if (s.validation_loss) line += fmt::format("  validation {:.4f}", *s.validation_loss);
  if (s.lr) line += fmt::format("  lr {:.3g}", *s.lr);
  line += fmt::format("  {} tok/s", format_count(s.tokens_per_s));
  if (s.utilization) line += fmt::format("  MFU {:.1f}%", 100.0 * *s.utilization);
  if (s.remaining_s) line += "  ETA " + format_duration(*s.remaining_s);
  if (s.host_bytes > 0) line += "  host " + io::human_bytes(static_cast<std::uint64_t>(s.host_bytes));
  if (s.device_bytes > 0) line += "  device " + io::human_bytes(static_cast<std::uint64_t>(s.device_bytes));
  return line;
}

Progress::Progress(const ProgressOptions& options) : options_(options) {
  using Mode = ProgressOptions::Mode;
  if (options_.mode == Mode::automatic) terminal_ = find_terminal(options_.descriptor);
  if (options_.mode == Mode::live) terminal_.reset(::fcntl(options_.descriptor, F_DUPFD_CLOEXEC, 0));
  const char* no_color = std::getenv("NO_COLOR");
  color_ = no_color == nullptr || *no_color == '\0';
  if (!live()) return;
  current = this;
  log::set_terminal_hooks(before_message, after_message);
}

Progress::~Progress() {
  if (!live()) return;
  log::set_terminal_hooks(nullptr, nullptr);
  current = nullptr;
  if (line_.empty()) return;
  draw();
  put("\n");
}

void Progress::update(const ProgressState& state) {
  std::string line = format_progress(state);
  const bool plain = options_.interval > 0 && state.step % options_.interval == 0;
  if (!live()) {
    if (plain) log::write(log::Level::info, line);
    return;
  }
  if (plain) log::write_to_file(line);
  const std::lock_guard lock(mutex_);
  line_ = std::move(line);
  const auto now = std::chrono::steady_clock::now();
  if (!drawn_ || std::chrono::duration<double>(now - *drawn_).count() >= options_.seconds_between_draws) draw();
}

void Progress::draw() {
  drawn_ = std::chrono::steady_clock::now();
  // One column stays free: a full line would wrap, and its erasure leave the first part standing.
  const std::string shown = line_.substr(0, columns_of(terminal_.get()) - 1);
  const std::size_t step_end = std::min(shown.find("  "), shown.size());
  if (color_) {
    put(fmt::format("{}{}{}{}{}", erase, bold, shown.substr(0, step_end), normal, shown.substr(step_end)));
  } else {
    put(fmt::format("{}{}", erase, shown));
  }
}

void Progress::put(std::string_view text) const {
  // A terminal that is gone doesn't matter to the run.
  while (!text.empty()) {
    const ssize_t written = ::write(options_.descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// The log calls both on one thread, around one message; the lock in between keeps a step's update out of the message.
void Progress::before_message() {
  if (Progress* progress = current) {
    progress->mutex_.lock();
    if (!progress->line_.empty()) progress->put(erase);
  }
}

void Progress::after_message() {
  if (Progress* progress = current) {
    if (!progress->line_.empty()) progress->draw();
    progress->mutex_.unlock();
  }
}

}  // namespace deepspeed::profile
