#include "aggregator/p4/driver/frame.h"

namespace netsum::p4 {
namespace {

constexpr size_t kEthernetBytes = 14, kIpBytes = 20, kUdpBytes = 8;
constexpr size_t kHeaderBytes = kEthernetBytes + kIpBytes + kUdpBytes;
constexpr uint16_t kIpv4 = 0x0800, kArp = 0x0806;
constexpr size_t kArpBytes = 28;
constexpr uint8_t kVersionIhl = 0x45, kUdp = 17, kTtl = 64;

uint64_t get(std::span<const uint8_t> bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | bytes[at + i];
  return value;
}
void put(uint64_t value, size_t count, std::vector<uint8_t>* out) {
  for (size_t i = count; i-- > 0;) out->push_back(static_cast<uint8_t>(value >> 8 * i));
}

// Of an IP header whose checksum is 0; of one with its checksum: 0 if that is right.
uint16_t ip_checksum(std::span<const uint8_t> header) {
  uint32_t sum = 0;
  for (size_t at = 0; at < kIpBytes; at += 2) sum += static_cast<uint32_t>(get(header, at, 2));
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

}  // namespace

std::optional<UdpFrame> parse_frame(std::span<const uint8_t> frame) {
  if (frame.size() < kHeaderBytes || get(frame, 12, 2) != kIpv4) return std::nullopt;
  const std::span<const uint8_t> ip = frame.subspan(kEthernetBytes);
  const bool fragment = (get(ip, 6, 2) & 0x3FFF) != 0;
  if (ip[0] != kVersionIhl || fragment || ip[9] != kUdp || ip_checksum(ip) != 0) return std::nullopt;
  const std::span<const uint8_t> udp = ip.subspan(kIpBytes);
  const size_t udp_bytes = get(udp, 4, 2);
  if (udp_bytes < kUdpBytes || udp_bytes + kIpBytes != get(ip, 2, 2) || udp_bytes > udp.size())
    return std::nullopt;
  UdpFrame found;
  found.to_mac = get(frame, 0, 6);
  found.from_mac = get(frame, 6, 6);
  found.from_ip = static_cast<uint32_t>(get(ip, 12, 4));
  found.to_ip = static_cast<uint32_t>(get(ip, 16, 4));
  found.from_port = static_cast<uint16_t>(get(udp, 0, 2));
  found.to_port = static_cast<uint16_t>(get(udp, 2, 2));
  found.datagram.assign(udp.begin() + kUdpBytes, udp.begin() + static_cast<long>(udp_bytes));
  return found;
}

std::vector<uint8_t> build_frame(const UdpFrame& frame) {
  const size_t udp_bytes = kUdpBytes + frame.datagram.size();
  std::vector<uint8_t> ip = {kVersionIhl, 0};
  put(kIpBytes + udp_bytes, 2, &ip);
  put(0, 4, &ip);  // id, flags, offset
  ip.insert(ip.end(), {kTtl, kUdp, 0, 0});
  put(frame.from_ip, 4, &ip);
  put(frame.to_ip, 4, &ip);
  const uint16_t checksum = ip_checksum(ip);
  ip[10] = static_cast<uint8_t>(checksum >> 8);
  ip[11] = static_cast<uint8_t>(checksum);

  std::vector<uint8_t> bytes;
  bytes.reserve(kHeaderBytes + frame.datagram.size());
  put(frame.to_mac, 6, &bytes);
  put(frame.from_mac, 6, &bytes);
  put(kIpv4, 2, &bytes);
  bytes.insert(bytes.end(), ip.begin(), ip.end());
  put(frame.from_port, 2, &bytes);
  put(frame.to_port, 2, &bytes);
  put(udp_bytes, 2, &bytes);
  put(0, 2, &bytes);
  bytes.insert(bytes.end(), frame.datagram.begin(), frame.datagram.end());
  return bytes;
}

std::optional<ArpFrame> parse_arp(std::span<const uint8_t> frame) {
  if (frame.size() < kEthernetBytes + kArpBytes || get(frame, 12, 2) != kArp) return std::nullopt;
  const std::span<const uint8_t> arp = frame.subspan(kEthernetBytes);
  const uint64_t kind = get(arp, 0, 8);
  if (kind != kArpRequest && kind != kArpReply) return std::nullopt;
  return ArpFrame{.is_reply = kind == kArpReply,
                  .to_mac = get(frame, 0, 6),
                  .sender_mac = get(arp, 8, 6),
                  .target_mac = get(arp, 18, 6),
                  .sender_ip = static_cast<uint32_t>(get(arp, 14, 4)),
                  .target_ip = static_cast<uint32_t>(get(arp, 24, 4))};
}

std::vector<uint8_t> build_arp(const ArpFrame& frame) {
  std::vector<uint8_t> bytes;
  put(frame.to_mac, 6, &bytes);
  put(frame.sender_mac, 6, &bytes);
  put(kArp, 2, &bytes);
  put(frame.is_reply ? kArpReply : kArpRequest, 8, &bytes);
  put(frame.sender_mac, 6, &bytes);
  put(frame.sender_ip, 4, &bytes);
  put(frame.target_mac, 6, &bytes);
  put(frame.target_ip, 4, &bytes);
  return bytes;
}

}  // namespace netsum::p4
