// The tables of functions that NCCL loads, for each version of the interface. They convert arguments and contain no more.
#include <cstring>
#include <exception>
#include <string>

#include "nccl/abi.h"
#include "nccl/collectives.h"
#include "nccl/device.h"
#include "nccl/log.h"
#include "nccl/transport.h"
#include "netsum/netsum.h"

#define NCCL_PLUGIN_EXPORT __attribute__((visibility("default")))

namespace netsum::nccl {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of one message or collective
constexpr size_t kLeastChunk = size_t{4} << 20;

// NCCL is called from C: no exception may reach it.
template <typename Body>
Result guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    warn(error.what());
    return kInternalError;
  }
}

// --- Devices ----------------------------------------------------------------------------------------------

Result init(Logger logger) {
  set_logger(logger);
  return guarded([] {
    inform("version " + std::string(netsum_version()) + ", interface " + device().name + " (" +
           device().address + ")");
    return kSuccess;
  });
}
Result init_v10(Logger logger, ProfilerCallback /*profiler*/) {
  return init(logger);
}
Result init_net_v11(void** context, uint64_t /*comm_id*/, void* /*config*/, Logger logger,
                    ProfilerCallback /*profiler*/) {
  *context = nullptr;
  return init(logger);
}
Result init_collectives_v11(void** context, uint64_t /*comm_id*/, Logger logger) {
  *context = nullptr;
  return init(logger);
}
Result finalize(void* /*context*/) {
  return kSuccess;
}
Result set_attributes(void* /*context*/, void* /*attributes*/) {
  return kSuccess;
}
Result devices(int* count) {
  *count = 1;
  return kSuccess;
}
Result make_virtual_device(int* /*device*/, void* /*properties*/) {
  warn("this plug-in has one device, so there is nothing to combine");
  return kInvalidUsage;
}

template <typename Properties>
Result get_properties(int index, Properties* properties) {
  if (index != 0) return kInvalidArgument;
  return guarded([&] {
    std::memset(static_cast<void*>(properties), 0, sizeof(*properties));
    const Device& own = device();
    properties->name = const_cast<char*>(own.name.c_str());
    properties->pci_path = own.pci.empty() ? nullptr : const_cast<char*>(own.pci.c_str());
    properties->guid = own.id;
    properties->pointer_support = kPointerHost;
    properties->speed_mbps = own.speed_mbps;
    properties->port = 1;
    properties->most_comms = 65536;
    properties->most_receives = 1;
    if constexpr (requires { properties->virtual_device; }) {
      properties->virtual_device.count = 1;
      properties->most_p2p_bytes = kMostBytes;
      properties->most_collective_bytes = kMostBytes;
    }
    if constexpr (requires { properties->most_multi_requests; }) properties->most_multi_requests = 1;
    if constexpr (requires { properties->rail_id; }) properties->rail_id = properties->plane_id = -1;
    return kSuccess;
  });
}

// --- Memory: any host memory, without registration ----------------------------------------------------------

Result register_memory(void* /*comm*/, void* /*data*/, size_t /*bytes*/, int type, void** memory) {
  *memory = nullptr;
  if (type == kPointerHost) return kSuccess;
  warn("only host memory is supported, and NCCL asks for another type");
  return kInvalidUsage;
}
Result register_dma_buffer(void* comm, void* data, size_t bytes, int type, uint64_t /*offset*/, int /*fd*/,
                           void** memory) {
  return register_memory(comm, data, bytes, type, memory);
}
Result deregister_memory(void* /*comm*/, void* /*memory*/) {
  return kSuccess;
}

// --- Point to point -----------------------------------------------------------------------------------------

template <typename AnyListener>
Result listen(int index, void* handle, void** listen_comm) {
  if (index != 0) return kInvalidArgument;
  return guarded([&] {
    Handle own;
    std::memset(handle, 0, kHandleBytes);
    auto listener = AnyListener::open(&own);
    if (listener == nullptr) return kSystemError;
    std::memcpy(handle, &own, sizeof(own));
    *listen_comm = listener.release();
    return kSuccess;
  });
}
template <typename AnyListener>
Result listen_v11(void* /*context*/, int index, void* handle, void** listen_comm) {
  return listen<AnyListener>(index, handle, listen_comm);
}
template <typename AnyListener>
Result close_listen(void* listen_comm) {
  delete static_cast<AnyListener*>(listen_comm);
  return kSuccess;
}

