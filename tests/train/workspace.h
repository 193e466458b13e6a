// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "support/child.h"
#include "support/temporary_folder.h"

namespace deepspeed::testing_support {

/// Shown where an expectation on it fails.
inline std::ostream& operator<<(std::ostream& stream, const Outcome& outcome) {
  return stream << "status " << outcome.status << "\nout: " << outcome.out << "\nerr: " << outcome.err;
}

}  // namespace deepspeed::testing_support

namespace deepspeed::train {

using nlohmann::json;
using testing_support::Child;
using testing_support::eventually;
using testing_support::is_running;
using testing_support::Outcome;
using testing_support::Start;

/// A complete configuration that trains a tiny GPT-2 on text.txt for 20 steps, without dropout, into run/.
json tiny_config();

/// A folder with text.txt in which runs are started; it goes with the object.
class Workspace {
 public:
  Workspace();

  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  /// The names in a folder, sorted.
  std::vector<std::string> names(const std::string& folder = ".") const;

  /// A program with its arguments; under mpirun with `ranks` ranks, or by itself where that is 0.
  Start start(int ranks, const std::string& program, const std::vector<std::string>& arguments) const;
  Outcome run(int ranks, const std::string& program, const std::vector<std::string>& arguments,
              const std::string& input = "") const;
  /// ds_train with the configuration as text, which needs no file.
  Start training(int ranks, const json& config, const std::vector<std::string>& arguments = {}) const;
  Outcome train(int ranks, const json& config, const std::vector<std::string>& arguments = {}) const;
  Outcome generate(const std::vector<std::string>& arguments, const std::string& input = "") const;

  /// The objects of RUN/metrics.jsonl.
  std::vector<json> metrics(const std::string& run = "run") const;
  /// The last step in RUN/metrics.jsonl so far, 0 if there is none.
  std::int64_t last_step(const std::string& run = "run") const;

 private:
  testing_support::TemporaryFolder folder_;
};

/// What must be the same in two runs: all but times and memory.
std::vector<json> lasting(std::vector<json> metrics);

/// How often `part` is in `text`.
int count(const std::string& text, const std::string& part);

}  // namespace deepspeed::train
