// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/version.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/strict_json.h"

namespace deepspeed::checkpoint {

namespace fs = std::filesystem;
using base::CheckpointError;
using nlohmann::json;

namespace {
constexpr std::string_view format_name = "deepspeed-mpi checkpoint";
constexpr std::uint64_t max_manifest_bytes = std::uint64_t{4} << 30;
constexpr std::string_view first_line_begin = "{\"xxh3_128\": \"", first_line_end = "\",\n";
// Bounds the memory that a hostile manifest can ask for: far more slices than any layout makes of one tensor.
constexpr std::int64_t max_intervals = std::int64_t{1} << 26;
constexpr std::size_t first_line_size = first_line_begin.size() + 32 + first_line_end.size();
}  // namespace

std::vector<Intervals> to_runs(std::vector<std::pair<std::int64_t, std::int64_t>> slices) {
  std::sort(slices.begin(), slices.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> joined;
  for (const auto& [offset, count] : slices) {
    if (count == 0) continue;
    if (!joined.empty() && joined.back().first + joined.back().second == offset)
      joined.back().second += count;
    else
      joined.emplace_back(offset, count);
  }
  std::vector<Intervals> runs;
  for (const auto& [offset, count] : joined) {
    if (!runs.empty() && runs.back().count == count) {
      Intervals& last = runs.back();
      const std::int64_t step = offset - (last.offset + last.stride * (last.repeat - 1));
      if (last.repeat == 1 || step == last.stride) {
        last.stride = step;
        ++last.repeat;
        continue;
      }
    }
    runs.push_back({offset, count, 0, 1});
  }
  return runs;
}

std::int64_t numel_of(const std::vector<Intervals>& runs) {
  std::int64_t sum = 0;
  for (const Intervals& run : runs) sum += run.count * run.repeat;
  return sum;
}

bool count_elements(const std::vector<std::int64_t>& shape, base::Dtype type, std::int64_t& numel) {
  numel = 1;
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel)) return false;
  std::int64_t bytes = 0;
  return !__builtin_mul_overflow(numel, static_cast<std::int64_t>(base::size_of(type)), &bytes);
}

std::string problem_of_name(const std::string& name) {
  if (name.size() > 1024) return "is longer than 1024 bytes";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    // HDF5 knows "." as "here"; control characters and ".." would only mislead people.
    if (!io::is_plain_name(name.substr(begin, end - begin)))
      return "has an empty, '.', '..' or over-long component or a control character";
    begin = end + 1;
  }
  return "";
}

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& problem) {
  throw CheckpointError(where + ": " + problem);
}

/// All runs of all parts as sorted intervals must be [0, numel) without gap or overlap.
void validate_cover(const std::string& name, const Tensor& tensor, const std::string& where) {
  std::int64_t total = 0, interval_count = 0;
  for (const Part& part : tensor.parts) {
    for (const Intervals& run : part.runs) {
      std::int64_t length = 0, last = 0;
      const bool sane =
          run.offset >= 0 && run.count > 0 && run.repeat > 0 && run.stride >= 0 &&
          (run.repeat == 1 || run.stride >= run.count) && !__builtin_mul_overflow(run.stride, run.repeat - 1, &last) &&
          !__builtin_add_overflow(last, run.offset, &last) && last <= tensor.numel - run.count &&
          !__builtin_mul_overflow(run.count, run.repeat, &length) && !__builtin_add_overflow(total, length, &total) &&
          total <= tensor.numel && !__builtin_add_overflow(interval_count, run.repeat, &interval_count) &&
          interval_count <= max_intervals;
      if (!sane)
        refuse(where,
               fmt::format("tensor {} of {} elements has slices beyond its end or over each other (at element {})",
                           io::in_quotes(name), tensor.numel, run.offset));
    }
  }
  if (total != tensor.numel)
    refuse(where,
           fmt::format("of tensor {} only {} of {} elements are there", io::in_quotes(name), total, tensor.numel));
  std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
  for (const Part& part : tensor.parts)
    for (const Intervals& run : part.runs)
      for (std::int64_t k = 0; k < run.repeat; ++k) intervals.emplace_back(run.offset + k * run.stride, run.count);
  std::sort(intervals.begin(), intervals.end());
  std::int64_t end = 0;
  for (const auto& [offset, count] : intervals) {
    if (offset != end)
      refuse(where, fmt::format("tensor {}: elements {} to {} are {}", io::in_quotes(name), std::min(offset, end),
                                std::max(offset, end), offset < end ? "given twice" : "missing"));
    end = offset + count;
  }
}

}  // namespace

