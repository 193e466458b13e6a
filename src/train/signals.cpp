// SPDX-License-Identifier: Apache-2.0
#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

namespace deepspeed::train {
namespace {

// All that the handler touches is lock-free or written before it can run.
std::atomic<int> received{0};
constexpr std::size_t notice_bytes = 512;
std::array<std::array<char, notice_bytes>, 2> notices{};
std::atomic<int> current_notice{0};

constexpr std::array<int, 3> handled{SIGUSR1, SIGTERM, SIGINT};
std::array<struct sigaction, handled.size()> previous{};

void on_signal(int number) {
  int none = 0;
  if (!received.compare_exchange_strong(none, number)) _exit(128 + number);
  const auto& text = notices[static_cast<std::size_t>(current_notice.load())];
  const std::size_t length = strnlen(text.data(), notice_bytes);
  if (length > 0) {
    const ssize_t ignored = ::write(STDERR_FILENO, text.data(), length);
    static_cast<void>(ignored);
  }
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], &action, &previous[i]);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], &previous[i], nullptr);
}

bool StopSignals::requested() const {
  return received.load() != 0;
}

std::string StopSignals::name() const {
  switch (received.load()) {
    case SIGUSR1:
      return "SIGUSR1";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    default:
      return "";
  }
}

void StopSignals::set_notice(const std::string& text) {
  const int next = 1 - current_notice.load();
  auto& place = notices[static_cast<std::size_t>(next)];
  const std::size_t length = std::min(text.size(), notice_bytes - 1);
  std::memcpy(place.data(), text.data(), length);
  place[length] = '\0';
  current_notice = next;
}

}  // namespace deepspeed::train
