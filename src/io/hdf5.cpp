// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.h"

#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/handle.h"
#include "io/file.h"
#include "io/hdf5_memory.h"

namespace deepspeed::io {

namespace fs = std::filesystem;
using base::Dtype;
using base::IoError;

namespace {

/// Holds the process-wide lock and silences HDF5's own printing while a call runs.
class Session {
 public:
  Session() : lock_(mutex()) {
    H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Session() { H5Eset_auto2(H5E_DEFAULT, print_, print_data_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex one;
    return one;
  }
  std::lock_guard<std::recursive_mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

// Handles are closed under the lock of a Session that is open around them.
template <herr_t (*Close)(hid_t)>
void close_id(hid_t id) {
  Close(id);
}
using Property = base::Handle<hid_t, close_id<H5Pclose>, hid_t{-1}>;
using Space = base::Handle<hid_t, close_id<H5Sclose>, hid_t{-1}>;
using Type = base::Handle<hid_t, close_id<H5Tclose>, hid_t{-1}>;
using Dataset = base::Handle<hid_t, close_id<H5Dclose>, hid_t{-1}>;
using Attribute = base::Handle<hid_t, close_id<H5Aclose>, hid_t{-1}>;
using Object = base::Handle<hid_t, close_id<H5Oclose>, hid_t{-1}>;
using FileId = base::Handle<hid_t, close_id<H5Fclose>, hid_t{-1}>;

herr_t add_line(unsigned, const H5E_error2_t* error, void* text) {
  auto& out = *static_cast<std::string*>(text);
  if (error->desc != nullptr && *error->desc != '\0') {
    if (!out.empty()) out += " <- ";
    out += error->desc;
  }
  return 0;
}

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  std::string stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, add_line, &stack);
  H5Eclear2(H5E_DEFAULT);
  throw IoError(fmt::format("{}: HDF5 can't {}: {}", path.string(), what, stack.empty() ? "no reason given" : stack));
}

// Small floats that HDF5 has no name for: sign at the top, then exponent, then mantissa.
hid_t small_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(type, exponent_bits + mantissa_bits, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, bias);
  return type;
}

hid_t boolean() {
  const hid_t type = H5Tenum_create(H5T_STD_I8LE);
  signed char value = 0;
  H5Tenum_insert(type, "FALSE", &value);
  value = 1;
  H5Tenum_insert(type, "TRUE", &value);
  return type;
}

/// The type in files; in memory too, since both are little-endian.
Type file_type(Dtype type) {
  switch (type) {
    case Dtype::f64:
      return Type(H5Tcopy(H5T_IEEE_F64LE));
    case Dtype::f32:
      return Type(H5Tcopy(H5T_IEEE_F32LE));
    case Dtype::f16:
      return Type(small_float(5, 10, 15));
    case Dtype::bf16:
      return Type(small_float(8, 7, 127));
    case Dtype::i64:
      return Type(H5Tcopy(H5T_STD_I64LE));
    case Dtype::i32:
      return Type(H5Tcopy(H5T_STD_I32LE));
    case Dtype::i16:
      return Type(H5Tcopy(H5T_STD_I16LE));
    case Dtype::i8:
      return Type(H5Tcopy(H5T_STD_I8LE));
    case Dtype::u8:
      return Type(H5Tcopy(H5T_STD_U8LE));
    case Dtype::boolean:
      return Type(boolean());
  }
  return Type();
}

constexpr std::array all_types{Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i64,
                               Dtype::i32, Dtype::i16, Dtype::i8,  Dtype::u8,   Dtype::boolean};

Space make_space(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return Space(H5Screate(H5S_SCALAR));
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  return Space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr));
}

std::vector<hsize_t> sizes_of(const Space& space) {
  const int rank = H5Sget_simple_extent_ndims(space.get());
  std::vector<hsize_t> sizes(rank > 0 ? static_cast<std::size_t>(rank) : 0);
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
  return sizes;
}

}  // namespace

struct Hdf5File::Impl {
  fs::path path;
  // Of a file that is being made; declared before `file`, which uses them to the end.
  std::unique_ptr<SparseMemory> memory;
  Hdf5Driver driver;
  FileId file;

