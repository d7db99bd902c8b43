#include "engine/worker_io.h"

#include <chrono>
#include <utility>

#include "src/net/af_xdp/af_xdp_io.h"
#include "src/net/udp/udp_io.h"

namespace netsum {
namespace {

Result<WorkerIo> open_faultless(PacketIoKind wanted, const Address& remote, uint32_t max_packet,
                                std::vector<MulticastMembership> multicast_groups,
                                std::chrono::microseconds spin) {
  std::string reason;
  if (wanted == PacketIoKind::kAfXdp) {
    Result<std::unique_ptr<PacketIo>> io =
        open_af_xdp({.remote = remote, .max_packet = max_packet, .spin = spin});
    if (io.ok()) {
      std::string note = "packets by " + std::string(io.value()->description());
      return WorkerIo{.io = std::move(io).value(), .note = std::move(note)};
    }
    reason = io.status().message();
  }
  UdpIoOptions options;
  options.bind.family = remote.family;  // any local address
  options.max_packet = max_packet;
  options.multicast_groups = std::move(multicast_groups);
  options.spin = spin;
  Result<std::unique_ptr<PacketIo>> io = open_udp(options);
  if (!io.ok()) return io.status();
  std::string note;
  if (!reason.empty()) note = "packets by UDP, not AF_XDP: " + reason;
  return WorkerIo{.io = std::move(io).value(), .note = std::move(note)};
}

}  // namespace

Result<WorkerIo> open_worker_io(PacketIoKind wanted, const Address& remote, uint32_t max_packet,
                                std::vector<MulticastMembership> multicast_groups,
                                const InjectedFaults& faults, std::chrono::microseconds spin,
                                const AttachToShard& attach) {
  Result<WorkerIo> opened = open_faultless(wanted, remote, max_packet, std::move(multicast_groups), spin);
  if (!opened.ok()) return opened.status();
  WorkerIo io = std::move(opened).value();
  if (attach) io.io = attach(std::move(io.io));
  Result<FaultyIo> faulty = inject_faults(std::move(io.io), faults);
  if (!faulty.ok()) return faulty.status();
  io.io = std::move(faulty->io);
  io.faults = faulty->faults;
  if (io.faults != nullptr) {
    if (!io.note.empty()) io.note += "; ";
    io.note += "FAULTS ARE INJECTED: loses " + std::to_string(faults.loss * 100) + " % of what it receives";
    if (faults.flipped_bits > 0)
      io.note += ", and flips a bit in " + std::to_string(faults.flipped_bits * 100) + " %";
  }
  return io;
}

}  // namespace netsum
