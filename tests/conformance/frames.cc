#include "tests/conformance/frames.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace netsum::conformance {

uint16_t ip_checksum(iphdr header) {
  header.check = 0;
  uint16_t words[10];
  std::memcpy(words, &header, sizeof words);
  uint32_t sum = 0;
  for (const uint16_t word : words) sum += word;
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

Bytes frame_of(const FrameAddresses& addresses, const Bytes& datagram) {
  FrameHeaders h{};
  std::copy(addresses.to_mac.begin(), addresses.to_mac.end(), h.eth.h_dest);
  std::copy(addresses.from_mac.begin(), addresses.from_mac.end(), h.eth.h_source);
  h.eth.h_proto = htons(ETH_P_IP);
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.ttl = 64;
  ip.protocol = IPPROTO_UDP;
  std::memcpy(&ip.saddr, addresses.from.ip.data(), sizeof ip.saddr);
  std::memcpy(&ip.daddr, addresses.to.ip.data(), sizeof ip.daddr);
  ip.tot_len = htons(static_cast<uint16_t>(sizeof h.ip + sizeof h.udp + datagram.size()));
  ip.check = ip_checksum(ip);
  h.ip = ip;
  h.udp.source = htons(addresses.from.port);
  h.udp.dest = htons(addresses.to.port);
  h.udp.len = htons(static_cast<uint16_t>(sizeof h.udp + datagram.size()));
  Bytes frame(sizeof h + datagram.size());
  std::memcpy(frame.data(), &h, sizeof h);
  std::copy(datagram.begin(), datagram.end(), frame.begin() + sizeof h);
  return frame;
}

}  // namespace netsum::conformance
