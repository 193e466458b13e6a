// SPDX-License-Identifier: Apache-2.0
// Programs that a test starts as a user would, and watches.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace deepspeed::testing_support {

struct Outcome {
  int status = -1;  ///< as a shell tells it: the exit code, or 128 + the signal
  std::string out, err;
  double seconds = 0;
  bool late = false;  ///< it ran past its limit and was killed
  std::string text() const { return out + err; }
};

/// What to start. The environment is made anew, so that nothing of the MPI or the shell that runs the test goes in.
struct Start {
  std::vector<std::string> command;
  std::filesystem::path folder;          ///< where it runs; empty = here
  std::vector<std::string> environment;  ///< NAME=value, beside PATH, HOME and what MPI and OpenMP need
  std::string input;                     ///< its standard input
  double limit = 60;                     ///< seconds
};

struct ProcessEntry {
  pid_t pid, parent;
  char state;
  std::string name;
};

inline std::vector<ProcessEntry> all_processes() {
  std::vector<ProcessEntry> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string number = entry.path().filename().string();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::size_t open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;  // it has just ended
    ProcessEntry process{std::stoi(number), 0, '?', text.substr(open + 1, close - open - 1)};
    std::istringstream(text.substr(close + 1)) >> process.state >> process.parent;
    all.push_back(std::move(process));
  }
  return all;
}

/// False once a process has ended, also where nobody has asked for its status.
inline bool is_running(pid_t pid) {
  for (const ProcessEntry& process : all_processes()) {
    if (process.pid == pid) return process.state != 'Z';
  }
  return false;
}

/// True as soon as `condition` holds, false when it doesn't within `seconds`.
inline bool eventually(const std::function<bool()>& condition, double seconds = 60) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A running program; killed with all that it started if it still runs when the object goes.
class Child {
 public:
  explicit Child(const Start& start)
      : begin_(std::chrono::steady_clock::now()),
        limit_(start.limit),
        out_(make_file("out")),
        err_(make_file("err")),
        in_(make_file("in")) {
    if (::write(in_, start.input.data(), start.input.size()) < 0 || ::lseek(in_, 0, SEEK_SET) < 0)
      throw std::runtime_error("can't give a child its input");
    const char* path = std::getenv("PATH");
    std::vector<std::string> environment{std::string("PATH=") + (path == nullptr ? "/usr/bin:/bin" : path),
                                         "HOME=/tmp",
                                         "OMP_NUM_THREADS=1",
                                         "OMPI_ALLOW_RUN_AS_ROOT=1",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                         "KOKKOS_DISABLE_WARNINGS=1"};
    environment.insert(environment.end(), start.environment.begin(), start.environment.end());
    std::vector<std::string> command = start.command;
    const std::vector<char*> arguments = pointers(command), variables = pointers(environment);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      if (!start.folder.empty() && ::chdir(start.folder.c_str()) != 0) ::_exit(126);
      ::dup2(in_, STDIN_FILENO);
      ::dup2(out_, STDOUT_FILENO);
      ::dup2(err_, STDERR_FILENO);
      ::execvpe(arguments[0], arguments.data(), variables.data());
      ::_exit(127);
    }
  }

  ~Child() {
    if (!ended_) kill_all();
    for (const int file : {out_, err_, in_}) ::close(file);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// What it has written so far.
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }
  void signal(int number) const { ::kill(pid_, number); }

  /// The processes that come from it and have this name (any, if empty), itself not among them.
  std::vector<pid_t> descendants(const std::string& name = "") const {
    const std::vector<ProcessEntry> all = all_processes();
    std::vector<pid_t> family{pid_}, found;
    for (std::size_t i = 0; i < family.size(); ++i) {
      for (const ProcessEntry& process : all) {
        if (process.parent != family[i]) continue;
        family.push_back(process.pid);
        if (name.empty() || process.name == name) found.push_back(process.pid);
      }
    }
    return found;
  }

  /// kill -9 of it and of all that it started, and waits for its end.
  void kill_all() {
    std::vector<pid_t> family = descendants();
    family.push_back(pid_);
    for (const pid_t pid : family) ::kill(pid, SIGKILL);
    if (!ended_) ::waitpid(pid_, &status_, 0);
    ended_ = true;
    eventually([&] { return std::none_of(family.begin(), family.end(), is_running); }, 10);
  }

  Outcome wait() {
    Outcome outcome;
    if (!ended_) {
      const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
      pollfd waited{handle, POLLIN, 0};
      const double left = limit_ - seconds();
      outcome.late = ::poll(&waited, 1, static_cast<int>(std::max(left, 0.0) * 1000)) == 0;
      ::close(handle);
      outcome.seconds = seconds();
      if (outcome.late) {
        kill_all();
      } else {
        ::waitpid(pid_, &status_, 0);
        ended_ = true;
      }
    }
    outcome.status = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    outcome.out = out();
    outcome.err = err();
    if (outcome.late) outcome.err += "\n(killed by the test after its time limit)\n";
    return outcome;
  }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  static int make_file(const char* name) {
    const int file = ::memfd_create(name, MFD_CLOEXEC);
    if (file < 0) throw std::runtime_error("memfd_create");
    return file;
  }
  static std::string read_file(int file) {
    std::string text;
    char chunk[4096];
    ssize_t n = 0;
    while ((n = ::pread(file, chunk, sizeof chunk, static_cast<off_t>(text.size()))) > 0)
      text.append(chunk, static_cast<std::size_t>(n));
    return text;
  }
  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  }

  std::chrono::steady_clock::time_point begin_;
  double limit_;
  int out_, err_, in_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

inline Outcome run(const Start& start) {
  return Child(start).wait();
}

}  // namespace deepspeed::testing_support
