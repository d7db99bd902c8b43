// The PacketIo of a communicator: the requested one, or UDP and the reason.
#ifndef NETSUM_ENGINE_WORKER_IO_H_
#define NETSUM_ENGINE_WORKER_IO_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/net/lossy.h"
#include "src/net/multicast.h"
#include "src/net/packet_io.h"

namespace netsum {

struct WorkerIo {
  std::unique_ptr<PacketIo> io;
  std::string note;                 // for describe(); empty if the default was asked for
  const LossyIo* faults = nullptr;  // lives as long as `io`; null: none are injected
};

// What attaches a PacketIo to a shard of this process, and returns the result; empty: there is no such shard.
using AttachToShard = std::function<std::unique_ptr<PacketIo>(std::unique_ptr<PacketIo>)>;

// `remote`: the destination of most packets. `multicast_groups`: received by UDP only, so `wanted` is kUdp if there are
// any. `faults`: of received packets. `spin`: as CommunicatorOptions::spin. If `wanted` is not available, UDP is used.
// Errors: as open_udp().
Result<WorkerIo> open_worker_io(PacketIoKind wanted, const Address& remote, uint32_t max_packet,
                                std::vector<MulticastMembership> multicast_groups,
                                const InjectedFaults& faults, std::chrono::microseconds spin,
                                const AttachToShard& attach);

}  // namespace netsum

#endif  // NETSUM_ENGINE_WORKER_IO_H_
