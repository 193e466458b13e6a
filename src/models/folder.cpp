// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/strict_json.h"
#include "models/decoder.h"
#include "models/models.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::models {
namespace {

using base::Dtype;

/// Hugging Face's name of a type that weights are stored in.
std::string hf_dtype(Dtype type) {
  switch (type) {
    case Dtype::f64:
      return "float64";
    case Dtype::f32:
      return "float32";
    case Dtype::f16:
      return "float16";
    case Dtype::bf16:
      return "bfloat16";
    default:
      break;
  }
  throw base::ConfigError(fmt::format("weights can't be written as {}: fp32, bf16, fp16 or fp64", base::name_of(type)));
}

/// "[2, 3]"
std::string text_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("{}", shape);
}

/// A list for a message: the first few, and how many more there are.
std::string listed(const std::vector<std::string>& items) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), most); ++i) text += (i ? ", " : "") + items[i];
  if (items.size() > most) text += fmt::format(" and {} more", items.size() - most);
  return text;
}

void copy_into(at::Tensor parameter, const io::NamedTensor& stored) {
  const at::ScalarType type = nn::scalar_type(stored.data.type);
  if (io::is_aligned(stored.data)) {
    parameter.copy_(at::from_blob(const_cast<void*>(stored.data.data), stored.shape, at::TensorOptions().dtype(type)));
    return;
  }
  const at::Tensor aligned = at::empty(stored.shape, at::TensorOptions().dtype(type));
  std::memcpy(aligned.data_ptr(), stored.data.data, stored.data.bytes());
  parameter.copy_(aligned);
}

/// Which stored tensor each parameter takes. A tied model may store its table under the embedding's name, the head's,
/// or both.
std::map<std::string, const io::NamedTensor*> match(const DecoderConfig& config, const io::SafeTensors& file) {
  const Family& family = *find_family(config.family);
  const auto name_of = [](const std::vector<WeightName>& names, Weight weight) {
    for (const auto& [candidate, name] : names) {
      if (candidate == weight) return std::string(name);
    }
    return std::string();
  };
  const std::string table = name_of(family.before, Weight::token_embedding);
  const std::string head = name_of(family.after, Weight::head);

  std::map<std::string, const io::NamedTensor*> stored;
  std::vector<std::string> wrong;
  for (const io::NamedTensor& tensor : file.tensors()) {
    const bool buffer = std::any_of(family.buffers.begin(), family.buffers.end(),
                                    [&](std::string_view end) { return tensor.name.ends_with(end); });
    const bool bare = tensor.name != head && !tensor.name.starts_with(family.backbone);
    if (!buffer && !stored.emplace(bare ? std::string(family.backbone) + tensor.name : tensor.name, &tensor).second)
      wrong.push_back(tensor.name + " (given with and without '" + std::string(family.backbone) + "')");
  }

  std::map<std::string, const io::NamedTensor*> matched;
  std::vector<std::string> missing;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    auto found = stored.find(spec.name);
    if (found == stored.end() && config.tied_head && spec.name == table) found = stored.find(head);
    if (found == stored.end()) {
      missing.push_back(spec.name + (spec.name == head ? " (config.json says that the head is not tied)" : ""));
      continue;
    }
    const io::NamedTensor& tensor = *found->second;
    if (tensor.shape != spec.shape)
      wrong.push_back(fmt::format("{} is {} and must be {}", tensor.name, text_of(tensor.shape), text_of(spec.shape)));
    if (!at::isFloatingType(nn::scalar_type(tensor.data.type)))
      wrong.push_back(
          fmt::format("{} holds {}, no floating-point numbers", tensor.name, base::name_of(tensor.data.type)));
    matched.emplace(spec.name, &tensor);
    stored.erase(found);
  }
  if (config.tied_head && stored.contains(head)) {
    const io::NamedTensor& copy = *stored[head];
    const io::NamedTensor& original = *matched.at(table);
    if (copy.shape != original.shape || copy.data.bytes() != original.data.bytes() ||
        std::memcmp(copy.data.data, original.data.data, copy.data.bytes()) != 0)
      wrong.push_back(head + " differs from " + table + ", though config.json says that they are tied");
    stored.erase(head);
  }
  std::string problems;
  if (!missing.empty()) problems += "; missing: " + listed(missing);
  std::vector<std::string> extra;
  for (const auto& [name, tensor] : stored) extra.push_back(io::in_quotes(tensor->name));
  if (!extra.empty()) problems += "; not part of this model: " + listed(extra);
  if (!wrong.empty()) problems += "; " + listed(wrong);
  if (!problems.empty())
    throw base::DataError(
        fmt::format("{}: doesn't fit config.json ({}){}", file.path().string(), config.family, problems));
  return matched;
}

}  // namespace

DecoderConfig read_config_file(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  if (!std::filesystem::is_directory(folder))
    throw base::DataError(folder.string() +
                          ": is no folder; a model is a Hugging Face folder with config.json and model.safetensors");
  if (!std::filesystem::exists(file)) throw base::DataError(file.string() + ": doesn't exist");
  constexpr std::uint64_t largest = 16U << 20U;
  return read_config(io::parse_strict_json(io::read_whole_file(file, largest), file.string()), file.string());
}

std::shared_ptr<CausalLM> load_model(const std::filesystem::path& folder) {
  const DecoderConfig config = read_config_file(folder);
  const io::SafeTensors file(folder);
  const auto stored = match(config, file);  // before anything is allocated

  return std::make_shared<Decoder>(
      config, [&](const std::string& name, Weight, at::Tensor& parameter) { copy_into(parameter, *stored.at(name)); });
}

void save_model(const nlohmann::json& hf_config, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                const std::filesystem::path& folder, Dtype dtype) {
  nlohmann::json config = hf_config;
  config["dtype"] = config["torch_dtype"] = hf_dtype(dtype);
  std::vector<io::NamedTensor> announced;
  for (const auto& [name, tensor] : tensors)
    announced.push_back({name, tensor.sizes().vec(), base::ConstBuffer(nullptr, tensor.numel(), dtype)});

  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw base::IoError(base::system_error(folder.string(), error.value()));
  io::ModelWriter writer(folder, announced);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor value = tensor.detach().to(at::kCPU, nn::scalar_type(dtype)).contiguous();
    writer.write(name, base::ConstBuffer(value.const_data_ptr(), value.numel(), dtype));
  }
  nlohmann::json generation = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && !config[key].is_null()) generation[key] = config[key];
  }
  io::write_file_atomically(folder / "config.json", config.dump(2) + "\n");
  io::write_file_atomically(folder / "generation_config.json", generation.dump(2) + "\n");
  writer.commit();
}

void save_model(const CausalLM& model, const std::filesystem::path& folder, Dtype dtype) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& parameter : model.named_parameters()) tensors.emplace_back(parameter.key(), parameter.value());
  save_model(model.hf_config(), tensors, folder, dtype);
}

}  // namespace deepspeed::models