Result connect(int index, void* handle, void** send_comm, void** device_comm) {
  *send_comm = nullptr;
  if (device_comm != nullptr) *device_comm = nullptr;
  if (index != 0) return kInvalidArgument;
  return guarded([&] {
    Handle own;
    std::memcpy(&own, handle, sizeof(own));
    std::unique_ptr<Connection> connection;
    const Result result = nccl::connect(&own, &connection);
    std::memcpy(handle, &own, sizeof(own));
    *send_comm = connection.release();
    return result;
  });
}
Result connect_v10(int index, void* /*config*/, void* handle, void** send_comm, void** device_comm) {
  return connect(index, handle, send_comm, device_comm);
}
Result connect_v11(void* /*context*/, int index, void* handle, void** send_comm, void** device_comm) {
  return connect(index, handle, send_comm, device_comm);
}
Result accept(void* listen_comm, void** receive_comm, void** device_comm) {
  if (device_comm != nullptr) *device_comm = nullptr;
  return guarded([&] {
    *receive_comm = static_cast<Listener*>(listen_comm)->accept().release();
    return kSuccess;
  });
}
Result close_connection(void* comm) {
  delete static_cast<Connection*>(comm);
  return kSuccess;
}

Result send(void* comm, void* data, size_t bytes, int /*tag*/, void* /*memory*/, void** request) {
  return guarded([&] {
    *request = static_cast<Connection*>(comm)->send(data, bytes);
    return kSuccess;
  });
}
Result send_v8(void* comm, void* data, int bytes, int tag, void* memory, void** request) {
  if (bytes < 0) return kInvalidArgument;
  return send(comm, data, static_cast<size_t>(bytes), tag, memory, request);
}
Result send_v10(void* comm, void* data, size_t bytes, int tag, void* memory, void* /*profiler*/,
                void** request) {
  return send(comm, data, bytes, tag, memory, request);
}

template <typename Size>
Result receive(void* comm, int count, void** data, Size* bytes, int* /*tags*/, void** /*memory*/,
               void** request) {
  if (count != 1) return kInvalidArgument;  // most_receives
  return guarded([&] {
    *request = static_cast<Connection*>(comm)->receive(data[0], static_cast<size_t>(bytes[0]));
    return kSuccess;
  });
}
Result receive_v10(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                   void** /*profiler*/, void** request) {
  return receive<size_t>(comm, count, data, bytes, tags, memory, request);
}

// Host memory needs no flush: a request that does not exist is complete.
Result flush(void* /*comm*/, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*memory*/,
             void** request) {
  *request = nullptr;
  return kSuccess;
}

Result test(void* request, int* done, int* bytes) {
  return guarded([&] {
    bool finished = false;
    size_t moved = 0;
    auto* const own = static_cast<Request*>(request);
    const Result result = own->connection->test(own, &finished, &moved);
    *done = finished ? 1 : 0;
    if (finished && bytes != nullptr) *bytes = static_cast<int>(moved);
    return result;
  });
}

// --- Collectives --------------------------------------------------------------------------------------------

