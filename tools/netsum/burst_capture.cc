// Captures in the formats pcap and pcapng, by libpcap.
#include <arpa/inet.h>
#include <pcap/pcap.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "src/base/text.h"
#include "tools/netsum/burst_log.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr uint32_t kEthernetHeader = 14;
constexpr uint16_t kIpv4 = 0x0800, kIpv6 = 0x86DD, kVlan = 0x8100, kServiceVlan = 0x88A8;
constexpr uint8_t kTcp = 6, kUdp = 17;

using Bytes = std::span<const uint8_t>;

uint16_t word(Bytes bytes, size_t at) {
  return static_cast<uint16_t>(bytes[at] << 8 | bytes[at + 1]);
}

// The link layer of a capture: where the IP header is, and what precedes it.
struct LinkLayer {
  int type;
  uint32_t header;     // bytes before the network layer's header
  int protocol_at;     // of the type of the network layer; < 0: IP, by the version in its first byte
  int packet_type_at;  // of Linux's type of packet: 4 is outgoing; < 0: none
};
constexpr std::array<LinkLayer, 8> kLinkLayers = {{{DLT_EN10MB, kEthernetHeader, 12, -1},
                                                   {DLT_LINUX_SLL, 16, 14, 0},
                                                   {DLT_LINUX_SLL2, 20, 0, 10},
                                                   {DLT_RAW, 0, -1, -1},
                                                   {DLT_IPV4, 0, -1, -1},
                                                   {DLT_IPV6, 0, -1, -1},
                                                   {DLT_NULL, 4, -1, -1},
                                                   {DLT_LOOP, 4, -1, -1}}};

struct Packet {
  uint32_t link_bytes = 0;  // before the network layer, as on an Ethernet
  uint32_t bytes = 0;       // of the network layer
  uint32_t ip_bytes = 0;    // the same without what follows the IP packet
  bool ip = false;
  uint32_t headers = 0;  // of IP and of TCP or UDP; 0: another protocol
  std::string source, destination, direction;
};

std::string address_text(Bytes bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
  return text;
}

// `captured` may be shorter than the packet, so that only what is there is read.
void read_ip(Bytes captured, Packet* packet) {
  const bool v6 = !captured.empty() && captured[0] >> 4 == 6;
  const size_t header = v6 ? 40 : captured.empty() ? 0 : size_t{4} * (captured[0] & 15);
  if (captured.size() < 20 || captured.size() < header || header < 20) return;
  packet->ip = true;
  // A frame may end with padding or a checksum. Of a unit of 64 KiB or more the field is 0.
  const uint32_t field = word(captured, v6 ? 4 : 2);
  if (field > 0) packet->ip_bytes = std::min(packet->bytes, field + (v6 ? 40 : 0));
  packet->source = address_text(v6 ? captured.subspan(8, 16) : captured.subspan(12, 4));
  packet->destination = address_text(v6 ? captured.subspan(24, 16) : captured.subspan(16, 4));
  const uint8_t protocol = captured[v6 ? 6 : 9];
  const Bytes inner = captured.subspan(header);
  if (protocol == kUdp) packet->headers = static_cast<uint32_t>(header) + 8;
  if (protocol == kTcp && inner.size() > 12)
    packet->headers = static_cast<uint32_t>(header) + 4 * (inner[12] >> 4);
}

std::optional<Packet> read_packet(const LinkLayer& layer, Bytes captured, uint32_t length) {
  if (captured.size() < layer.header || length < layer.header) return std::nullopt;
  Packet packet;
  size_t header = layer.header;
  packet.link_bytes = kEthernetHeader;
  uint16_t protocol = layer.protocol_at >= 0 ? word(captured, static_cast<size_t>(layer.protocol_at)) : kIpv4;
  while ((protocol == kVlan || protocol == kServiceVlan) && captured.size() >= header + 4) {
    protocol = word(captured, header + 2);
    header += 4;
    packet.link_bytes += 4;
  }
  if (layer.packet_type_at >= 0) {
    const size_t at = static_cast<size_t>(layer.packet_type_at);
    const int type = layer.type == DLT_LINUX_SLL2 ? captured[at] : word(captured, at);
    packet.direction = type == 4 ? "out" : "in";
  }
  if (length < header) return std::nullopt;
  packet.bytes = packet.ip_bytes = length - static_cast<uint32_t>(header);
  if (protocol == kIpv4 || protocol == kIpv6) read_ip(captured.subspan(header), &packet);
  return packet;
}

