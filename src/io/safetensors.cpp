// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/strict_json.h"

namespace deepspeed::io {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

namespace fs = std::filesystem;
using base::DataError;
using base::Dtype;
using nlohmann::json;

namespace {

// The reference implementation's limits and names (https://github.com/huggingface/safetensors, tensor.rs).
constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr std::string_view metadata_name = "__metadata__";
constexpr std::string_view single_file = "model.safetensors";
constexpr std::string_view index_file = "model.safetensors.index.json";

struct DtypeName {
  std::string_view name;
  Dtype type;
  int order;  // place in the reference's list of types, after which its writer sorts
};
constexpr std::array dtype_names{DtypeName{"BOOL", Dtype::boolean, 0}, DtypeName{"U8", Dtype::u8, 1},
                                 DtypeName{"I8", Dtype::i8, 2},        DtypeName{"I16", Dtype::i16, 3},
                                 DtypeName{"F16", Dtype::f16, 4},      DtypeName{"BF16", Dtype::bf16, 5},
                                 DtypeName{"I32", Dtype::i32, 6},      DtypeName{"F32", Dtype::f32, 7},
                                 DtypeName{"F64", Dtype::f64, 8},      DtypeName{"I64", Dtype::i64, 9}};

const DtypeName& dtype_name(Dtype type) {
  return *std::find_if(dtype_names.begin(), dtype_names.end(), [&](const DtypeName& d) { return d.type == type; });
}

bool multiply(std::int64_t a, std::int64_t b, std::int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

/// Product of a shape and bytes of its data; false if either doesn't fit 63 bits.
bool measure(const std::vector<std::int64_t>& shape, Dtype type, std::int64_t& numel, std::int64_t& bytes) {
  numel = 1;
  for (const std::int64_t size : shape)
    if (!multiply(numel, size, numel)) return false;
  return multiply(numel, static_cast<std::int64_t>(base::size_of(type)), bytes);
}

void check_name(std::string_view name, const std::string& what) {
  if (name.empty()) throw DataError(what + " has a tensor with an empty name");
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      throw DataError(fmt::format("{} has a tensor name with a control character: {}", what, in_quotes(name)));
}

/// One header entry as a tensor whose data begins at `data`; also gives the byte range.
NamedTensor read_entry(const std::string& name, const json& entry, Bytes data, const std::string& what,
                       std::pair<std::int64_t, std::int64_t>& range) {
  const std::string where = fmt::format("{}: tensor {}", what, in_quotes(name));
  if (!entry.is_object()) throw DataError(where + " isn't described by an object");
  for (const auto& [key, value] : entry.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      throw DataError(fmt::format("{} has the unknown field {}", where, in_quotes(key)));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) throw DataError(fmt::format("{} has no '{}'", where, key));

  NamedTensor tensor;
  tensor.name = name;
  const json& dtype = entry["dtype"];
  if (!dtype.is_string()) throw DataError(where + ": 'dtype' isn't text");
  const auto known = std::find_if(dtype_names.begin(), dtype_names.end(),
                                  [&](const DtypeName& d) { return d.name == dtype.get_ref<const std::string&>(); });
  if (known == dtype_names.end())
    throw DataError(
        fmt::format("{} has dtype {}, which isn't one that is read (F64, F32, F16, BF16, I64, I32, I16, I8, "
                    "U8, BOOL)",
                    where, in_quotes(dtype.get_ref<const std::string&>())));
  if (!to_sizes(entry["shape"], tensor.shape)) throw DataError(where + ": 'shape' isn't a list of whole numbers");
  std::vector<std::int64_t> offsets;
  if (!to_sizes(entry["data_offsets"], offsets) || offsets.size() != 2)
    throw DataError(where + ": 'data_offsets' isn't a list of two whole numbers");
  range = {offsets[0], offsets[1]};
  if (range.first > range.second)
    throw DataError(fmt::format("{} ends at byte {} before it begins at {}", where, range.second, range.first));
  if (static_cast<std::uint64_t>(range.second) > data.size())
    throw DataError(fmt::format("{} lies at bytes {} to {}, but the file has only {} bytes of data (cut short?)", where,
                                range.first, range.second, data.size()));
  std::int64_t numel = 0, bytes = 0;
  if (!measure(tensor.shape, known->type, numel, bytes))
    throw DataError(fmt::format("{}: shape [{}] overflows", where, fmt::join(tensor.shape, ", ")));
  if (bytes != range.second - range.first)
    throw DataError(fmt::format("{}: {} of shape [{}] takes {} bytes, but its data has {}", where, known->name,
                                fmt::join(tensor.shape, ", "), bytes, range.second - range.first));
  tensor.data = {data.data() + range.first, numel, known->type};
  return tensor;
}

}  // namespace

void SafeTensors::add_file(Bytes bytes, const fs::path& path) {
  const std::string file = path.string();
  if (bytes.size() < 8)
    throw DataError(fmt::format("{} has {} bytes, too few for a safetensors file", file, bytes.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > max_header_bytes)
    throw DataError(fmt::format("{}: the header's length {} is beyond the limit of {} bytes (not a safetensors file?)",
                                file, length, max_header_bytes));
  if (length > bytes.size() - 8)
    throw DataError(
        fmt::format("{}: the header should have {} bytes, but the file ends after {}", file, length, bytes.size() - 8));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data() + 8), length);
  if (!text.starts_with('{')) throw DataError(file + ": the header doesn't begin with '{' (not a safetensors file?)");
  const std::string what = file + ": the header";
  const json header = parse_strict_json(text, what, 8);
  const Bytes data = bytes.subspan(8 + length);

