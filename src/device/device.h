// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/handle.h"
#include "device/layers.h"

/// The accelerator, seen through one table of plain functions. All CUDA and NCCL code lies in a plug-in library that is
/// opened at run time where a driver and a device exist; without it everything here still links and answers why not.
namespace deepspeed::device {

using base::Buffer;
using base::ConstBuffer;
using base::Dtype;

// Opaque handles: a CUDA stream or event, a NCCL communicator. A null stream is CUDA's legacy default stream.
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Communicator = struct CommunicatorObject*;

struct Info {
  std::string name;
  std::string uuid;  ///< "GPU-" and 32 hexadecimal digits in groups, as nvidia-smi prints it
  int major = 0;     ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t bytes = 0;  ///< device memory
};

struct Memory {
  std::size_t free = 0;
  std::size_t total = 0;
};

/// What torch's caching allocator holds on a device, bytes.
struct TorchMemory {
  std::size_t allocated = 0;
  std::size_t peak_allocated = 0;
  std::size_t reserved = 0;
  std::size_t peak_reserved = 0;
};

/// One tensor, or one contiguous piece of several, of an Adam step. Device pointers, `numel` elements each.
struct AdamPiece {
  float* master = nullptr;         ///< fp32 weights, updated in place
  const void* gradient = nullptr;  ///< fp32, bf16 or fp16
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  void* working = nullptr;  ///< the model's own copy, rewritten from `master`; null = none
  std::int64_t numel = 0;
};

/// Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019). Coefficients are formed on the host in double and
/// rounded once, and the kernel fuses multiply and add only where its reference does, so that host and device agree.
struct AdamStep {
  Dtype gradient_type = Dtype::f32;
  Dtype working_type = Dtype::bf16;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;  ///< AdamW; false adds the decay to the gradient
  bool bias_correction = true;
  std::int64_t step = 1;                         ///< 1-based count of applied steps
  float gradient_scale = 1.0F;                   ///< multiplies the gradient as it is read
  const float* device_gradient_scale = nullptr;  ///< a further factor in device memory; null = 1
  const std::uint32_t* skip = nullptr;           ///< in device memory: not 0 = leave everything as it is; null = 0
};

enum class Reduction { sum, max, min };

using NcclId = std::array<char, 128>;

inline constexpr std::uint32_t table_version = 2;
/// Elements of fp64 device memory that `sum_of_squares` needs to work in.
inline constexpr std::size_t norm_scratch = 1024;

/// What the plug-in gives. Every function acts on the calling thread's current device, works asynchronously on its
/// stream where it takes one, and throws DeviceError (CommError for the collectives) naming the call that failed.
struct Table {
  std::uint32_t version;
  int cuda_version;  ///< of the toolkit it was built with, 13000 for 13.0
  int nccl_version;  ///< of the library in use, 22803 for 2.28.3

  int (*device_count)();
  Info (*device_info)(int device);
  void (*set_device)(int device);
  int (*current_device)();
  Memory (*memory)(int device);

  void* (*allocate)(std::size_t bytes);
  void (*release)(void* pointer);
  void* (*allocate_host)(std::size_t bytes);  ///< pinned, seen from every device
  void (*release_host)(void* pointer);
  /// Any direction. Host memory must be pinned for the copy to be asynchronous.
  void (*copy)(void* to, const void* from, std::size_t bytes, Stream stream);
  void (*fill)(void* to, int byte, std::size_t bytes, Stream stream);

  Stream (*stream_create)(bool high_priority);
  void (*stream_destroy)(Stream stream);
  void (*stream_synchronize)(Stream stream);
  void (*stream_wait)(Stream stream, Event event);
  Event (*event_create)(bool timing);
  void (*event_destroy)(Event event);
  void (*event_record)(Event event, Stream stream);
  bool (*event_done)(Event event);
  void (*event_synchronize)(Event event);
  float (*event_elapsed_ms)(Event from, Event to);

  /// torch's current stream of the current device: what its operators were queued on.
  Stream (*torch_stream)();
  TorchMemory (*torch_memory)(int device);
  void (*torch_reset_peak)(int device);
  void (*torch_empty_cache)();

  void (*adam)(const AdamPiece* pieces, std::size_t count, const AdamStep& step, Stream stream);
  /// `sum` (fp64, device) = the sum of squares of all elements (fp32, bf16 or fp16), formed in fp64 in a fixed order;
  /// `not_finite` (device) = 1 if any element is an infinity or NaN, else 0. `scratch`: norm_scratch doubles.
  void (*sum_of_squares)(const ConstBuffer* pieces, std::size_t count, double* sum, std::uint32_t* not_finite,
                         double* scratch, Stream stream);
  /// output = round(input * scale), between fp32, bf16 and fp16; equal numel. In place only for equal types.
  void (*cast)(ConstBuffer input, Buffer output, float scale, Stream stream);