void validate_tensors(const std::map<std::string, Tensor>& tensors, const std::string& where) {
  for (const auto& [name, tensor] : tensors) {
    if (const std::string problem = problem_of_name(name); !problem.empty())
      refuse(where, fmt::format("tensor name {} {}", io::in_quotes(name), problem));
    for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      if (tensors.contains(name.substr(0, slash)))
        refuse(where, fmt::format("tensor {} would lie inside tensor {}", io::in_quotes(name),
                                  io::in_quotes(name.substr(0, slash))));
    std::int64_t numel = 0;
    if (!count_elements(tensor.shape, tensor.type, numel) || numel != tensor.numel)
      refuse(where,
             fmt::format("tensor {} can't have the shape [{}]", io::in_quotes(name), fmt::join(tensor.shape, ", ")));
    validate_cover(name, tensor, where);
  }
}

void validate(const Manifest& manifest, const std::string& where) {
  std::set<std::string> file_names;
  for (const File& file : manifest.files) {
    if (!io::is_plain_name(file.name) || file.name == manifest_name)
      refuse(where,
             fmt::format("{} isn't the name of a data file in the checkpoint's folder", io::in_quotes(file.name)));
    if (!file_names.insert(file.name).second) refuse(where, fmt::format("file {} is listed twice", file.name));
  }
  validate_tensors(manifest.tensors, where);
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const Part& part : tensor.parts) {
      if (part.file >= manifest.files.size())
        refuse(where, fmt::format("tensor {} lies in a file that isn't listed", io::in_quotes(name)));
      const File& file = manifest.files[part.file];
      const std::uint64_t bytes = bytes_of(part, tensor.type);
      if (part.position > file.bytes || bytes > file.bytes - part.position)
        refuse(where, fmt::format("tensor {} lies beyond the end of {}", io::in_quotes(name), file.name));
      if (part.chunks.size() != (bytes + manifest.chunk_bytes - 1) / manifest.chunk_bytes)
        refuse(where, fmt::format("tensor {} has {} checksums for {} bytes in {}", io::in_quotes(name),
                                  part.chunks.size(), bytes, file.name));
    }
  }
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const std::vector<Extent> extents = extents_of(manifest, f);
    for (std::size_t i = 1; i < extents.size(); ++i)
      if (extents[i].begin < extents[i - 1].end)
        refuse(where, fmt::format("tensors {} and {} overlap in {}", io::in_quotes(extents[i - 1].name),
                                  io::in_quotes(extents[i].name), manifest.files[f].name));
  }
}

std::uint64_t bytes_of(const Part& part, base::Dtype type) {
  return static_cast<std::uint64_t>(numel_of(part.runs)) * base::size_of(type);
}

std::vector<Extent> extents_of(const Manifest& manifest, std::size_t file) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : manifest.tensors)
    for (const Part& part : tensor.parts)
      if (const std::uint64_t bytes = bytes_of(part, tensor.type); part.file == file && bytes > 0)
        extents.push_back({part.position, part.position + bytes, name});
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  return extents;
}

std::string structure_checksum(int descriptor, const fs::path& path, std::uint64_t bytes,
                               const std::vector<Extent>& extents) {
  io::Xxh3 hash;
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const std::span piece(buffer.data(),
                            static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, buffer.size())));
      io::read_at(descriptor, piece, begin, path);
      hash.add(piece);
      begin += piece.size();
    }
  };
  std::uint64_t at = 0;
  for (const Extent& extent : extents) {
    add(at, extent.begin);
    at = extent.end;
  }
  add(at, bytes);
  return hash.hex_128();
}

