// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "base/error.h"

namespace deepspeed::device {
namespace {

namespace fs = std::filesystem;

// The few entry points of the driver that are needed before the plug-in may be opened, typed after cuda.h.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*version)(int* version) = nullptr;
  int (*count)(int* count) = nullptr;
  int (*get)(int* device, int ordinal) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
  int (*error_text)(int error, const char** text) = nullptr;
};
constexpr int error_no_device = 100;
constexpr int attribute_major = 75;
constexpr int attribute_minor = 76;

template <class Function>
bool find(void* library, const char* name, Function& function) {
  void* symbol = dlsym(library, name);
  std::memcpy(&function, &symbol, sizeof symbol);  // POSIX's way from object to function pointer
  return symbol != nullptr;
}

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

std::string text_of(const Driver& driver, int error) {
  const char* text = nullptr;
  if (driver.error_text != nullptr) driver.error_text(error, &text);
  return fmt::format("error {}{}{}", error, text == nullptr ? "" : ", ", text == nullptr ? "" : text);
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The folder of a library that this process has loaded; empty if it hasn't.
std::string folder_of_loaded(const char* file) {
  struct Search {
    std::string_view file;
    std::string folder;
  } search{file, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        const fs::path path(info->dlpi_name == nullptr ? "" : info->dlpi_name);
        if (path.filename() != s->file) return 0;
        s->folder = path.parent_path();
        return 1;
      },
      &search);
  return search.folder;
}

Opened answer(State state, std::string reason, int devices = 0) {
  return Opened{state, std::move(reason), devices, nullptr};
}

}  // namespace

const char* name_of(State state) {
  switch (state) {
    case State::loaded:
      return "loaded";
    case State::turned_off:
      return "turned off";
    case State::no_driver:
      return "no driver";
    case State::driver_failed:
      return "driver failed";
    case State::no_device:
      return "no device";
    case State::no_plugin:
      return "no plug-in";
    case State::driver_too_old:
      return "driver too old";
    case State::no_code:
      return "no code for this GPU";
    case State::missing_library:
      return "missing library";
  }
  return "?";
}

bool has_code_for(const std::string& architectures, int major, int minor) {
  const int device = major * 10 + minor;
  std::string_view rest = architectures;
  while (!rest.empty()) {
    const std::size_t end = rest.find(',');
    const std::string_view entry = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    const int number = std::atoi(std::string(entry).c_str());
    if (number == 0) continue;
    const std::string_view suffix = entry.substr(std::min(entry.find_first_not_of("0123456789"), entry.size()));
    // "90a" is for that very chip and "100f" for its family; neither is carried on to newer ones.
    const bool specific = suffix.starts_with('a');
    const bool family = suffix.starts_with('f');
    const bool binary = !suffix.ends_with("-virtual");
    const bool ptx = !suffix.ends_with("-real") && !specific && !family;
    if (specific ? device == number : binary && number / 10 == major && number <= device) return true;
    if (ptx && number <= device) return true;
  }
  return false;
}

Places own_places() {
  Places places;
  if (const char* value = std::getenv("DS_ACCELERATOR"); value != nullptr) places.accelerator = value;
  places.driver = "libcuda.so.1";
  Dl_info self{};
  static const char anchor = 0;
  if (dladdr(&anchor, &self) != 0 && self.dli_fname != nullptr) {
    places.plugin = fs::absolute(self.dli_fname).parent_path() / "libdeepspeed_cuda.so";
  }
  places.architectures = DS_CUDA_ARCHITECTURES;
  places.cuda_version = DS_CUDA_VERSION;
  return places;
}

