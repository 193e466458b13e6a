// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include "base/error.h"
#include "models/decoder.h"
#include "models/fields.h"

namespace deepspeed::models {

std::shared_ptr<CausalLM> make_model(const nlohmann::json& section, std::uint64_t seed) {
  Fields in(section, Fields::Origin::section, "model.");
  if (in.has("path")) {
    const std::string path = in.text("path", "");
    if (in.has("type")) in.fail("type", "is given beside model.path: take one of them");
    in.refuse_unknown();
    return load_model(path);
  }
  if (!in.has("type")) in.fail("", "needs 'path' (a Hugging Face folder) or 'type' (" + family_names() + ")");
  auto model = std::make_shared<Decoder>(read_section(section));
  model->initialize(seed);
  return model;
}

}  // namespace deepspeed::models
