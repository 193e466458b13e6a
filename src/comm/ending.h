// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace deepspeed::comm {

/// How one rank's program ended.
struct Ending {
  int rank = 0;
  std::string host;
  int code = 0;
  /// What went wrong, without the rank; empty if nothing did.
  std::string message;
  /// Whether it gave up a call that MPI may still work on.
  bool stuck = false;
};

/// "3", "0-2, 5": ascending ranks, as short as it goes.
std::string list_ranks(const std::vector<int>& ranks);

struct Verdict {
  int code = 0;
  std::string text;  ///< lines for stderr, each beginning with "PROGRAM: error: "; empty if nothing failed
};

/// What the job says and returns, from the endings known (one a rank at most) of `size` ranks. Equal messages become
/// one, with the ranks in front unless it is all of them. A rank lost in a collective is mostly the consequence of
/// another failure: such messages are told only if there is no other.
Verdict judge(const std::string& program, const std::vector<Ending>& endings, int size);

}  // namespace deepspeed::comm