  struct Found {
    NamedTensor tensor;
    std::pair<std::int64_t, std::int64_t> range;
  };
  std::vector<Found> found;
  for (const auto& [name, entry] : header.items()) {
    if (name == metadata_name) {
      if (!entry.is_object()) throw DataError(what + ": __metadata__ isn't an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string())
          throw DataError(fmt::format("{}: __metadata__ holds {}, which isn't text", what, in_quotes(key)));
        metadata_.emplace(key, value.get<std::string>());
      }
      continue;
    }
    check_name(name, what);
    Found one;
    one.tensor = read_entry(name, entry, data, file, one.range);
    found.push_back(std::move(one));
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.range < b.range; });
  std::int64_t end = 0;
  const Found* before = nullptr;
  for (const Found& one : found) {
    if (one.range.first < end)
      throw DataError(fmt::format("{}: tensors {} and {} overlap at byte {} of the data", file,
                                  in_quotes(before->tensor.name), in_quotes(one.tensor.name), one.range.first));
    if (one.range.first > end)
      throw DataError(fmt::format("{}: bytes {} to {} of the data, before tensor {}, belong to no tensor", file, end,
                                  one.range.first, in_quotes(one.tensor.name)));
    end = one.range.second;
    before = &one;
  }
  if (static_cast<std::uint64_t>(end) != data.size())
    throw DataError(fmt::format("{}: {} bytes after the last tensor belong to none", file,
                                data.size() - static_cast<std::size_t>(end)));
  for (Found& one : found) {
    if (!by_name_.emplace(one.tensor.name, tensors_.size()).second)
      throw DataError(
          fmt::format("{}: tensor {} is also in another file of this model", file, in_quotes(one.tensor.name)));
    tensors_.push_back(std::move(one.tensor));
  }
}

void SafeTensors::add_index(const fs::path& path) {
  const std::string what = path.string();
  const json index = parse_strict_json(read_whole_file(path, max_header_bytes), what, 8);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw DataError(what + " has no object 'weight_map'");
  std::map<std::string, std::set<std::string>> shards;  // file -> the tensors that it should hold
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) throw DataError(fmt::format("{}: the file of tensor {} isn't text", what, in_quotes(name)));
    const auto& file_name = file.get_ref<const std::string&>();
    if (!is_plain_name(file_name))
      throw DataError(fmt::format("{}: tensor {} lies in {}, which isn't the name of a file in the same folder", what,
                                  in_quotes(name), in_quotes(file_name)));
    shards[file_name].insert(name);
  }
  for (const auto& [file_name, names] : shards) {
    const fs::path shard = path.parent_path() / file_name;
    if (!fs::exists(shard))
      throw DataError(fmt::format("{}: the shard {} that the index names isn't there", what, shard.string()));
    const std::size_t first = tensors_.size();
    maps_.emplace_back(shard);
    add_file({maps_.back().data(), maps_.back().size()}, shard);
    for (std::size_t i = first; i < tensors_.size(); ++i)
      if (!names.contains(tensors_[i].name))
        throw DataError(fmt::format("{}: tensor {} isn't listed for this file in {}", shard.string(),
                                    in_quotes(tensors_[i].name), path.filename().string()));
    for (const std::string& name : names)
      if (!by_name_.contains(name))
        throw DataError(fmt::format("{}: tensor {} should be in this file but isn't", shard.string(), in_quotes(name)));
  }
}