class CaptureReader {
 public:
  CaptureReader(const std::string& file, const CaptureOptions& options)
      : file_(printable(file)), options_(options), log_(file_) {
    char error[PCAP_ERRBUF_SIZE] = "";
    capture_.reset(pcap_open_offline_with_tstamp_precision(file.c_str(), PCAP_TSTAMP_PRECISION_NANO, error));
    if (capture_ == nullptr) fail(error);
    const int type = pcap_datalink(capture_.get());
    for (const LinkLayer& layer : kLinkLayers) {
      if (layer.type == type) layer_ = &layer;
    }
    if (layer_ == nullptr) {
      const char* name = pcap_datalink_val_to_name(type);
      fail(fmt::format(
          "its link type is {}, which has no frames of Ethernet or IP that netsum knows; capture at an "
          "interface of Ethernet, or with `tcpdump -i any`",
          name != nullptr ? name : std::to_string(type)));
    }
    if (options.filter.empty()) return;
    bpf_program program{};
    if (pcap_compile(capture_.get(), &program, options.filter.c_str(), 1, PCAP_NETMASK_UNKNOWN) != 0)
      throw UsageError(fmt::format("--filter: {}", pcap_geterr(capture_.get())));
    const bool set = pcap_setfilter(capture_.get(), &program) == 0;
    pcap_freecode(&program);
    if (!set) throw UsageError(fmt::format("--filter: {}", pcap_geterr(capture_.get())));
  }

  BurstLog read() {
    for (;;) {
      pcap_pkthdr* header = nullptr;
      const u_char* data = nullptr;
      const int got = pcap_next_ex(capture_.get(), &header, &data);
      if (got == PCAP_ERROR_BREAK) break;
      if (got != 1) {
        log_.warn(
            fmt::format("the file is damaged or cut off after {} packets ({}); the figures are of these",
                        packets_, printable(pcap_geterr(capture_.get()))));
        break;
      }
      ++packets_;
      // The microseconds are nanoseconds at this precision.
      seconds_ = whole_seconds(header->ts.tv_sec);
      const auto at_ns = static_cast<int64_t>(static_cast<uint64_t>(seconds_) * 1'000'000'000 +
                                              static_cast<uint64_t>(header->ts.tv_usec));
      take(at_ns, Bytes(data, header->caplen), header->len);
    }
    if (split_ > 0)
      log_.warn(fmt::format(
          "{} units of segmentation offload, of up to {} bytes, are split into frames of {} bytes of "
          "IP that all come at the time of their unit: figures of windows shorter than a unit takes "
          "on the link are too high",
          split_, largest_unit_, options_.mtu));
    if (short_ > 0) log_.warn(fmt::format("{} packets too short for their link type are left out", short_));
    return log_.finish();
  }

 private:
  struct Close {
    void operator()(pcap_t* capture) const { pcap_close(capture); }
  };

  [[noreturn]] void fail(const std::string& why) const { throw UsageError(file_ + ": " + printable(why)); }
  std::string place() const { return "packet " + std::to_string(packets_); }

  // In a pcap file seconds have 32 bits, which libpcap takes as signed. They wrap if that brings a packet near the one before.
  int64_t whole_seconds(int64_t stored) const {
    constexpr int64_t kWrap = int64_t{1} << 32, kDay = 86'400;
    const int64_t seconds = stored < 0 ? stored + kWrap : stored;
    return packets_ > 1 && std::abs(seconds + kWrap - seconds_) < kDay ? seconds + kWrap : seconds;
  }

  void take(int64_t at_ns, Bytes captured, uint32_t length) {
    const std::optional<Packet> packet = read_packet(*layer_, captured, length);
    if (!packet) {
      ++short_;
      return;
    }
    std::string port;
    if (options_.by == "source") port = packet->ip ? packet->source : "not IP";
    if (options_.by == "destination") port = packet->ip ? packet->destination : "not IP";
    const auto add = [&](uint32_t bytes) {
      log_.add(place(), port, packet->direction, at_ns, packet->link_bytes + bytes);
    };
    if (packet->ip_bytes <= options_.mtu) {
      add(packet->bytes);
      return;
    }
    const bool known = packet->headers > 0 && packet->headers < options_.mtu;
    if (!options_.split || !known)
      fail(fmt::format(
          "{} has {} bytes above the link layer, more than an MTU of {}: it is a unit of segmentation "
          "offload (GSO, GRO), not a frame; {}, or --mtu N if the link has larger frames. To capture "
          "frames: ethtool -K DEVICE gro off gso off tso off",
          place(), packet->ip_bytes, options_.mtu,
          known ? "give --split to count its frames" : "it is neither TCP nor UDP, so it cannot be split"));
    ++split_;
    largest_unit_ = std::max(largest_unit_, packet->ip_bytes);
    const uint32_t most = options_.mtu - packet->headers;
    for (uint32_t left = packet->ip_bytes - packet->headers; left > 0;) {
      const uint32_t part = std::min(left, most);
      add(packet->headers + part);
      left -= part;
    }
  }

  const std::string file_;
  const CaptureOptions& options_;
  BurstLogBuilder log_;
  std::unique_ptr<pcap_t, Close> capture_;
  const LinkLayer* layer_ = nullptr;
  uint64_t packets_ = 0;
  int64_t seconds_ = 0;  // of the last packet
  uint64_t split_ = 0;
  uint32_t largest_unit_ = 0;
  uint64_t short_ = 0;
};

}  // namespace

BurstLog load_capture(const std::string& file, const CaptureOptions& options) {
  return CaptureReader(file, options).read();
}

}  // namespace netsum::tool
