// Datagrams as whole Ethernet frames, for tests that are not content with what a socket would send.
#ifndef NETSUM_TESTS_CONFORMANCE_FRAMES_H_
#define NETSUM_TESTS_CONFORMANCE_FRAMES_H_

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <array>
#include <cstdint>

#include "src/net/address.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

using Mac = std::array<uint8_t, ETH_ALEN>;

struct FrameHeaders {
  ethhdr eth;
  iphdr ip;
  udphdr udp;
} __attribute__((packed));

// What the header's checksum should be.
uint16_t ip_checksum(iphdr header);

struct FrameAddresses {
  Mac from_mac{}, to_mac{};
  Address from, to;  // IPv4
};
// No UDP checksum, as IPv4 allows.
Bytes frame_of(const FrameAddresses& addresses, const Bytes& datagram);

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_FRAMES_H_
