// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.h"

#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "comm/on_root.h"
#include "io/file.h"

namespace deepspeed::train {

RunFolder RunFolder::of(const config::Config& config) {
  return {config.get<std::string>("training.output")};
}

RunFolder RunFolder::open(comm::Group& group, const config::Config& config) {
  RunFolder folder = of(config);
  comm::on_root(group, [&] {
    std::error_code failed;
    std::filesystem::create_directories(folder.checkpoints(), failed);
    if (failed) {
      throw base::IoError("training.output: " + folder.checkpoints().string() + " can't be made: " + failed.message());
    }
    io::write_file_atomically(folder.root / "config.json", config.text() + "\n");
    log::set_file((folder.root / "log.txt").string());
  });
  return folder;
}

}  // namespace deepspeed::train