json to_json(const std::map<std::string, Tensor>& tensors) {
  json out = json::object();
  for (const auto& [name, tensor] : tensors) {
    json parts = json::array();
    for (const Part& part : tensor.parts) {
      json runs = json::array();
      for (const Intervals& run : part.runs)
        runs.push_back(run.repeat == 1 ? json{run.offset, run.count}
                                       : json{run.offset, run.count, run.stride, run.repeat});
      std::string chunks;
      chunks.reserve(part.chunks.size() * 16);
      for (const std::uint64_t chunk : part.chunks) fmt::format_to(std::back_inserter(chunks), "{:016x}", chunk);
      parts.push_back(
          {{"file", part.file}, {"position", part.position}, {"slices", std::move(runs)}, {"xxh3_64", chunks}});
    }
    out[name] = {{"dtype", base::name_of(tensor.type)}, {"shape", tensor.shape}, {"parts", std::move(parts)}};
  }
  return out;
}

namespace {

/// Access to a value that must be there, with an error that says where.
const json& need(const json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) refuse(where, fmt::format("'{}' is missing", key));
  return object[key];
}

std::int64_t need_size(const json& object, const char* key, const std::string& where) {
  std::int64_t value = 0;
  if (!io::to_size(need(object, key, where), value)) refuse(where, fmt::format("'{}' isn't a whole number", key));
  return value;
}

std::string need_text(const json& object, const char* key, const std::string& where) {
  const json& value = need(object, key, where);
  if (!value.is_string()) refuse(where, fmt::format("'{}' isn't text", key));
  return value.get<std::string>();
}

const json& need_list(const json& object, const char* key, const std::string& where) {
  const json& value = need(object, key, where);
  if (!value.is_array()) refuse(where, fmt::format("'{}' isn't a list", key));
  return value;
}

/// A file that is missing or cut short is named before anything else is made of the description.
void check_size(const fs::path& checkpoint, const File& file) {
  if (!io::is_plain_name(file.name)) return;  // validate refuses it
  const fs::path path = checkpoint / file.name;
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) throw CheckpointError(base::system_error(path.string(), error.value()));
  if (size != file.bytes)
    refuse(path.string(), fmt::format("has {} bytes instead of the {} that were written", size, file.bytes));
}

}  // namespace