SafeTensors::SafeTensors(const fs::path& path) : path_(path) {
  if (fs::is_directory(path)) {
    path_ = path / single_file;
    if (!fs::exists(path_)) path_ = path / index_file;
    if (!fs::exists(path_))
      throw DataError(fmt::format("{} holds neither {} nor {}: there are no weights to read", path.string(),
                                  single_file, index_file));
  }
  if (path_.extension() == ".json") {
    add_index(path_);
  } else {
    maps_.emplace_back(path_);
    add_file({maps_.back().data(), maps_.back().size()}, path_);
  }
}

SafeTensors SafeTensors::from_memory(Bytes bytes, const fs::path& path) {
  SafeTensors result;
  result.path_ = path;
  result.add_file(bytes, path);
  return result;
}

const NamedTensor* SafeTensors::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const NamedTensor& SafeTensors::at(std::string_view name) const {
  if (const NamedTensor* tensor = find(name)) return *tensor;
  // Names that share the longest beginning help more than the whole list.
  std::vector<std::string> near;
  const auto after = by_name_.lower_bound(name);
  if (after != by_name_.begin()) near.push_back(std::prev(after)->first);
  if (after != by_name_.end()) near.push_back(after->first);
  for (std::string& text : near) text = in_quotes(text);
  throw DataError(fmt::format("{} holds no tensor {} among its {}{}{}", path_.string(), in_quotes(name),
                              tensors_.size(), near.empty() ? "" : "; beside it in the alphabet are ",
                              fmt::join(near, " and ")));
}

bool is_aligned(const base::ConstBuffer& data) {
  return reinterpret_cast<std::uintptr_t>(data.data) % base::size_of(data.type) == 0;
}

SafeTensorsWriter::SafeTensorsWriter(const fs::path& path, const std::vector<NamedTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const std::string what = path.string();
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return std::pair(-dtype_name(a->data.type).order, std::string_view(a->name)) <
           std::pair(-dtype_name(b->data.type).order, std::string_view(b->name));
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(metadata_name)] = metadata;
  std::int64_t end = 0;
  for (const NamedTensor* tensor : order) {
    check_name(tensor->name, what);
    std::int64_t numel = 0, bytes = 0, next = 0;
    const bool negative = std::any_of(tensor->shape.begin(), tensor->shape.end(), [](auto size) { return size < 0; });
    if (negative || !measure(tensor->shape, tensor->data.type, numel, bytes) ||
        __builtin_add_overflow(end, bytes, &next))
      throw DataError(fmt::format("{}: tensor {} can't have the shape [{}]", what, in_quotes(tensor->name),
                                  fmt::join(tensor->shape, ", ")));
    if (numel != tensor->data.numel)
      throw DataError(fmt::format("{}: tensor {} of shape [{}] is given {} elements", what, in_quotes(tensor->name),
                                  fmt::join(tensor->shape, ", "), tensor->data.numel));
    const Place place{tensor->data.type, numel, static_cast<std::uint64_t>(end)};
    if (tensor->name == metadata_name || !places_.emplace(tensor->name, place).second)
      throw DataError(fmt::format("{}: two tensors would be called {}", what, in_quotes(tensor->name)));
    header[tensor->name] = {
        {"dtype", dtype_name(tensor->data.type).name}, {"shape", tensor->shape}, {"data_offsets", {end, next}}};
    end = next;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    throw DataError(what + ": a tensor name or metadata isn't valid UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > max_header_bytes)
    throw DataError(
        fmt::format("{}: {} tensors need a header beyond {}", what, tensors.size(), human_bytes(max_header_bytes)));
  const std::uint64_t length = text.size();
  const std::array pieces{std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(text))};
  write_at(file_.descriptor(), pieces, 0, path);
  for (auto& [name, place] : places_) place.offset += 8 + length;
}

void SafeTensorsWriter::write(std::string_view name, const base::ConstBuffer& data) {
  const auto found = places_.find(name);
  if (found == places_.end())
    throw DataError(fmt::format("{}: tensor {} wasn't announced", path().string(), in_quotes(name)));
  Place& place = found->second;
  if (data.type != place.type || data.numel != place.numel)
    throw DataError(fmt::format("{}: tensor {} was announced as {} elements of {}, not {} of {}", path().string(),
                                in_quotes(name), place.numel, base::name_of(place.type), data.numel,
                                base::name_of(data.type)));
  write_at(file_.descriptor(), {static_cast<const std::byte*>(data.data), data.bytes()}, place.offset, path());
  place.written = true;
}

