// Compares nccl/abi.h with the headers of a checkout of NCCL, field by field. It succeeds if it compiles.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include <nccl_net.h>
#include <nccl_tuner.h>

#include "nccl/abi.h"

namespace {

namespace ours = netsum::nccl;

// Fields in their order: equal offsets and sizes.
#define SAME(their_type, their_field, our_type, our_field)                           \
  static_assert(offsetof(their_type, their_field) == offsetof(our_type, our_field)); \
  static_assert(sizeof(their_type::their_field) == sizeof(our_type::our_field))

#define SAME_OLD_PROPERTIES(theirs, own)                  \
  SAME(theirs, name, own, name);                          \
  SAME(theirs, pciPath, own, pci_path);                   \
  SAME(theirs, guid, own, guid);                          \
  SAME(theirs, ptrSupport, own, pointer_support);         \
  SAME(theirs, regIsGlobal, own, registration_is_global); \
  SAME(theirs, speed, own, speed_mbps);                   \
  SAME(theirs, port, own, port);                          \
  SAME(theirs, latency, own, latency_us);                 \
  SAME(theirs, maxComms, own, most_comms);                \
  SAME(theirs, maxRecvs, own, most_receives);             \
  SAME(theirs, netDeviceType, own, device_type);          \
  SAME(theirs, netDeviceVersion, own, device_version)
#define SAME_PROPERTIES(theirs, own)                      \
  SAME_OLD_PROPERTIES(theirs, own);                       \
  SAME(theirs, forceFlush, own, force_flush);             \
  SAME(theirs, vProps, own, virtual_device);              \
  SAME(theirs, maxP2pBytes, own, most_p2p_bytes);         \
  SAME(theirs, maxCollBytes, own, most_collective_bytes); \
  static_assert(sizeof(theirs) == sizeof(own))

SAME_OLD_PROPERTIES(ncclNetProperties_v8_t, ours::PropertiesV8);
static_assert(sizeof(ncclNetProperties_v8_t) == sizeof(ours::PropertiesV8));
SAME_PROPERTIES(ncclNetProperties_v9_t, ours::PropertiesV9);
SAME_PROPERTIES(ncclNetProperties_v10_t, ours::PropertiesV9);
SAME_PROPERTIES(ncclNetProperties_v11_t, ours::PropertiesV11);
SAME(ncclNetProperties_v11_t, maxMultiRequestSize, ours::PropertiesV11, most_multi_requests);
SAME_PROPERTIES(ncclNetProperties_v12_t, ours::PropertiesV12);
SAME(ncclNetProperties_v12_t, maxMultiRequestSize, ours::PropertiesV12, most_multi_requests);
SAME(ncclNetProperties_v12_t, railId, ours::PropertiesV12, rail_id);
SAME(ncclNetProperties_v12_t, planeId, ours::PropertiesV12, plane_id);

#define SAME_NET(theirs, own)                          \
  SAME(theirs, name, own, name);                       \
  SAME(theirs, init, own, init);                       \
  SAME(theirs, devices, own, devices);                 \
  SAME(theirs, getProperties, own, get_properties);    \
  SAME(theirs, listen, own, listen);                   \
  SAME(theirs, connect, own, connect);                 \
  SAME(theirs, accept, own, accept);                   \
  SAME(theirs, regMr, own, register_memory);           \
  SAME(theirs, regMrDmaBuf, own, register_dma_buffer); \
  SAME(theirs, deregMr, own, deregister_memory);       \
  SAME(theirs, isend, own, send);                      \
  SAME(theirs, irecv, own, receive);                   \
  SAME(theirs, iflush, own, flush);                    \
  SAME(theirs, test, own, test);                       \
  SAME(theirs, closeSend, own, close_send);            \
  SAME(theirs, closeRecv, own, close_receive);         \
  SAME(theirs, closeListen, own, close_listen);        \
  SAME(theirs, getDeviceMr, own, get_device_memory);   \
  SAME(theirs, irecvConsumed, own, receive_consumed);  \
  static_assert(sizeof(theirs) == sizeof(own))

SAME_NET(ncclNet_v8_t, ours::NetV8);
SAME_NET(ncclNet_v9_t, ours::NetV9);
SAME(ncclNet_v9_t, makeVDevice, ours::NetV9, make_virtual_device);
SAME_NET(ncclNet_v10_t, ours::NetV10);
SAME(ncclNet_v10_t, makeVDevice, ours::NetV10, make_virtual_device);
using NetV11 = ours::NetV11<ours::PropertiesV11>;
using NetV12 = ours::NetV11<ours::PropertiesV12>;
SAME_NET(ncclNet_v11_t, NetV11);
SAME(ncclNet_v11_t, makeVDevice, NetV11, make_virtual_device);
SAME(ncclNet_v11_t, finalize, NetV11, finalize);
SAME(ncclNet_v11_t, setNetAttr, NetV11, set_attributes);
SAME_NET(ncclNet_v12_t, NetV12);
SAME(ncclNet_v12_t, makeVDevice, NetV12, make_virtual_device);
SAME(ncclNet_v12_t, finalize, NetV12, finalize);
SAME(ncclNet_v12_t, setNetAttr, NetV12, set_attributes);

#define SAME_COLL_NET(theirs, own)                           \
  SAME(theirs, name, own, name);                             \
  SAME(theirs, init, own, init);                             \
  SAME(theirs, devices, own, devices);                       \
  SAME(theirs, getProperties, own, get_properties);          \
  SAME(theirs, listen, own, listen);                         \
  SAME(theirs, connect, own, calls.connect);                 \
  SAME(theirs, reduceSupport, own, calls.reduce_support);    \
  SAME(theirs, regMr, own, calls.register_memory);           \
  SAME(theirs, regMrDmaBuf, own, calls.register_dma_buffer); \
  SAME(theirs, deregMr, own, calls.deregister_memory);       \
  SAME(theirs, iallreduce, own, calls.all_reduce);           \
  SAME(theirs, iallgather, own, calls.all_gather);           \
  SAME(theirs, ireducescatter, own, calls.reduce_scatter);   \
  SAME(theirs, iflush, own, calls.flush);                    \
  SAME(theirs, test, own, calls.test);                       \
  SAME(theirs, closeColl, own, calls.close);                 \
  SAME(theirs, closeListen, own, calls.close_listen);        \
  static_assert(sizeof(theirs) == sizeof(own))

SAME_COLL_NET(ncclCollNet_v8_t, ours::CollNetV8);
SAME_COLL_NET(ncclCollNet_v9_t, ours::CollNetV9);
SAME(ncclCollNet_v9_t, makeVDevice, ours::CollNetV9, make_virtual_device);
SAME_COLL_NET(ncclCollNet_v10_t, ours::CollNetV9);
using CollNetV11 = ours::CollNetV11<ours::PropertiesV11>;
using CollNetV12 = ours::CollNetV11<ours::PropertiesV12>;
SAME_COLL_NET(ncclCollNet_v11_t, CollNetV11);
SAME(ncclCollNet_v11_t, finalize, CollNetV11, finalize);
SAME_COLL_NET(ncclCollNet_v12_t, CollNetV12);
SAME(ncclCollNet_v12_t, finalize, CollNetV12, finalize);
SAME(ncclNetSGE_v8_t, size, ours::Part<uint32_t>, bytes);
SAME(ncclNetSGE_v12_t, size, ours::Part<size_t>, bytes);

SAME(ncclTuner_v6_t, init, ours::TunerV6, init);
SAME(ncclTuner_v6_t, getCollInfo, ours::TunerV6, get_collective_info);
SAME(ncclTuner_v6_t, finalize, ours::TunerV6, finalize);
SAME(ncclTuner_v6_t, getChunkSize, ours::TunerV6, get_chunk_size);
static_assert(sizeof(ncclTuner_v6_t) == sizeof(ours::TunerV6));

static_assert(static_cast<int>(ours::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(ours::kSystemError) == ncclSystemError);
static_assert(static_cast<int>(ours::kInternalError) == ncclInternalError);
static_assert(static_cast<int>(ours::kInvalidArgument) == ncclInvalidArgument);
static_assert(static_cast<int>(ours::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(ours::kInt32) == ncclInt32 && static_cast<int>(ours::kInt64) == ncclInt64);
static_assert(static_cast<int>(ours::kFloat16) == ncclFloat16 &&
              static_cast<int>(ours::kFloat32) == ncclFloat32);
static_assert(static_cast<int>(ours::kBfloat16) == ncclBfloat16);
static_assert(static_cast<int>(ours::kSum) == ncclSum && static_cast<int>(ours::kMin) == ncclMin);
static_assert(static_cast<int>(ours::kMax) == ncclMax && static_cast<int>(ours::kProduct) == ncclProd);
static_assert(ours::kHandleBytes == NCCL_NET_HANDLE_MAXSIZE && ours::kPointerHost == NCCL_PTR_HOST);
static_assert(static_cast<int>(ours::kLogWarning) == NCCL_LOG_WARN);
static_assert(static_cast<int>(ours::kLogInfo) == NCCL_LOG_INFO);
static_assert(ours::kLogInit == NCCL_INIT && ours::kLogNet == NCCL_NET);
static_assert(ours::kMostRequests <= NCCL_NET_MAX_REQUESTS);
static_assert(static_cast<int>(ours::kCollNetChain) == NCCL_ALGO_COLLNET_CHAIN);
static_assert(static_cast<int>(ours::kCollNetDirect) == NCCL_ALGO_COLLNET_DIRECT);

TEST(NcclAbi, IsThatOfTheHeaders) {
  SUCCEED();
}

}  // namespace
