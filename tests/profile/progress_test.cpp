// SPDX-License-Identifier: Apache-2.0
#include "profile/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "profile/support.h"

namespace deepspeed::profile {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Both ends of a terminal.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(unsigned short columns) : screen_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    EXPECT_EQ(::grantpt(screen_), 0);
    EXPECT_EQ(::unlockpt(screen_), 0);
    keyboard_ = ::open(::ptsname(screen_), O_RDWR | O_NOCTTY);
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    EXPECT_EQ(::ioctl(keyboard_, TIOCSWINSZ, &size), 0);
  }
  ~PseudoTerminal() {
    ::close(keyboard_);
    ::close(screen_);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  int descriptor() const { return keyboard_; }
  /// What was written since the last call.
  std::string shown() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(screen_, buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }

 private:
  int screen_;
  int keyboard_ = -1;
};

/// Sets an environment variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Environment() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

ProgressState state(std::int64_t step) {
  return {.step = step, .total_steps = 500, .loss = 2.5, .tokens_per_s = 12345, .remaining_s = 200};
}

TEST(Progress, LineSaysWhatIsKnown) {
  EXPECT_EQ(format_progress({.step = 7, .loss = 1.0}), "step 7  loss 1.0000  0 tok/s");
  EXPECT_EQ(format_progress({.step = 120,
                             .total_steps = 500,
                             .loss = 2.81234,
                             .validation_loss = 2.9,
                             .lr = 3e-4,
                             .tokens_per_s = 12345,
                             .utilization = 0.4123,
                             .remaining_s = 200,
                             .host_bytes = std::int64_t{3} << 29,
                             .device_bytes = std::int64_t{15} << 30}),
            "step 120/500  loss 2.8123  validation 2.9000  lr 0.0003  12.3k tok/s  MFU 41.2%  ETA 3m20s  host 1.5 GiB  "
            "device 15.0 GiB");
}

TEST(Progress, RewritesOneLineOnATerminal) {
  const Environment term("TERM", "xterm");
  const Environment color("NO_COLOR", "1");
  const PseudoTerminal terminal(200);
  {
    Progress progress({.interval = 0, .descriptor = terminal.descriptor(), .seconds_between_draws = 0.0});
    ASSERT_TRUE(progress.live());
    progress.update(state(1));
    EXPECT_EQ(terminal.shown(), "\r\x1b[Kstep 1/500  loss 2.5000  12.3k tok/s  ETA 3m20s");
    progress.update(state(2));
    EXPECT_EQ(terminal.shown(), "\r\x1b[Kstep 2/500  loss 2.5000  12.3k tok/s  ETA 3m20s");
  }
  EXPECT_THAT(terminal.shown(), testing::EndsWith("ETA 3m20s\r\n"));
}

TEST(Progress, FitsTheTerminalAndColoursUnlessToldNotTo) {
  const Environment term("TERM", "xterm");
  const Environment color("NO_COLOR", nullptr);
  const PseudoTerminal terminal(20);
  Progress progress({.interval = 0, .descriptor = terminal.descriptor(), .seconds_between_draws = 0.0});
  progress.update(state(1));
  EXPECT_EQ(terminal.shown(), "\r\x1b[K\x1b[1mstep 1/500\x1b[0m  loss 2.");
}

TEST(Progress, DrawsAtMostSoOftenAndTheLastInAnyCase) {
  const Environment term("TERM", "xterm");
  const PseudoTerminal terminal(200);
  {
    Progress progress({.interval = 0, .descriptor = terminal.descriptor(), .seconds_between_draws = 3600.0});
    for (int step = 1; step <= 50; ++step) progress.update(state(step));
    const std::string shown = terminal.shown();
    EXPECT_THAT(shown, HasSubstr("step 1/500"));
    EXPECT_THAT(shown, Not(HasSubstr("step 2/500")));
  }
  EXPECT_THAT(terminal.shown(), HasSubstr("step 50/500"));
}

TEST(Progress, MakesRoomForMessages) {
  const Environment term("TERM", "xterm");
  const Environment color("NO_COLOR", "1");
  const PseudoTerminal terminal(200);
  Progress progress({.interval = 0, .descriptor = terminal.descriptor(), .seconds_between_draws = 0.0});
  log::info("before the first step");
  EXPECT_EQ(terminal.shown(), "");
  progress.update(state(1));
  terminal.shown();
  testing::internal::CaptureStderr();
  log::info("saved");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("saved"));
  EXPECT_EQ(terminal.shown(), "\r\x1b[K\r\x1b[Kstep 1/500  loss 2.5000  12.3k tok/s  ETA 3m20s");
}

TEST(Progress, PlainLinesElsewhereAndInTheLogFile) {
  const Folder folder;
  log::set_file(folder / "log.txt");
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  testing::internal::CaptureStderr();
  {
    Progress progress({.interval = 2, .descriptor = pipe[1]});
    EXPECT_FALSE(progress.live());
    for (int step = 1; step <= 5; ++step) progress.update(state(step));
  }
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("step 2/500"));
  EXPECT_THAT(printed, HasSubstr("step 4/500"));
  EXPECT_THAT(printed, Not(HasSubstr("step 3/500")));
  EXPECT_THAT(contents(folder / "log.txt"), HasSubstr("step 4/500"));

  const Environment term("TERM", "xterm");
  const PseudoTerminal terminal(200);
  testing::internal::CaptureStderr();
  {
    Progress progress({.interval = 2, .descriptor = terminal.descriptor()});
    for (int step = 6; step <= 8; ++step) progress.update(state(step));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(contents(folder / "log.txt"), HasSubstr("step 8/500"));
  EXPECT_THAT(contents(folder / "log.txt"), Not(HasSubstr("\x1b")));
  log::set_file("");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Progress, ADumbTerminalGetsPlainLines) {
  const Environment term("TERM", "dumb");
  const PseudoTerminal terminal(200);
  EXPECT_FALSE(Progress({.descriptor = terminal.descriptor()}).live());
}

}  // namespace
}  // namespace deepspeed::profile