  template <class Id>
  Id need(hid_t id, const char* what, const std::string& name) const {
    if (id < 0) fail(path, fmt::format("{} '{}'", what, name));
    return Id(id);
  }
  void check(herr_t status, const char* what, const std::string& name) const {
    if (status < 0) fail(path, fmt::format("{} '{}'", what, name));
  }
  Dataset open_dataset(const std::string& name) const {
    return need<Dataset>(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), "open dataset", name);
  }
  Object open_object(const std::string& name) const {
    return need<Object>(H5Oopen(file.get(), name.c_str(), H5P_DEFAULT), "open", name);
  }
};

Hdf5File::Hdf5File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;

Hdf5File& Hdf5File::operator=(Hdf5File&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

Hdf5File::~Hdf5File() {
  if (!impl_ || !impl_->file) return;
  const Session session;
  impl_->file.reset();
  impl_->driver.reset();
}

namespace {
Property access_properties() {
  Property access(H5Pcreate(H5P_FILE_ACCESS));
  // A threshold of 1, not 4096: else a small neighbour may lie in the padding that a rounded-up direct write covers.
  H5Pset_alignment(access.get(), 1, 4096);
  H5Pset_meta_block_size(access.get(), 65536);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V110);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
  // Parallel file systems are often mounted without locks; files here have one writer and are renamed into place.
  H5Pset_file_locking(access.get(), false, true);
#endif
  return access;
}
}  // namespace

Hdf5File Hdf5File::create(const fs::path& path) {
  const Session session;
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->memory = std::make_unique<SparseMemory>();
  impl->driver = register_memory_driver();
  const Property access = access_properties();
  if (!impl->driver || use_memory(access.get(), impl->driver, *impl->memory) < 0) fail(path, "write to memory");
  const Property creation(H5Pcreate(H5P_FILE_CREATE));
  H5Pset_obj_track_times(creation.get(), false);
  impl->file.reset(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()));
  if (!impl->file) fail(path, "create the file");
  return Hdf5File(std::move(impl));
}

Hdf5File Hdf5File::open(const fs::path& path) {
  const Session session;
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  const Property access = access_properties();
  impl->file.reset(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()));
  if (!impl->file) fail(path, "open the file");
  return Hdf5File(std::move(impl));
}

