// The sending half of a UDP PacketIo: sendmmsg batches in which a run of equal packets is one segmented
// message.
#ifndef NETSUM_SRC_NET_UDP_SENDER_H_
#define NETSUM_SRC_NET_UDP_SENDER_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/net/packet_io.h"
#include "src/net/udp/local_addresses.h"

namespace netsum {

// How many packets at the front of `burst` can leave as one segmented datagram: equal addresses and size
// (the last may be shorter), within the kernel's limits. At least 1 unless the burst is empty.
size_t segment_run(std::span<const OutPacket> burst);

// Describes the bytes of `run`, of which packets that are adjacent in memory are one piece: the kernel checks and imports
// each piece. Writes at most run.size() pieces and returns their number.
size_t gather(std::span<const OutPacket> run, iovec* pieces);

class UdpSender {
 public:
  // `fd` is borrowed: a non-blocking UDP socket that outlives this object, as does `locals`, which knows the
  // addresses that OutPacket::local names; null where there are none.
  UdpSender(int fd, bool gso, LocalAddresses* locals = nullptr) : fd_(fd), gso_(gso), locals_(locals) {}

  void send(std::span<const OutPacket> burst, PacketIoCounters* counters);

  // Segmented sends are in use: they were asked for and no route has refused them so far.
  bool gso() const { return gso_; }

 private:
  static constexpr size_t kMessages = 64;
  static constexpr size_t kPieces = 1024;

  // What one sendmmsg call needs. Packets are never copied: a message consists of pieces (iovecs).
  struct Batch {
    size_t messages = 0;
    size_t pieces = 0;
    std::array<mmsghdr, kMessages> headers{};
    std::array<iovec, kPieces> iovecs{};
    std::array<sockaddr_storage, kMessages> names{};
    struct Control {
      alignas(
          cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(uint16_t)) + LocalAddresses::kControlBytes> bytes{};
    };
    std::array<Control, kMessages> controls{};
    std::array<std::span<const OutPacket>, kMessages> packets{};

    void clear() { messages = pieces = 0; }
    bool has_room(size_t packet_count) const {
      return messages < kMessages && pieces + packet_count <= kPieces;
    }
    void add(std::span<const OutPacket> run, LocalAddresses* locals);
  };

  // Both return false when the socket's buffer is full: the rest of the burst is not worth a try.
  bool flush(Batch* batch, PacketIoCounters* counters);
  bool send_unsegmented(std::span<const OutPacket> run, PacketIoCounters* counters);

  int fd_;
  bool gso_;
  LocalAddresses* locals_;
  Batch batch_;
  Batch single_;  // for a run that was refused as one message, while batch_ is still being sent
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_SENDER_H_
