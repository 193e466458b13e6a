// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5_memory.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace deepspeed::io {

namespace {

struct MemoryFile {
  H5FD_t common;  // HDF5's own part, which must come first
  SparseMemory* memory;
  haddr_t end;  // of what HDF5 has given out
};

MemoryFile* cast(H5FD_t* file) {
  return reinterpret_cast<MemoryFile*>(file);
}
const MemoryFile* cast(const H5FD_t* file) {
  return reinterpret_cast<const MemoryFile*>(file);
}

H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
  const auto* memory = static_cast<SparseMemory* const*>(H5Pget_driver_info(access));
  if (memory == nullptr) return nullptr;
  auto* file = new (std::nothrow) MemoryFile{};
  if (file != nullptr) file->memory = *memory;
  return reinterpret_cast<H5FD_t*>(file);
}

herr_t close(H5FD_t* file) {
  delete cast(file);
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const auto *x = cast(a)->memory, *y = cast(b)->memory;
  return x == y ? 0 : std::less<>()(x, y) ? -1 : 1;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr)
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t get_end(const H5FD_t* file, H5FD_mem_t) {
  return cast(file)->end;
}

herr_t set_end(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  cast(file)->end = end;
  return 0;
}

haddr_t get_size(const H5FD_t* file, H5FD_mem_t) {
  return cast(file)->memory->size;
}

/// Calls `piece(page number, offset in the page, bytes, bytes before)` for each page that [address, +size) touches.
template <class Piece>
void for_pages(haddr_t address, std::size_t size, Piece&& piece) {
  for (std::size_t done = 0; done < size;) {
    const std::uint64_t at = address + done, begin = at % SparseMemory::page_size;
    const std::size_t count = std::min<std::size_t>(size - done, SparseMemory::page_size - begin);
    piece(at / SparseMemory::page_size, begin, count, done);
    done += count;
  }
}

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* out) {
  const SparseMemory& memory = *cast(file)->memory;
  for_pages(address, size, [&](std::uint64_t number, std::uint64_t begin, std::size_t count, std::size_t done) {
    auto* to = static_cast<std::byte*>(out) + done;
    const auto page = memory.pages.find(number);
    if (page == memory.pages.end())
      std::memset(to, 0, count);
    else
      std::memcpy(to, page->second.data() + begin, count);
  });
  return 0;
}

herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* in) {
  SparseMemory& memory = *cast(file)->memory;
  try {
    for_pages(address, size, [&](std::uint64_t number, std::uint64_t begin, std::size_t count, std::size_t done) {
      SparseMemory::Page& page = memory.pages[number];
      std::memcpy(page.data() + begin, static_cast<const std::byte*>(in) + done, count);
    });
  } catch (const std::exception&) {  // no memory; exceptions mustn't cross C code
    return -1;
  }
  memory.size = std::max<std::uint64_t>(memory.size, address + size);
  return 0;
}

herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
  cast(file)->memory->size = cast(file)->end;
  return 0;
}

}  // namespace

void unregister_driver(hid_t driver) {
  H5FDunregister(driver);
}

Hdf5Driver register_memory_driver() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(512);  // of the range for drivers that aren't registered anywhere
#endif
  driver.name = "deepspeed_sparse_memory";
  driver.maxaddr = HADDR_MAX;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(SparseMemory*);
  driver.open = open;
  driver.close = close;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = get_end;
  driver.set_eoa = set_end;
  driver.get_eof = get_size;
  driver.read = read;
  driver.write = write;
  driver.truncate = truncate;
  // One list of free places for everything, as the library's own drivers have it.
  constexpr H5FD_mem_t single[] = H5FD_FLMAP_SINGLE;
  std::copy(std::begin(single), std::end(single), driver.fl_map);
  return Hdf5Driver(H5FDregister(&driver));
}

herr_t use_memory(hid_t access, const Hdf5Driver& driver, SparseMemory& memory) {
  SparseMemory* place = &memory;
  return H5Pset_driver(access, driver.get(), &place);
}

}  // namespace deepspeed::io