void Hdf5File::create_dataset(const std::string& name, Dtype type, const std::vector<std::int64_t>& shape) {
  const Session session;
  // HDF5 would make the groups itself, but with time stamps.
  const Property group_creation(H5Pcreate(H5P_GROUP_CREATE));
  H5Pset_obj_track_times(group_creation.get(), false);
  for (std::size_t slash = name.find('/', 1); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string group = name.substr(0, slash);
    if (H5Lexists(impl_->file.get(), group.c_str(), H5P_DEFAULT) <= 0)
      impl_->need<Object>(H5Gcreate2(impl_->file.get(), group.c_str(), H5P_DEFAULT, group_creation.get(), H5P_DEFAULT),
                          "create group", group);
  }
  const Property creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.get(), false);
  const Type stored = file_type(type);
  const Space space = impl_->need<Space>(make_space(shape).release(), "describe the shape of", name);
  impl_->need<Dataset>(
      H5Dcreate2(impl_->file.get(), name.c_str(), stored.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      "create dataset", name);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name, const std::string& text) {
  const Session session;
  const Object owner = impl_->open_object(object);
  const Type type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  const Space space(H5Screate(H5S_SCALAR));
  const auto attribute =
      impl_->need<Attribute>(H5Acreate2(owner.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
                             "create attribute", name);
  const char* value = text.c_str();
  impl_->check(H5Awrite(attribute.get(), type.get(), &value), "write attribute", name);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             const std::vector<std::int64_t>& values, std::int64_t columns) {
  const Session session;
  const Object owner = impl_->open_object(object);
  const auto count = static_cast<std::int64_t>(values.size());
  const Space space = make_space(columns > 0 ? std::vector{count / columns, columns} : std::vector{count});
  const auto attribute = impl_->need<Attribute>(
      H5Acreate2(owner.get(), name.c_str(), H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), "create attribute",
      name);
  if (!values.empty())
    impl_->check(H5Awrite(attribute.get(), H5T_NATIVE_INT64, values.data()), "write attribute", name);
}

std::uint64_t Hdf5File::offset(const std::string& name) const {
  const Session session;
  const Dataset dataset = impl_->open_dataset(name);
  const haddr_t place = H5Dget_offset(dataset.get());
  if (place == HADDR_UNDEF) fail(impl_->path, fmt::format("tell the place of dataset '{}'", name));
  return place;
}

void Hdf5File::close() {
  {
    const Session session;
    if (impl_->file && H5Fclose(impl_->file.release()) < 0) fail(impl_->path, "write the file out");
    impl_->driver.reset();
  }
  if (!impl_->memory) return;
  const std::unique_ptr<SparseMemory> memory = std::move(impl_->memory);
  const Descriptor file = create_file(impl_->path);
  // Only what HDF5 wrote takes room on the disk; the places of data stay holes until it comes.
  if (::ftruncate(file.get(), static_cast<off_t>(memory->size)) != 0)
    throw_system_error("can't write", impl_->path, errno);
  for (const auto& [number, page] : memory->pages) {
    const std::uint64_t at = number * SparseMemory::page_size;
    if (at >= memory->size) break;
    write_at(file.get(), Bytes(page).first(std::min<std::uint64_t>(page.size(), memory->size - at)), at, impl_->path);
  }
}

namespace {
void list_datasets(hid_t group, const std::string& prefix, int depth, std::vector<std::string>& out) {
  H5G_info_t info;
  // Hard links may form a circle.
  if (depth > 32 || H5Gget_info(group, &info) < 0) return;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const ssize_t length = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    if (length < 0) continue;
    std::string name(static_cast<std::size_t>(length), '\0');
    H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size() + 1, H5P_DEFAULT);
    H5L_info_t link;
    if (H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) continue;
    const Object object(H5Oopen(group, name.c_str(), H5P_DEFAULT));
    if (!object) continue;
    const H5I_type_t kind = H5Iget_type(object.get());
    if (kind == H5I_DATASET) out.push_back(prefix + name);
    if (kind == H5I_GROUP) list_datasets(object.get(), prefix + name + "/", depth + 1, out);
  }
}
}  // namespace

std::vector<std::string> Hdf5File::datasets() const {
  const Session session;
  std::vector<std::string> names;
  const Object root = impl_->open_object("/");
  list_datasets(root.get(), "", 0, names);
  return names;
}

std::vector<std::int64_t> Hdf5File::shape(const std::string& name) const {
  const Session session;
  const Dataset dataset = impl_->open_dataset(name);
  const std::vector<hsize_t> sizes = sizes_of(Space(H5Dget_space(dataset.get())));
  return {sizes.begin(), sizes.end()};
}

Dtype Hdf5File::type(const std::string& name) const {
  const Session session;
  const Dataset dataset = impl_->open_dataset(name);
  const Type stored(H5Dget_type(dataset.get()));
  for (const Dtype type : all_types)
    if (H5Tequal(stored.get(), file_type(type).get()) > 0) return type;
  throw IoError(fmt::format("{}: dataset '{}' has a type that isn't known here", impl_->path.string(), name));
}

std::int64_t Hdf5File::largest_integer(const std::string& name) const {
  const Session session;
  const Dataset dataset = impl_->open_dataset(name);
  const Type stored(H5Dget_type(dataset.get()));
  if (H5Tget_class(stored.get()) != H5T_INTEGER)
    throw IoError(fmt::format("{}: dataset '{}' is not of an integer type", impl_->path.string(), name));
  const std::size_t bits = H5Tget_precision(stored.get()) - (H5Tget_sign(stored.get()) == H5T_SGN_2 ? 1 : 0);
  return bits >= 63 ? std::numeric_limits<std::int64_t>::max() : (std::int64_t{1} << bits) - 1;
}