void SafeTensorsWriter::flush() {
  for (const auto& [name, place] : places_)
    if (!place.written && place.numel > 0)
      throw DataError(fmt::format("{}: tensor {} was announced but never written", path().string(), in_quotes(name)));
  file_.flush();
}

void SafeTensorsWriter::commit() {
  flush();
  file_.commit();
}

void write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafeTensorsWriter writer(path, tensors, metadata);
  for (const NamedTensor& tensor : tensors) writer.write(tensor.name, tensor.data);
  writer.commit();
  fsync_folder(path.parent_path());
}

ShardPlan plan_shards(const std::vector<NamedTensor>& tensors, std::uint64_t max_shard_bytes) {
  ShardPlan plan;
  ShardPlan::File current;
  std::uint64_t size = 0;
  const auto close = [&] {
    if (!current.tensors.empty()) plan.files.push_back(std::exchange(current, {}));
    size = 0;
  };
  for (const NamedTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.data.bytes();
    plan.total_bytes += bytes;
    if (bytes > max_shard_bytes) {
      plan.files.push_back({"", {tensor}});
      continue;
    }
    if (size + bytes > max_shard_bytes) close();
    size += bytes;
    current.tensors.push_back(tensor);
  }
  close();
  if (plan.files.size() <= 1) {
    if (plan.files.empty()) plan.files.emplace_back();
    plan.files.front().name = single_file;
    return plan;
  }
  json map = json::object();
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    plan.files[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan.files.size());
    for (const NamedTensor& tensor : plan.files[i].tensors) map[tensor.name] = plan.files[i].name;
  }
  plan.index = json{{"metadata", {{"total_size", plan.total_bytes}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
  return plan;
}

namespace {

/// True for "model-00001-of-00003.safetensors".
bool is_shard_name(std::string_view name) {
  constexpr std::string_view pattern = "model-#####-of-#####.safetensors";
  return name.size() == pattern.size() && std::equal(name.begin(), name.end(), pattern.begin(), [](char c, char p) {
           return p == '#' ? c >= '0' && c <= '9' : c == p;
         });
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw_system_error("can't remove", path, error.value());
}

}  // namespace

ModelWriter::ModelWriter(fs::path folder, const std::vector<NamedTensor>& tensors, std::uint64_t max_shard_bytes,
                         const std::map<std::string, std::string>& metadata)
    : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw_system_error("can't create folder", folder_, error.value());
  ShardPlan plan = plan_shards(tensors, max_shard_bytes);
  index_ = std::move(plan.index);
  for (const ShardPlan::File& file : plan.files) {
    for (const NamedTensor& tensor : file.tensors)
      if (!file_of_.emplace(tensor.name, files_.size()).second)
        throw DataError(fmt::format("{}: two tensors would be called {}", folder_.string(), in_quotes(tensor.name)));
    files_.emplace_back(folder_ / file.name, file.tensors, metadata);
  }
}

void ModelWriter::write(std::string_view name, const base::ConstBuffer& data) {
  const auto found = file_of_.find(name);
  if (found == file_of_.end())
    throw DataError(fmt::format("{}: tensor {} wasn't announced", folder_.string(), in_quotes(name)));
  files_[found->second].write(name, data);
}

void ModelWriter::commit() {
  for (SafeTensorsWriter& file : files_) file.flush();
  // What a reader looks for goes first and comes last, so that it never finds an index with another model's shards.
  remove_file(folder_ / index_file);
  if (!index_.empty()) remove_file(folder_ / single_file);
  std::set<std::string> written;
  for (SafeTensorsWriter& file : files_) {
    written.insert(file.path().filename().string());
    file.commit();
  }
  if (index_.empty())
    fsync_folder(folder_);
  else
    write_file_atomically(folder_ / index_file, index_);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    if (const std::string name = entry.path().filename().string(); is_shard_name(name) && !written.contains(name))
      remove_file(entry.path());
}

void write_model(const fs::path& folder, const std::vector<NamedTensor>& tensors, std::uint64_t max_shard_bytes,
                 const std::map<std::string, std::string>& metadata) {
  ModelWriter writer(folder, tensors, max_shard_bytes, metadata);
  for (const NamedTensor& tensor : tensors) writer.write(tensor.name, tensor.data);
  writer.commit();
}

}  // namespace deepspeed::io
