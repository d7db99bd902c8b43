#include "src/net/af_xdp/frame.h"

#include <linux/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <cstddef>
#include <cstring>

namespace netsum {
namespace {

struct __attribute__((packed)) Headers {
  ethhdr eth;
  iphdr ip;
  udphdr udp;
};
static_assert(sizeof(Headers) == kFrameHeaderBytes && offsetof(Headers, ip) == kEthernetBytes);

constexpr uint8_t kHops = 64;
constexpr uint16_t kDontFragment = 0x4000;

// One's complement sum of the words, as they lie in memory: the byte order cancels out.
uint32_t sum_words(const void* data, size_t bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes; i += 2) {
    uint16_t word = 0;
    std::memcpy(&word, static_cast<const uint8_t*>(data) + i, sizeof word);
    sum += word;
  }
  return sum;
}

uint16_t fold(uint32_t sum) {
  sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>((sum & 0xFFFF) + (sum >> 16));
}

}  // namespace

FrameHeaders::FrameHeaders(const MacAddress& from_mac, const Address& from, const MacAddress& to_mac,
                           const Address& to) {
  Headers headers{};
  std::memcpy(headers.eth.h_dest, to_mac.data(), to_mac.size());
  std::memcpy(headers.eth.h_source, from_mac.data(), from_mac.size());
  headers.eth.h_proto = htons(ETH_P_IP);
  headers.ip.version = 4;
  headers.ip.ihl = 5;
  headers.ip.frag_off = htons(kDontFragment);
  headers.ip.ttl = kHops;
  headers.ip.protocol = IPPROTO_UDP;
  std::memcpy(&headers.ip.saddr, from.ip.data(), sizeof headers.ip.saddr);
  std::memcpy(&headers.ip.daddr, to.ip.data(), sizeof headers.ip.daddr);
  headers.udp.source = htons(from.port);
  headers.udp.dest = htons(to.port);
  std::memcpy(bytes_.data(), &headers, sizeof headers);
  ip_sum_ = sum_words(bytes_.data() + offsetof(Headers, ip), sizeof(iphdr));
}

uint32_t FrameHeaders::write(const uint8_t* data, uint32_t size, uint8_t* out) const {
  Headers headers;
  std::memcpy(&headers, bytes_.data(), sizeof headers);
  headers.ip.tot_len = htons(static_cast<uint16_t>(sizeof(iphdr) + sizeof(udphdr) + size));
  headers.ip.check = static_cast<uint16_t>(~fold(ip_sum_ + headers.ip.tot_len));
  headers.udp.len = htons(static_cast<uint16_t>(sizeof(udphdr) + size));
  std::memcpy(out, &headers, sizeof headers);
  if (size > 0) std::memcpy(out + sizeof headers, data, size);  // of nothing, `data` may be null
  return kFrameHeaderBytes + size;
}

InPacket read_frame(const uint8_t* frame) {
  Headers headers;
  std::memcpy(&headers, frame, sizeof headers);
  InPacket packet;
  packet.data = frame + sizeof headers;
  packet.size = ntohs(headers.udp.len) - static_cast<uint32_t>(sizeof(udphdr));
  packet.from.family = 4;
  packet.from.port = ntohs(headers.udp.source);
  std::memcpy(packet.from.ip.data(), &headers.ip.saddr, sizeof headers.ip.saddr);
  return packet;
}

}  // namespace netsum
