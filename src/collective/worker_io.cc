#include "src/collective/worker_io.h"

#include <utility>

#include "src/net/af_xdp/af_xdp_io.h"
#include "src/net/udp/udp_io.h"

namespace netsum {

Result<WorkerIo> open_worker_io(PacketIoKind wanted, const Address& remote, uint32_t max_packet,
                                std::vector<MulticastMembership> groups) {
  std::string reason;
  if (wanted == PacketIoKind::kAfXdp) {
    Result<std::unique_ptr<PacketIo>> io = open_af_xdp({.remote = remote, .max_packet = max_packet});
    if (io.ok()) {
      std::string note = "packets by " + std::string(io.value()->description());
      return WorkerIo{std::move(io).value(), std::move(note)};
    }
    reason = io.status().message();
  }
  UdpIoOptions options;
  options.bind.family = remote.family;  // any local address
  options.max_packet = max_packet;
  options.groups = std::move(groups);
  Result<std::unique_ptr<PacketIo>> io = open_udp(options);
  if (!io.ok()) return io.status();
  std::string note;
  if (!reason.empty()) note = "packets by UDP, not AF_XDP: " + reason;
  return WorkerIo{std::move(io).value(), std::move(note)};
}

}  // namespace netsum
