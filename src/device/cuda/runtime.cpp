// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/check.cuh"

namespace deepspeed::device::cuda {
namespace {

int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

Info device_info(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  Info info;
  info.name = properties.name;
  info.uuid = uuid_text(properties.uuid);
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.bytes = properties.totalGlobalMem;
  return info;
}

void set_device(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

// Acts on another device for a moment.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(current_device()) {
    if (device != before_) set_device(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

Memory memory(int device) {
  const OnDevice on(device);
  Memory result;
  check(cudaMemGetInfo(&result.free, &result.total), "cudaMemGetInfo");
  return result;
}

void* allocate(std::size_t bytes) {
  void* pointer = nullptr;
  if (const cudaError_t error = cudaMalloc(&pointer, bytes); error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const Memory left = memory(current_device());
    throw base::DeviceError(fmt::format("out of GPU memory: {} bytes wanted, {} of {} free on GPU {}", bytes, left.free,
                                        left.total, current_device()));
  } else {
    check(error, "cudaMalloc");
  }
  return pointer;
}

void release(void* pointer) {
  check(cudaFree(pointer), "cudaFree");
}

void* allocate_host(std::size_t bytes) {
  void* pointer = nullptr;
  check(cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable), "cudaHostAlloc");
  return pointer;
}

void release_host(void* pointer) {
  check(cudaFreeHost(pointer), "cudaFreeHost");
}

void copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "cudaMemcpyAsync");
}

void fill(void* to, int byte, std::size_t bytes, Stream stream) {
  check(cudaMemsetAsync(to, byte, bytes, native(stream)), "cudaMemsetAsync");
}

Stream stream_create(bool high_priority) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? greatest : least),
        "cudaStreamCreateWithPriority");
  return reinterpret_cast<Stream>(stream);
}

// Owners destroy in their destructors, where nobody could catch: a failure here is one that came up before.
void stream_destroy(Stream stream) {
  cudaStreamDestroy(native(stream));
}

void stream_synchronize(Stream stream) {
  check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
}

void stream_wait(Stream stream, Event event) {
  check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
}

Event event_create(bool timing) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  return reinterpret_cast<Event>(event);
}

void event_destroy(Event event) {
  cudaEventDestroy(native(event));
}

void event_record(Event event, Stream stream) {
  check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord");
}

bool event_done(Event event) {
  const cudaError_t error = cudaEventQuery(native(event));
  if (error == cudaErrorNotReady) return false;
  check(error, "cudaEventQuery");
  return true;
}

void event_synchronize(Event event) {
  check(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
}

float event_elapsed_ms(Event from, Event to) {
  float ms = 0.0F;
  check(cudaEventElapsedTime(&ms, native(from), native(to)), "cudaEventElapsedTime");
  return ms;
}

}  // namespace

void fill_runtime(Table& table) {
  table.device_count = device_count;
  table.device_info = device_info;
  table.set_device = set_device;
  table.current_device = current_device;
  table.memory = memory;
  table.allocate = allocate;
  table.release = release;
  table.allocate_host = allocate_host;
  table.release_host = release_host;
  table.copy = copy;
  table.fill = fill;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait = stream_wait;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_done = event_done;
  table.event_synchronize = event_synchronize;
  table.event_elapsed_ms = event_elapsed_ms;
}

}  // namespace deepspeed::device::cuda