Result connect_collective(void* handles[], int ranks, int rank, void* listen_comm, void** comm) {
  *comm = nullptr;
  return guarded([&] {
    Handle root;
    std::memcpy(&root, handles[0], sizeof(root));
    *comm =
        CollectiveComm::connect(root, ranks, rank, *static_cast<CollectiveListener*>(listen_comm)).release();
    return *comm != nullptr ? kSuccess : kSystemError;
  });
}
Result reduce_support(int type, int op, int* supported) {
  *supported = supports(type, op) ? 1 : 0;
  return kSuccess;
}
template <typename Count>
Result all_reduce(void* comm, void* input, void* output, Count count, int type, int op,
                  void* /*input_memory*/, void* /*output_memory*/, void** request) {
  return guarded([&] {
    CollectiveRequest* own = nullptr;
    const Result result = static_cast<CollectiveComm*>(comm)->all_reduce(
        input, output, static_cast<size_t>(count), type, op, &own);
    *request = own;
    return result;
  });
}
// NCCL passes one part.
template <typename PartBytes>
void* only_part(const char* collective, int parts, const Part<PartBytes>* all, size_t window_bytes) {
  if (parts == 1 && all[0].bytes >= window_bytes) return all[0].address;
  warn(std::string(collective) + " of " + std::to_string(parts) + " parts of memory" +
       (parts == 1 ? ", which is smaller than what it shall hold" : ": one is supported"));
  return nullptr;
}
template <typename PartBytes>
Result all_gather(void* comm, void* input, int parts, Part<PartBytes>* outputs, size_t bytes_per_rank,
                  size_t window_offset, size_t window_bytes, void* /*memory*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    void* const output = only_part("all-gather", parts, outputs, window_bytes);
    if (output == nullptr) return kInvalidUsage;
    CollectiveRequest* own = nullptr;
    const Result result = static_cast<CollectiveComm*>(comm)->all_gather(
        input, output, {bytes_per_rank, window_offset, window_bytes}, &own);
    *request = own;
    return result;
  });
}
template <typename PartBytes>
Result reduce_scatter(void* comm, int parts, Part<PartBytes>* inputs, void* output, size_t bytes_per_rank,
                      size_t window_offset, size_t window_bytes, int type, int op, void* /*memory*/,
                      void** request) {
  return guarded([&] {
    *request = nullptr;
    const void* const input = only_part("reduce-scatter", parts, inputs, window_bytes);
    if (input == nullptr) return kInvalidUsage;
    CollectiveRequest* own = nullptr;
    const Result result = static_cast<CollectiveComm*>(comm)->reduce_scatter(
        input, output, {bytes_per_rank, window_offset, window_bytes}, type, op, &own);
    *request = own;
    return result;
  });
}
Result flush_collective(void* /*comm*/, void* /*data*/, int /*bytes*/, void* /*memory*/, void** request) {
  *request = nullptr;
  return kSuccess;
}
Result test_collective(void* request, int* done, int* bytes) {
  return guarded([&] {
    bool finished = false;
    size_t moved = 0;
    auto* const own = static_cast<CollectiveRequest*>(request);
    const Result result = own->comm->test(own, &finished, &moved);
    *done = finished ? 1 : 0;
    if (finished && bytes != nullptr) *bytes = static_cast<int>(moved);
    return result;
  });
}
Result close_collective(void* comm) {
  return guarded([&] {
    delete static_cast<CollectiveComm*>(comm);
    return kSuccess;
  });
}

template <typename Count, typename PartBytes>
constexpr CollectiveCalls<Count, PartBytes> collective_calls() {
  return {
      .connect = connect_collective,
      .reduce_support = reduce_support,
      .register_memory = register_memory,
      .register_dma_buffer = register_dma_buffer,
      .deregister_memory = deregister_memory,
      .all_reduce = all_reduce<Count>,
      .all_gather = all_gather<PartBytes>,
      .reduce_scatter = reduce_scatter<PartBytes>,
      .flush = flush_collective,
      .test = test_collective,
      .close = close_collective,
      .close_listen = close_listen<CollectiveListener>,
  };
}

// --- Tuner --------------------------------------------------------------------------------------------------

Result init_tuner(void** context, uint64_t /*comm_id*/, size_t /*ranks*/, size_t /*nodes*/, Logger logger,
                  void* /*domain*/, void* /*constants*/) {
  *context = nullptr;
  set_logger(logger);
  return kSuccess;
}
Result get_collective_info(void* /*context*/, int /*function*/, size_t /*bytes*/, int /*operations*/,
                           float** /*costs*/, int /*algorithms*/, int /*protocols*/, int /*registered*/,
                           int* /*channels*/) {
  return kSuccess;  // NCCL's own choice
}
// A chunk is one operation here, and costs a round trip. NCCL reduces the size to what its buffers hold.
Result get_chunk_size(void* /*context*/, int /*function*/, size_t /*bytes*/, int algorithm, int /*protocol*/,
                      int /*channels*/, size_t* chunk_bytes) {
  if ((algorithm == kCollNetDirect || algorithm == kCollNetChain) && *chunk_bytes < kLeastChunk)
    *chunk_bytes = kLeastChunk;
  return kSuccess;
}

// --- Versions that are refused ------------------------------------------------------------------------------

Result refuse(Logger logger) {
  set_logger(logger);
  warn("this NCCL is older than 2.20, the oldest that the plug-in supports; NCCL uses its own network");
  return kInvalidUsage;
}

