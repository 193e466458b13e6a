// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <cstring>

#include "cuda/check.cuh"

namespace deepspeed::device::cuda {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

ncclComm_t native(Communicator comm) {
  return reinterpret_cast<ncclComm_t>(comm);
}

void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess) return;
  std::string message = std::string(call) + ": " + ncclGetErrorString(result);
  if (const char* last = ncclGetLastError(comm); last != nullptr && *last != '\0')
    message += std::string(" (") + last + ")";
  throw base::CommError(message);
}

ncclDataType_t type_of(Dtype type, const char* call) {
  switch (type) {
    case Dtype::f64:
      return ncclFloat64;
    case Dtype::f32:
      return ncclFloat32;
    case Dtype::f16:
      return ncclFloat16;
    case Dtype::bf16:
      return ncclBfloat16;
    case Dtype::i64:
      return ncclInt64;
    case Dtype::i32:
      return ncclInt32;
    case Dtype::i8:
      return ncclInt8;
    case Dtype::u8:
    case Dtype::boolean:
      return ncclUint8;
    case Dtype::i16:
      break;
  }
  throw base::CommError(std::string(call) + ": NCCL has no type for " + std::string(base::name_of(type)));
}

ncclRedOp_t op_of(Reduction op) {
  switch (op) {
    case Reduction::max:
      return ncclMax;
    case Reduction::min:
      return ncclMin;
    case Reduction::sum:
      break;
  }
  return ncclSum;
}

void same_type(ConstBuffer input, const Buffer& output, std::size_t in_slices, std::size_t out_slices,
               const char* call) {
  if (input.type != output.type ||
      static_cast<std::size_t>(input.numel) * out_slices != static_cast<std::size_t>(output.numel) * in_slices) {
    throw base::CommError(std::string(call) + ": input and output don't fit each other");
  }
}

std::size_t count(std::int64_t numel) {
  return static_cast<std::size_t>(numel);
}

std::size_t size_of_group(Communicator comm) {
  int size = 0;
  check(ncclCommCount(native(comm), &size), "ncclCommCount", native(comm));
  return static_cast<std::size_t>(size);
}

NcclId nccl_id() {
  ncclUniqueId id{};
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  NcclId result;
  std::memcpy(result.data(), id.internal, result.size());
  return result;
}

Communicator comm_create(const NcclId& id, int rank, int size) {
  ncclUniqueId native_id{};
  std::memcpy(native_id.internal, id.data(), id.size());
  ncclComm_t comm = nullptr;
  check(ncclCommInitRank(&comm, size, native_id, rank), "ncclCommInitRank");
  return reinterpret_cast<Communicator>(comm);
}

// As for streams: called by destructors.
void comm_destroy(Communicator comm) {
  ncclCommDestroy(native(comm));
}

void comm_abort(Communicator comm) {
  check(ncclCommAbort(native(comm)), "ncclCommAbort");
}

std::string comm_error(Communicator comm) {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(native(comm), &state), "ncclCommGetAsyncError", native(comm));
  if (state == ncclSuccess || state == ncclInProgress) return {};
  return std::string(ncclGetErrorString(state)) + " (" + ncclGetLastError(native(comm)) + ")";
}

void all_reduce(Communicator comm, ConstBuffer input, Buffer output, Reduction op, Stream stream) {
  same_type(input, output, 1, 1, "ncclAllReduce");
  check(ncclAllReduce(input.data, output.data, count(input.numel), type_of(input.type, "ncclAllReduce"), op_of(op),
                      native(comm), cuda::native(stream)),
        "ncclAllReduce", native(comm));
}

void reduce_scatter(Communicator comm, ConstBuffer input, Buffer output, Reduction op, Stream stream) {
  same_type(input, output, size_of_group(comm), 1, "ncclReduceScatter");
  check(ncclReduceScatter(input.data, output.data, count(output.numel), type_of(input.type, "ncclReduceScatter"),
                          op_of(op), native(comm), cuda::native(stream)),
        "ncclReduceScatter", native(comm));
}

void all_gather(Communicator comm, ConstBuffer input, Buffer output, Stream stream) {
  same_type(input, output, 1, size_of_group(comm), "ncclAllGather");
  check(ncclAllGather(input.data, output.data, count(input.numel), type_of(input.type, "ncclAllGather"), native(comm),
                      cuda::native(stream)),
        "ncclAllGather", native(comm));
}

void broadcast(Communicator comm, Buffer buffer, int root, Stream stream) {
  check(ncclBroadcast(buffer.data, buffer.data, count(buffer.numel), type_of(buffer.type, "ncclBroadcast"), root,
                      native(comm), cuda::native(stream)),
        "ncclBroadcast", native(comm));
}

void send(Communicator comm, ConstBuffer buffer, int to, Stream stream) {
  check(ncclSend(buffer.data, count(buffer.numel), type_of(buffer.type, "ncclSend"), to, native(comm),
                 cuda::native(stream)),
        "ncclSend", native(comm));
}

void receive(Communicator comm, Buffer buffer, int from, Stream stream) {
  check(ncclRecv(buffer.data, count(buffer.numel), type_of(buffer.type, "ncclRecv"), from, native(comm),
                 cuda::native(stream)),
        "ncclRecv", native(comm));
}

void group_begin() {
  check(ncclGroupStart(), "ncclGroupStart");
}

void group_end() {
  check(ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace

void fill_nccl(Table& table) {
  check(ncclGetVersion(&table.nccl_version), "ncclGetVersion");
  table.nccl_id = nccl_id;
  table.comm_create = comm_create;
  table.comm_destroy = comm_destroy;
  table.comm_abort = comm_abort;
  table.comm_error = comm_error;
  table.all_reduce = all_reduce;
  table.reduce_scatter = reduce_scatter;
  table.all_gather = all_gather;
  table.broadcast = broadcast;
  table.send = send;
  table.receive = receive;
  table.group_begin = group_begin;
  table.group_end = group_end;
}

}  // namespace deepspeed::device::cuda
