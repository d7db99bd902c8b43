// Ethernet frames around a datagram: IPv4 without options, UDP. Written for the ring, and read from it.
#ifndef NETSUM_SRC_NET_AF_XDP_FRAME_H_
#define NETSUM_SRC_NET_AF_XDP_FRAME_H_

#include <array>
#include <cstdint>

#include "src/net/packet_io.h"

namespace netsum {

using MacAddress = std::array<uint8_t, 6>;

inline constexpr uint32_t kEthernetBytes = 14;
inline constexpr uint32_t kFrameHeaderBytes = kEthernetBytes + 20 + 8;

// The headers of all frames from one endpoint to another, but for what depends on the length.
class FrameHeaders {
 public:
  FrameHeaders() = default;
  // Both addresses are IPv4.
  FrameHeaders(const MacAddress& from_mac, const Address& from, const MacAddress& to_mac, const Address& to);

  // Writes the frame of a datagram of `size` bytes to `out` and returns its length. The datagram must not be
  // fragmented on its way, and has no UDP checksum, as IPv4 allows: what it carries has a check of its own.
  uint32_t write(const uint8_t* data, uint32_t size, uint8_t* out) const;

 private:
  std::array<uint8_t, kFrameHeaderBytes> bytes_{};
  uint32_t ip_sum_ = 0;  // of the IP header's words, without length and checksum
};

// The datagram in a frame that the steering program (steer.bpf.c) has let through: whatever that has checked
// is not checked again. Its bytes stay where they are.
InPacket read_frame(const uint8_t* frame);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_AF_XDP_FRAME_H_