  // Layers of a transformer; device/layers.h says what each reads and writes.
  void (*layer_norm_forward)(const NormForward& norm, Stream stream);
  void (*layer_norm_backward)(const NormBackward& norm, Stream stream);
  void (*rms_norm_forward)(const NormForward& norm, Stream stream);
  void (*rms_norm_backward)(const NormBackward& norm, Stream stream);
  void (*gelu_forward)(const GeluForward& gelu, Stream stream);
  void (*gelu_backward)(const GeluBackward& gelu, Stream stream);
  void (*column_sum)(const ColumnSum& sum, Stream stream);
  void (*swiglu_forward)(const SwigluForward& swiglu, Stream stream);
  void (*swiglu_backward)(const SwigluBackward& swiglu, Stream stream);
  void (*rope)(const Rope& rope, Stream stream);
  void (*cross_entropy)(const CrossEntropy& loss, Stream stream);
  /// `losses` [rows] of `cross_entropy`, or null to count the targets alone (sum and mean 0), before it.
  void (*loss_sum)(const float* losses, const std::int64_t* targets, std::int64_t rows, std::int64_t ignored,
                   LossSum* result, Stream stream);
  void (*embedding_backward)(const EmbeddingBackward& embedding, Stream stream);
  std::size_t (*embedding_scratch)(std::int64_t count, std::int64_t width);

  NcclId (*nccl_id)();
  /// Collective over the `size` ranks that hold the same id; not between group_begin and group_end.
  Communicator (*comm_create)(const NcclId& id, int rank, int size);
  void (*comm_destroy)(Communicator comm);
  /// Ends what runs on it and frees it; the way out after an error or a hang.
  void (*comm_abort)(Communicator comm);
  /// An error that came up after the call that queued the work; empty = none.
  std::string (*comm_error)(Communicator comm);
  void (*all_reduce)(Communicator comm, ConstBuffer input, Buffer output, Reduction op, Stream stream);
  /// `input`: one slice of output.numel elements for each rank.
  void (*reduce_scatter)(Communicator comm, ConstBuffer input, Buffer output, Reduction op, Stream stream);
  /// `output`: one slice of input.numel elements for each rank; `input` may be the own slice.
  void (*all_gather)(Communicator comm, ConstBuffer input, Buffer output, Stream stream);
  void (*broadcast)(Communicator comm, Buffer buffer, int root, Stream stream);
  void (*send)(Communicator comm, ConstBuffer buffer, int to, Stream stream);
  void (*receive)(Communicator comm, Buffer buffer, int from, Stream stream);
  /// Collectives between the two are started as one.
  void (*group_begin)();
  void (*group_end)();
};

/// Why there is, or isn't, an accelerator to use.
enum class State {
  loaded,
  turned_off,       ///< DS_ACCELERATOR=cpu
  no_driver,        ///< libcuda.so.1 can't be opened
  driver_failed,    ///< the driver is there but doesn't start
  no_device,        ///< the driver sees no GPU (or CUDA_VISIBLE_DEVICES hides them)
  no_plugin,        ///< built without it, or its file is missing or from another version
  driver_too_old,   ///< for the CUDA major version of the plug-in
  no_code,          ///< a visible GPU's architecture isn't among those built for
  missing_library,  ///< the plug-in, or torch's CUDA library, can't be opened
};
/// "loaded", "turned off", "no driver", ...
const char* name_of(State state);

struct Opened {
  State state = State::no_driver;
  std::string reason;  ///< one line for people: what was found, and what to do if a GPU was expected
  int devices = 0;     ///< visible GPUs
  const Table* table = nullptr;
};

/// Looks for driver, device and plug-in, once in the life of the process, and opens the plug-in if all are there. Must
/// be called before the first torch operator runs: torch looks for its CUDA part once. `DS_ACCELERATOR` = cpu turns the
/// accelerator off, = cuda demands it (DeviceError with the reason if it can't be had), another value is a ConfigError.
const Opened& open();

/// The plug-in's functions; DeviceError with the reason if there is no accelerator. Calls open().
const Table& table();

/// What `open` looks at; tests put other things in its place.
struct Places {
  std::string accelerator;    ///< value of DS_ACCELERATOR
  std::string driver;         ///< libcuda.so.1
  std::string plugin;         ///< libdeepspeed_cuda.so beside this library
  std::string architectures;  ///< those the plug-in has code for, with commas; empty = built without it
  int cuda_version = 0;       ///< of the toolkit the plug-in was built with
};
Places own_places();
Opened open_at(const Places& places);

/// Whether code built for `architectures` ("80-real,90,120-virtual") runs on a GPU of this compute capability: binary
/// code within its major version from its minor on, PTX ("virtual", or no suffix) on everything newer too.
bool has_code_for(const std::string& architectures, int major, int minor);

// Owners of the handles above.
void destroy_stream(Stream stream);
void destroy_event(Event event);
void destroy_communicator(Communicator comm);
using StreamHandle = base::Handle<Stream, destroy_stream>;
using EventHandle = base::Handle<Event, destroy_event>;
using CommunicatorHandle = base::Handle<Communicator, destroy_communicator>;

}  // namespace deepspeed::device
