// SPDX-License-Identifier: Apache-2.0
// Rules between keys. Each error holds DeepSpeed's own words where it has some, so that searches find them.
#include <fmt/format.h>

#include "config/validate.h"

namespace deepspeed::config {

using nlohmann::json;

namespace {

class Conflicts {
 public:
  Conflicts(const json& resolved, const Canonical& user, const Facts& facts, Findings& findings)
      : resolved_(resolved), user_(user), facts_(facts), findings_(findings) {}

  void run() { precision(); }

 private:
  const json& value(std::string_view path) const {
    static const json nothing;
    const json* found = at_path(resolved_, path);
    return found == nullptr ? nothing : *found;
  }
  bool on(std::string_view path) const { return value(path) == true; }
  bool given(const std::string& path) const { return user_.given.count(path) != 0; }
  std::int64_t integer_of(std::string_view path) const { return value(path).get<std::int64_t>(); }
  std::string text_of(std::string_view path) const {
    const json& found = value(path);
    return found.is_string() ? found.get<std::string>() : "";
  }

  void precision() {
    if (on("fp16.enabled") && on("bf16.enabled"))
      findings_.error("bf16.enabled", "bfloat16 and fp16 modes cannot be simultaneously enabled");
    if (on("fp16.enabled") && value("fp16.loss_scale") == 0.0)
      for (const char* key : {"loss_scale_window", "min_loss_scale"})
        if (const std::string path = std::string("fp16.") + key; integer_of(path) <= 0)
          findings_.error(path,
                          fmt::format("{} must be > 0 when dynamic loss scaling is enabled (loss_scale=0)", path));
  }

  const json& resolved_;
  const Canonical& user_;
  const Facts& facts_;
  Findings& findings_;
};

}  // namespace

void check_conflicts(const json& resolved, const Canonical& user, const Facts& facts, Findings& findings) {
  Conflicts(resolved, user, facts, findings).run();
}

}  // namespace deepspeed::config