template <typename Properties>
constexpr NetV11<Properties> net_v11() {
  return {"netsum",
          init_net_v11,
          devices,
          get_properties<Properties>,
          listen_v11<Listener>,
          connect_v11,
          accept,
          register_memory,
          register_dma_buffer,
          deregister_memory,
          send_v10,
          receive_v10,
          flush,
          test,
          close_connection,
          close_connection,
          close_listen<Listener>,
          nullptr,
          nullptr,
          make_virtual_device,
          finalize,
          set_attributes};
}
template <typename Properties>
constexpr CollNetV11<Properties> coll_net_v11() {
  return {"netsum",
          init_collectives_v11,
          devices,
          get_properties<Properties>,
          listen_v11<CollectiveListener>,
          collective_calls<size_t, size_t>(),
          make_virtual_device,
          finalize};
}

}  // namespace
}  // namespace netsum::nccl

using namespace netsum::nccl;  // NOLINT(google-build-using-namespace): the tables below are all that follows

extern "C" {

NCCL_PLUGIN_EXPORT RefusedPlugin ncclNetPlugin_v6 = {"netsum", refuse, {}};
NCCL_PLUGIN_EXPORT RefusedPlugin ncclNetPlugin_v7 = {"netsum", refuse, {}};
NCCL_PLUGIN_EXPORT NetV8 ncclNetPlugin_v8 = {"netsum",
                                             init,
                                             devices,
                                             get_properties<PropertiesV8>,
                                             listen<Listener>,
                                             connect,
                                             accept,
                                             register_memory,
                                             register_dma_buffer,
                                             deregister_memory,
                                             send_v8,
                                             receive<int>,
                                             flush,
                                             test,
                                             close_connection,
                                             close_connection,
                                             close_listen<Listener>,
                                             nullptr,
                                             nullptr};
NCCL_PLUGIN_EXPORT NetV9 ncclNetPlugin_v9 = {"netsum",
                                             init,
                                             devices,
                                             get_properties<PropertiesV9>,
                                             listen<Listener>,
                                             connect,
                                             accept,
                                             register_memory,
                                             register_dma_buffer,
                                             deregister_memory,
                                             send,
                                             receive<size_t>,
                                             flush,
                                             test,
                                             close_connection,
                                             close_connection,
                                             close_listen<Listener>,
                                             nullptr,
                                             nullptr,
                                             make_virtual_device};
NCCL_PLUGIN_EXPORT NetV10 ncclNetPlugin_v10 = {"netsum",
                                               init_v10,
                                               devices,
                                               get_properties<PropertiesV9>,
                                               listen<Listener>,
                                               connect_v10,
                                               accept,
                                               register_memory,
                                               register_dma_buffer,
                                               deregister_memory,
                                               send_v10,
                                               receive_v10,
                                               flush,
                                               test,
                                               close_connection,
                                               close_connection,
                                               close_listen<Listener>,
                                               nullptr,
                                               nullptr,
                                               make_virtual_device};
NCCL_PLUGIN_EXPORT NetV11<PropertiesV11> ncclNetPlugin_v11 = net_v11<PropertiesV11>();
NCCL_PLUGIN_EXPORT NetV11<PropertiesV12> ncclNetPlugin_v12 = net_v11<PropertiesV12>();

NCCL_PLUGIN_EXPORT CollNetV8 ncclCollNetPlugin_v8 = {"netsum",
                                                     init,
                                                     devices,
                                                     get_properties<PropertiesV8>,
                                                     listen<CollectiveListener>,
                                                     collective_calls<int, uint32_t>()};
NCCL_PLUGIN_EXPORT CollNetV9 ncclCollNetPlugin_v9 = {"netsum",
                                                     init,
                                                     devices,
                                                     get_properties<PropertiesV9>,
                                                     listen<CollectiveListener>,
                                                     collective_calls<size_t, size_t>(),
                                                     make_virtual_device};
NCCL_PLUGIN_EXPORT CollNetV9 ncclCollNetPlugin_v10 = ncclCollNetPlugin_v9;
NCCL_PLUGIN_EXPORT CollNetV11<PropertiesV11> ncclCollNetPlugin_v11 = coll_net_v11<PropertiesV11>();
NCCL_PLUGIN_EXPORT CollNetV11<PropertiesV12> ncclCollNetPlugin_v12 = coll_net_v11<PropertiesV12>();

NCCL_PLUGIN_EXPORT TunerV6 ncclTunerPlugin_v6 = {"netsum", init_tuner, get_collective_info, finalize,
                                                 get_chunk_size};

}  // extern "C"