void Hdf5File::read(const std::string& name, std::int64_t start, base::Buffer out) const {
  const Session session;
  const Dataset dataset = impl_->open_dataset(name);
  const Space space(H5Dget_space(dataset.get()));
  const hssize_t total = H5Sget_simple_extent_npoints(space.get());
  if (start < 0 || out.numel < 0 || start > total || out.numel > total - start)
    throw IoError(fmt::format("{}: dataset '{}' has {} elements; {} from {} on were asked for", impl_->path.string(),
                              name, total, out.numel, start));
  if (out.numel == 0) return;
  // A run of row-major elements is a box only along the first dimension, so other runs are made of several boxes.
  const std::vector<hsize_t> sizes = sizes_of(space);
  if (!sizes.empty()) {
    H5Sselect_none(space.get());
    auto at = static_cast<hsize_t>(start);
    auto left = static_cast<hsize_t>(out.numel);
    while (left > 0) {
      // The outermost dimension at which `at` begins a whole row of everything below it, and enough is left for a row.
      hsize_t below = 1;
      std::size_t d = sizes.size() - 1;
      while (d > 0 && at % (below * sizes[d]) == 0 && left >= below * sizes[d]) below *= sizes[d--];
      std::vector<hsize_t> first(sizes.size(), 0), count(sizes.size(), 1);
      hsize_t rest = at / below;
      for (std::size_t i = d + 1; i < sizes.size(); ++i) count[i] = sizes[i];
      const hsize_t rows = std::min(left / below, sizes[d] - rest % sizes[d]);
      for (std::size_t i = d + 1; i-- > 0; rest /= sizes[i]) first[i] = rest % sizes[i];
      count[d] = rows;
      impl_->check(H5Sselect_hyperslab(space.get(), H5S_SELECT_OR, first.data(), nullptr, count.data(), nullptr),
                   "select in dataset", name);
      at += rows * below;
      left -= rows * below;
    }
  }
  const auto numel = static_cast<hsize_t>(out.numel);
  const Space memory(H5Screate_simple(1, &numel, nullptr));
  impl_->check(H5Dread(dataset.get(), file_type(out.type).get(), memory.get(), space.get(), H5P_DEFAULT, out.data),
               "read dataset", name);
}

std::string Hdf5File::text_attribute(const std::string& object, const std::string& name) const {
  const Session session;
  const Object owner = impl_->open_object(object);
  const auto attribute =
      impl_->need<Attribute>(H5Aopen(owner.get(), name.c_str(), H5P_DEFAULT), "open attribute", name);
  const Type stored(H5Aget_type(attribute.get()));
  if (H5Tget_class(stored.get()) != H5T_STRING || H5Tis_variable_str(stored.get()) <= 0)
    throw IoError(fmt::format("{}: attribute '{}' of '{}' isn't text", impl_->path.string(), name, object));
  const Space space(H5Aget_space(attribute.get()));
  if (H5Sget_simple_extent_npoints(space.get()) != 1)
    throw IoError(fmt::format("{}: attribute '{}' of '{}' isn't one text", impl_->path.string(), name, object));
  const Type type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5Tget_cset(stored.get()));
  char* value = nullptr;
  impl_->check(H5Aread(attribute.get(), type.get(), &value), "read attribute", name);
  std::string text = value == nullptr ? "" : value;
  H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, &value);
  return text;
}

std::vector<std::int64_t> Hdf5File::integer_attribute(const std::string& object, const std::string& name) const {
  const Session session;
  const Object owner = impl_->open_object(object);
  const auto attribute =
      impl_->need<Attribute>(H5Aopen(owner.get(), name.c_str(), H5P_DEFAULT), "open attribute", name);
  const Space space(H5Aget_space(attribute.get()));
  std::vector<std::int64_t> values(
      static_cast<std::size_t>(std::max<hssize_t>(0, H5Sget_simple_extent_npoints(space.get()))));
  if (!values.empty()) impl_->check(H5Aread(attribute.get(), H5T_NATIVE_INT64, values.data()), "read attribute", name);
  return values;
}

}  // namespace deepspeed::io
