// SPDX-License-Identifier: Apache-2.0
#include "comm/on_root.h"

#include "base/error.h"

namespace deepspeed::comm {

std::string text_from_root(Group& group, const std::function<std::string()>& f) {
  // The first character tells whether a text or an error follows; an error begins with its code.
  std::string told;
  if (group.rank() == 0) {
    try {
      told = "+" + f();
    } catch (const base::Error& error) {
      told = "-" + std::to_string(static_cast<int>(error.code())) + " " + error.what();
    } catch (const std::exception& error) {
      told = "-" + std::to_string(static_cast<int>(base::ExitCode::failure)) + " " + error.what();
    }
  }
  told = group.broadcast_text(told, 0);
  if (told.front() == '+') return told.substr(1);
  const std::size_t space = told.find(' ');
  const int code = std::stoi(told.substr(1, space - 1));
  throw base::Error(static_cast<base::ExitCode>(code), told.substr(space + 1));
}

void on_root(Group& group, const std::function<void()>& f) {
  text_from_root(group, [&f] {
    f();
    return std::string();
  });
}

}  // namespace deepspeed::comm
