// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hdf5.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/handle.h"

/// An HDF5 file driver that keeps what is written in pages of memory and nothing else: a file with room for terabytes
/// of data takes only its structure. Used where a file is made. HDF5 thus never sees the disk: a file whose closing
/// failed there can't be closed any more and ends the process at its exit.
namespace deepspeed::io {

struct SparseMemory {
  static constexpr std::uint64_t page_size = 4096;
  using Page = std::array<std::byte, page_size>;
  std::map<std::uint64_t, Page> pages;  ///< by number; what isn't there is zero
  std::uint64_t size = 0;               ///< of the whole file
};

void unregister_driver(hid_t driver);
using Hdf5Driver = base::Handle<hid_t, unregister_driver, hid_t{-1}>;

/// Registers the driver (call under the HDF5 lock). It must outlive the files that are opened with it.
Hdf5Driver register_memory_driver();
/// Lets a file-access property list write to `memory`. A negative result is an HDF5 error.
herr_t use_memory(hid_t access, const Hdf5Driver& driver, SparseMemory& memory);

}  // namespace deepspeed::io
