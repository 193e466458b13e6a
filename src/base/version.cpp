// SPDX-License-Identifier: Apache-2.0
#include "base/version.h"

#include "version_git.h"

namespace deepspeed::base {

std::string version() {
  return DS_VERSION;
}
std::string git_hash() {
  return DS_GIT_HASH;
}
std::string back_ends() {
  return DS_BACK_ENDS;
}

}  // namespace deepspeed::base
