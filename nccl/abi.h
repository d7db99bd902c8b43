// The interface between NCCL and its network plug-ins, versions 8 to 12, as NCCL documents it: numbers, and the order and
// types of the fields. NCCL 2.20 to 2.23 use version 8, 2.24 and 2.25 version 9, 2.26 and 2.27 version 10, 2.28 and 2.29
// version 11, and 2.30 version 12. nccl_abi_test.cc compares it with NCCL's own headers where these are installed.
#ifndef NETSUM_NCCL_ABI_H_
#define NETSUM_NCCL_ABI_H_

#include <cstddef>
#include <cstdint>

namespace netsum::nccl {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum Operator : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };

enum LogLevel : int { kLogWarning = 2, kLogInfo = 3 };
inline constexpr unsigned long kLogInit = 0x1, kLogNet = 0x10;
using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
using ProfilerCallback = Result (*)(void** event, int type, void* parent, int64_t id, void* data);

inline constexpr size_t kHandleBytes = 128;
inline constexpr int kPointerHost = 0x1;
inline constexpr int kMostRequests = 32;  // outstanding, of one connection

// What getProperties() fills in. `port` counts from 1.
struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
};

// Versions 9 to 12 differ in the number of devices that a virtual one may combine, and in fields at the end.
template <int kDevices>
struct VirtualDevice {
  int count;
  int devices[kDevices];
};
struct PropertiesV9 {  // and 10
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  size_t most_p2p_bytes;
  size_t most_collective_bytes;
};
struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  size_t most_p2p_bytes;
  size_t most_collective_bytes;
  int most_multi_requests;
};
struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  size_t most_p2p_bytes;
  size_t most_collective_bytes;
  int most_multi_requests;
  int16_t rail_id;
  int16_t plane_id;
};

// Point-to-point transport. Pointers to structs that this plug-in does not read are void*.
struct NetV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_comm);
  Result (*accept)(void* listen_comm, void** receive_comm, void** device_comm);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buffer)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                                void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
  Result (*send)(void* comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*receive)(void* comm, int count, void** data, int* bytes, int* tags, void** memory, void** request);
  Result (*flush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*receive_consumed)(void* comm, int count, void* request);
};
struct NetV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_comm);
  Result (*accept)(void* listen_comm, void** receive_comm, void** device_comm);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buffer)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                                void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
  Result (*send)(void* comm, void* data, size_t bytes, int tag, void* memory, void** request);
  Result (*receive)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                    void** request);
  Result (*flush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*receive_consumed)(void* comm, int count, void* request);
  Result (*make_virtual_device)(int* device, void* properties);
};
struct NetV10 {
  const char* name;
  Result (*init)(Logger, ProfilerCallback);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* config, void* handle, void** send_comm, void** device_comm);
  Result (*accept)(void* listen_comm, void** receive_comm, void** device_comm);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buffer)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                                void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
  Result (*send)(void* comm, void* data, size_t bytes, int tag, void* memory, void* profiler, void** request);
  Result (*receive)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                    void** profiler, void** request);
  Result (*flush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*receive_consumed)(void* comm, int count, void* request);
  Result (*make_virtual_device)(int* device, void* properties);
};
template <typename Properties>
struct NetV11 {  // and 12
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, void* config, Logger, ProfilerCallback);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, void** device_comm);
  Result (*accept)(void* listen_comm, void** receive_comm, void** device_comm);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buffer)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                                void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
  Result (*send)(void* comm, void* data, size_t bytes, int tag, void* memory, void* profiler, void** request);
  Result (*receive)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                    void** profiler, void** request);
  Result (*flush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*receive_consumed)(void* comm, int count, void* request);
  Result (*make_virtual_device)(int* device, void* properties);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, void* attributes);
};

// A part of a buffer, of one rank or several.
template <typename Size>
struct Part {
  void* memory;
  void* address;
  Size bytes;
};

// Collectives. Count is int in version 8, size_t in 9 to 12.
template <typename Count, typename PartBytes>
struct CollectiveCalls {
  Result (*connect)(void* handles[], int ranks, int rank, void* listen_comm, void** comm);
  Result (*reduce_support)(int type, int op, int* supported);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buffer)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                                void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
  Result (*all_reduce)(void* comm, void* input, void* output, Count count, int type, int op,
                       void* input_memory, void* output_memory, void** request);
  Result (*all_gather)(void* comm, void* input, int parts, Part<PartBytes>* outputs, size_t bytes_per_rank,
                       size_t window_offset, size_t window_bytes, void* memory, void** request);
  Result (*reduce_scatter)(void* comm, int parts, Part<PartBytes>* inputs, void* output,
                           size_t bytes_per_rank, size_t window_offset, size_t window_bytes, int type, int op,
                           void* memory, void** request);
  Result (*flush)(void* comm, void* data, int bytes, void* memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close)(void* comm);
  Result (*close_listen)(void* comm);
};
struct CollNetV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  CollectiveCalls<int, uint32_t> calls;
};
struct CollNetV9 {  // and 10
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  CollectiveCalls<size_t, size_t> calls;
  Result (*make_virtual_device)(int* device, void* properties);
};
template <typename Properties>
struct CollNetV11 {  // and 12
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  CollectiveCalls<size_t, size_t> calls;
  Result (*make_virtual_device)(int* device, void* properties);
  Result (*finalize)(void* context);
};

// Plug-ins of versions 6 and 7 begin so. init() of this one fails, and NCCL calls nothing else.
struct RefusedPlugin {
  const char* name;
  Result (*init)(Logger);
  void* others[24];
};

// Chooses algorithms; here only the size of the chunks. NCCL 2.30.
inline constexpr int kCollNetDirect = 2, kCollNetChain = 3;
struct TunerV6 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, Logger, void* domain,
                 void* constants);
  Result (*get_collective_info)(void* context, int function, size_t bytes, int operations, float** costs,
                                int algorithms, int protocols, int registered, int* channels);
  Result (*finalize)(void* context);
  Result (*get_chunk_size)(void* context, int function, size_t bytes, int algorithm, int protocol,
                           int channels, size_t* chunk_bytes);
};

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_ABI_H_