std::map<std::string, Tensor> tensors_from_json(const json& object, const std::string& where) {
  if (!object.is_object()) refuse(where, "'tensors' isn't an object");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, described] : object.items()) {
    const std::string at = fmt::format("{}: tensor {}", where, io::in_quotes(name));
    Tensor tensor;
    if (const std::string dtype = need_text(described, "dtype", at); !base::parse_dtype(dtype, tensor.type))
      refuse(at, fmt::format("'{}' isn't a dtype", dtype));
    if (!io::to_sizes(need(described, "shape", at), tensor.shape) ||
        !count_elements(tensor.shape, tensor.type, tensor.numel))
      refuse(at, "'shape' isn't a list of sizes");
    for (const json& one : need_list(described, "parts", at)) {
      Part part;
      part.file = static_cast<std::size_t>(need_size(one, "file", at));
      part.position = static_cast<std::uint64_t>(need_size(one, "position", at));
      for (const json& item : need_list(one, "slices", at)) {
        std::vector<std::int64_t> run;
        if (!io::to_sizes(item, run) || (run.size() != 2 && run.size() != 4))
          refuse(at, "a slice isn't [offset, count] or [offset, count, stride, repeat]");
        part.runs.push_back(run.size() == 2 ? Intervals{run[0], run[1], 0, 1}
                                            : Intervals{run[0], run[1], run[2], run[3]});
      }
      const std::string chunks = need_text(one, "xxh3_64", at);
      if (chunks.size() % 16 != 0) refuse(at, "'xxh3_64' isn't a row of 16-digit checksums");
      for (std::size_t i = 0; i < chunks.size(); i += 16) {
        std::uint64_t chunk = 0;
        const char* end = chunks.data() + i + 16;
        const auto result = std::from_chars(chunks.data() + i, end, chunk, 16);
        if (result.ec != std::errc() || result.ptr != end) refuse(at, "'xxh3_64' isn't a row of 16-digit checksums");
        part.chunks.push_back(chunk);
      }
      tensor.parts.push_back(std::move(part));
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

std::string to_text(const Manifest& manifest) {
  json files = json::array();
  for (const File& file : manifest.files)
    files.push_back(
        {{"name", file.name}, {"rank", file.rank}, {"bytes", file.bytes}, {"structure_xxh3_128", file.structure}});
  // The small, human part first; then what may be long.
  std::string rest;
  const auto add = [&](const char* key, const json& value) {
    rest += fmt::format("{}\"{}\": {}", rest.empty() ? "" : ",\n", key, value.dump());
  };
  add("format", format_name);
  add("version", format_version);
  add("writer", "deepspeed-mpi " + std::string(base::version()));
  add("tag", manifest.tag);
  add("saved_at_ns", manifest.saved_at);
  add("ranks", manifest.ranks);
  add("chunk_bytes", manifest.chunk_bytes);
  add("state", manifest.state);
  add("files", files);
  add("tensors", to_json(manifest.tensors));
  rest += "}\n";
  return fmt::format("{}{}{}{}", first_line_begin, io::xxh3_128_hex(std::as_bytes(std::span(rest))), first_line_end,
                     rest);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  if (text.size() < first_line_size || !text.starts_with(first_line_begin) ||
      text.substr(first_line_begin.size() + 32, first_line_end.size()) != first_line_end)
    refuse(where, "isn't a manifest, or is cut short");
  const std::string_view said = text.substr(first_line_begin.size(), 32);
  const std::string_view rest = text.substr(first_line_size);
  if (io::xxh3_128_hex(std::as_bytes(std::span(rest))) != said)
    refuse(where, "is damaged: its content doesn't match its checksum");
  json object;
  try {
    object = io::parse_strict_json(text, where, 64);
  } catch (const base::DataError& error) {
    throw CheckpointError(error.what());
  }
  if (need_text(object, "format", where) != format_name)
    refuse(where, "isn't the manifest of a deepspeed-mpi checkpoint");
  if (const std::int64_t version = need_size(object, "version", where); version != format_version)
    refuse(where, fmt::format("has format version {}; this program reads version {} (written by {})", version,
                              format_version, need_text(object, "writer", where)));
  Manifest manifest;
  manifest.tag = need_text(object, "tag", where);
  manifest.saved_at = need_size(object, "saved_at_ns", where);
  manifest.ranks = static_cast<int>(std::min<std::int64_t>(need_size(object, "ranks", where), 1 << 30));
  manifest.chunk_bytes = static_cast<std::uint64_t>(need_size(object, "chunk_bytes", where));
  if (manifest.chunk_bytes == 0 || manifest.chunk_bytes > (std::uint64_t{1} << 30))
    refuse(where, "'chunk_bytes' isn't between 1 and 2^30");
  for (const json& file : need_list(object, "files", where))
    manifest.files.push_back({need_text(file, "name", where),
                              static_cast<int>(std::min<std::int64_t>(need_size(file, "rank", where), 1 << 30)),
                              static_cast<std::uint64_t>(need_size(file, "bytes", where)),
                              need_text(file, "structure_xxh3_128", where)});
  manifest.tensors = tensors_from_json(need(object, "tensors", where), where);
  manifest.state = need(object, "state", where);
  return manifest;
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / manifest_name;
  std::string text;
  try {
    text = io::read_whole_file(path, max_manifest_bytes);
  } catch (const base::IoError& error) {
    throw CheckpointError(error.what());
  }
  Manifest manifest = parse_manifest(text, path.string());
  for (const File& file : manifest.files) check_size(checkpoint, file);
  validate(manifest, path.string());
  return manifest;
}

}  // namespace deepspeed::checkpoint
