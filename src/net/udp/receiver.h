// The receiving half of a UDP PacketIo: recvmmsg batches, whose coalesced datagrams are cut up again.
#ifndef NETSUM_SRC_NET_UDP_RECEIVER_H_
#define NETSUM_SRC_NET_UDP_RECEIVER_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/net/packet_io.h"

namespace netsum {

class UdpReceiver {
 public:
  // `fd` is borrowed: a non-blocking UDP socket that outlives this object. `gro`: the socket has UDP_GRO set.
  UdpReceiver(int fd, bool gro, uint32_t max_packet);

  // As PacketIo::receive().
  size_t receive(std::span<InPacket> burst, PacketIoCounters* counters);

  // Packets are kept here that the caller's last burst had no room for.
  bool has_leftovers() const { return current_ < arrived_; }

 private:
  struct Control {
    alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(int))> bytes{};
  };

  // Reads up to `wanted` messages into the buffers from `arrived_` on. Returns false if the socket is
  // drained.
  bool fetch(size_t wanted, PacketIoCounters* counters);
  size_t hand_out(std::span<InPacket> burst, PacketIoCounters* counters);
  void begin_message();

  int fd_;
  uint32_t max_packet_;
  size_t stride_;  // bytes from one buffer to the next
  std::unique_ptr<uint8_t[]> buffers_;
  std::vector<mmsghdr> headers_;
  std::vector<iovec> iovecs_;
  std::vector<sockaddr_storage> names_;
  std::vector<Control> controls_;

  // Messages [0, arrived_) hold data; those before current_ have been handed out.
  size_t arrived_ = 0;
  size_t current_ = 0;
  // Within message current_: where the next packet begins, and how long each but the last is (0: not begun).
  uint32_t offset_ = 0;
  uint32_t segment_ = 0;
  Address from_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_RECEIVER_H_
