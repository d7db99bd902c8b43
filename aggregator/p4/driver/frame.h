// UDP datagrams over IPv4, and ARP, in whole Ethernet frames, as a switch passes them to its control plane.
#ifndef NETSUM_AGGREGATOR_P4_DRIVER_FRAME_H_
#define NETSUM_AGGREGATOR_P4_DRIVER_FRAME_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace netsum::p4 {

struct UdpFrame {
  uint64_t to_mac = 0, from_mac = 0;  // 48 bits
  uint32_t from_ip = 0, to_ip = 0;
  uint16_t from_port = 0, to_port = 0;
  std::vector<uint8_t> datagram;
};

// Without IP options and fragments. None: something else, or lengths that contradict each other.
std::optional<UdpFrame> parse_frame(std::span<const uint8_t> frame);

// Without a UDP checksum, as IPv4 allows.
std::vector<uint8_t> build_frame(const UdpFrame& frame);

// Of Ethernet and IPv4.
struct ArpFrame {
  bool is_reply = false;  // a request, otherwise
  uint64_t to_mac = 0;    // of the frame; it comes from sender_mac
  uint64_t sender_mac = 0, target_mac = 0;
  uint32_t sender_ip = 0, target_ip = 0;
};
inline constexpr uint64_t kBroadcastMac = 0xFFFFFFFFFFFF;
// The first 8 bytes of its ARP packet: types and sizes of addresses, and the operation.
inline constexpr uint64_t kArpRequest = 0x0001080006040001, kArpReply = 0x0001080006040002;

std::optional<ArpFrame> parse_arp(std::span<const uint8_t> frame);
std::vector<uint8_t> build_arp(const ArpFrame& frame);

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_DRIVER_FRAME_H_
