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
#include "src/net/udp/local_addresses.h"

namespace netsum {

class UdpReceiver {
 public:
  // For sockets with UDP_GRO set, or without. `locals`: where the socket says to which address datagrams were
  // sent; null where it does not.
  UdpReceiver(bool gro, uint32_t max_packet, LocalAddresses* locals = nullptr);

  // As PacketIo::receive(), from one non-blocking UDP socket.
  size_t receive(int fd, std::span<InPacket> burst, PacketIoCounters* counters);

  // The same in steps, for several sockets: once take_leftovers(), then read() while `burst` and has_room().
  size_t take_leftovers(std::span<InPacket> burst, PacketIoCounters* counters);
  // Reads at most `messages` (a message is one packet, or many that were coalesced). *drained: there was no
  // more.
  size_t read(int fd, size_t messages, std::span<InPacket> burst, PacketIoCounters* counters, bool* drained);

  bool has_room() const { return arrived_ < headers_.size(); }
  // Packets are kept here that the caller's last burst had no room for.
  bool has_leftovers() const { return current_ < arrived_; }

 private:
  struct Control {
    alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(int)) + LocalAddresses::kControlBytes> bytes{};
  };

  static void make_ready(msghdr* header);
  // Reads up to `wanted` messages into the buffers from `arrived_` on. Returns false if the socket is
  // drained.
  bool fetch(int fd, size_t wanted, PacketIoCounters* counters);
  size_t hand_out(std::span<InPacket> burst, PacketIoCounters* counters);
  void begin_message();

  uint32_t max_packet_;
  LocalAddresses* locals_;
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
  uint16_t local_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_RECEIVER_H_
