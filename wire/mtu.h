// How much payload a packet of a given MTU carries.
#ifndef NETSUM_WIRE_MTU_H_
#define NETSUM_WIRE_MTU_H_

#include <algorithm>
#include <cstdint>

#include "wire/ids.h"

namespace netsum::wire {

inline constexpr uint32_t kMinPayload = 64;
inline constexpr int kMinMtu = 144;   // room for the headers over IPv6 and kMinPayload
inline constexpr int kMaxMtu = 9000;  // what NETSUM_MAX_PAYLOAD was chosen for

// Bytes of IP and UDP header; `family` is 4 or 6.
constexpr int ip_udp_header_bytes(int family) {
  return (family == 6 ? 40 : 20) + 8;
}
// Bytes on the wire around a datagram, Ethernet header included.
constexpr int overhead_bytes(int family) {
  return 14 + ip_udp_header_bytes(family);
}

// Rounded down to 32 bytes, so that blocks fill whole vector registers.
constexpr uint32_t payload_for_mtu(int mtu, int family) {
  const int room = mtu - ip_udp_header_bytes(family) - NETSUM_HEADER_BYTES;
  return static_cast<uint32_t>(std::min(room, NETSUM_MAX_PAYLOAD) / 32 * 32);
}
static_assert(payload_for_mtu(1500, 4) == 1440 && payload_for_mtu(1500, 6) == 1408);
static_assert(payload_for_mtu(kMaxMtu, 4) == NETSUM_MAX_PAYLOAD &&
              payload_for_mtu(kMinMtu, 6) == kMinPayload);

}  // namespace netsum::wire

#endif  // NETSUM_WIRE_MTU_H_
