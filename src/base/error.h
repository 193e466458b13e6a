// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace deepspeed::base {

/// Exit codes of every program, as docs/errors.md documents them.
enum class ExitCode : int {
  ok = 0,
  failure = 1,     ///< anything without a code of its own
  usage = 2,       ///< the command line
  config = 3,      ///< the configuration: a key, a value, a conflict
  data = 4,        ///< training data, tokenizer, or model files
  checkpoint = 5,  ///< a checkpoint that is damaged, missing or doesn't fit
  io = 6,          ///< a file or device can't be read or written
  comm = 7,        ///< a collective failed or a rank was lost
  diverged = 8,    ///< the loss scale is at its minimum, or the loss is not finite and the config says stop
  device = 9,      ///< no usable accelerator, or its code is missing
  preempted = 75,  ///< stopped on request after a checkpoint; requeue to go on
};

/// Base of all errors of the library. `what()` is the whole message: what was wrong, where (full key path, file, rank,
/// host) and what to do. Libraries throw; only `main` prints, once for the job, and ends every rank.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

template <ExitCode Code>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message) : Error(Code, message) {}
};

using UsageError = ErrorOf<ExitCode::usage>;
using ConfigError = ErrorOf<ExitCode::config>;
using DataError = ErrorOf<ExitCode::data>;
using CheckpointError = ErrorOf<ExitCode::checkpoint>;
using IoError = ErrorOf<ExitCode::io>;
using CommError = ErrorOf<ExitCode::comm>;
using DivergedError = ErrorOf<ExitCode::diverged>;
using DeviceError = ErrorOf<ExitCode::device>;

/// Host memory ran out. The message is the same wherever that shows: who asked last says little of who holds the rest,
/// and ranks that fail alike are told in one line.
class MemoryError : public Error {
 public:
  MemoryError();
};

/// "PATH: No such file or directory" style text of an errno value.
std::string system_error(const std::string& what, int error_number);

}  // namespace deepspeed::base