Opened open_at(const Places& places) {
  if (places.accelerator == "cpu") return answer(State::turned_off, "DS_ACCELERATOR=cpu turns the GPU off");

  // The driver's library is never closed: it keeps threads and state of its own.
  void* library = dlopen(places.driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return answer(State::no_driver, fmt::format("no NVIDIA driver ({})", loader_error()));
  }
  Driver driver;
  find(library, "cuGetErrorString", driver.error_text);
  if (!find(library, "cuInit", driver.init) || !find(library, "cuDriverGetVersion", driver.version) ||
      !find(library, "cuDeviceGetCount", driver.count) || !find(library, "cuDeviceGet", driver.get) ||
      !find(library, "cuDeviceGetAttribute", driver.attribute)) {
    return answer(State::driver_failed, fmt::format("{} isn't a CUDA driver ({})", places.driver, loader_error()));
  }
  int devices = 0;
  int error = driver.init(0);
  if (error == 0) error = driver.count(&devices);
  if (error == error_no_device || (error == 0 && devices == 0)) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return answer(State::no_device, visible == nullptr ? std::string("the NVIDIA driver sees no GPU")
                                                       : fmt::format("the NVIDIA driver sees no GPU with "
                                                                     "CUDA_VISIBLE_DEVICES={}",
                                                                     visible));
  }
  if (error != 0) {
    return answer(State::driver_failed,
                  fmt::format("the NVIDIA driver doesn't start: {}; see whether nvidia-smi works on this host",
                              text_of(driver, error)));
  }

  if (places.architectures.empty()) {
    return answer(State::no_plugin,
                  fmt::format("{} GPUs are visible, but this build has no CUDA plug-in; build it where a CUDA toolkit "
                              "with NCCL is found (DS_CUDA=ON)",
                              devices),
                  devices);
  }
  if (!fs::exists(places.plugin)) {
    return answer(State::no_plugin,
                  fmt::format("{} GPUs are visible, but the CUDA plug-in {} is missing; install it beside "
                              "libdeepspeed_device.so",
                              devices, places.plugin),
                  devices);
  }
  // Within one major version an older driver runs what a newer toolkit made.
  int version = 0;
  driver.version(&version);
  if (version / 1000 < places.cuda_version / 1000) {
    return answer(State::driver_too_old,
                  fmt::format("the NVIDIA driver is made for CUDA {}, the CUDA plug-in needs {}.0 or newer; update the "
                              "driver, or build with an older toolkit",
                              cuda_version_text(version), places.cuda_version / 1000),
                  devices);
  }
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    int device = 0;
    int major = 0;
    int minor = 0;
    error = driver.get(&device, ordinal);
    if (error == 0) error = driver.attribute(&major, attribute_major, device);
    if (error == 0) error = driver.attribute(&minor, attribute_minor, device);
    if (error != 0) {
      return answer(State::driver_failed, fmt::format("GPU {} can't be asked: {}", ordinal, text_of(driver, error)),
                    devices);
    }
    if (!has_code_for(places.architectures, major, minor)) {
      return answer(State::no_code,
                    fmt::format("GPU {} has compute capability {}.{}, the CUDA plug-in has code for {}; hide that GPU "
                                "with CUDA_VISIBLE_DEVICES, or build with DS_CUDA_ARCHITECTURES={}{}",
                                ordinal, major, minor, places.architectures, major, minor),
                    devices);
    }
  }

  // torch's own CUDA library first: its run path knows where torch keeps NCCL and the others that the plug-in needs.
  if (const std::string folder = folder_of_loaded("libtorch_cpu.so"); !folder.empty()) {
    const std::string torch_cuda = folder + "/libtorch_cuda.so";
    if (dlopen(torch_cuda.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      return answer(State::missing_library,
                    fs::exists(torch_cuda)
                        ? fmt::format("torch's CUDA library can't be opened: {}", loader_error())
                        : fmt::format("libtorch in {} is a CPU-only build (no libtorch_cuda.so)", folder),
                    devices);
    }
  } else {
    dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL);  // a program without torch: only where the search path has it
  }
  void* plugin = dlopen(places.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    return answer(State::missing_library, fmt::format("the CUDA plug-in can't be opened: {}", loader_error()), devices);
  }
  const Table* (*entry)() = nullptr;
  if (!find(plugin, "deepspeed_device_table", entry) || entry()->version != table_version) {
    return answer(State::no_plugin,
                  fmt::format("the CUDA plug-in {} is from another version; install it anew", places.plugin), devices);
  }
  Opened opened{State::loaded, fmt::format("{} GPUs, CUDA plug-in {}", devices, places.plugin), devices, entry()};
  return opened;
}

const Opened& open() {
  static std::mutex mutex;
  static bool done = false;
  static Opened opened;
  const std::lock_guard lock(mutex);
  if (!done) {
    const Places places = own_places();
    if (!places.accelerator.empty() && places.accelerator != "cpu" && places.accelerator != "cuda") {
      throw base::ConfigError(fmt::format("DS_ACCELERATOR={}: not supported; use cpu or cuda", places.accelerator));
    }
    opened = open_at(places);
    done = true;
  }
  if (opened.state != State::loaded) {
    const char* demanded = std::getenv("DS_ACCELERATOR");
    if (demanded != nullptr && std::string_view(demanded) == "cuda") {
      throw base::DeviceError("DS_ACCELERATOR=cuda: " + opened.reason);
    }
  }
  return opened;
}

const Table& table() {
  const Opened& opened = open();
  if (opened.table == nullptr) throw base::DeviceError("no GPU can be used: " + opened.reason);
  return *opened.table;
}

void destroy_stream(Stream stream) {
  table().stream_destroy(stream);
}
void destroy_event(Event event) {
  table().event_destroy(event);
}
void destroy_communicator(Communicator comm) {
  table().comm_destroy(comm);
}

}  // namespace deepspeed::device
