#include "src/net/af_xdp/routing.h"

#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

namespace netsum {
namespace {

constexpr size_t kRequestBytes = 256;
constexpr size_t kAnswerBytes = 32 << 10;  // the kernel's own limit for one message
constexpr uint8_t kHostPrefix = 32;
constexpr uint16_t kValidNeighbour =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;

struct Request {
  alignas(nlmsghdr) uint8_t bytes[kRequestBytes] = {};
  nlmsghdr* header = mnl_nlmsg_put_header(bytes);

  explicit Request(uint16_t type) { header->nlmsg_type = type; }
  template <typename T>
  T* extra() {
    return static_cast<T*>(mnl_nlmsg_put_extra_header(header, sizeof(T)));
  }
  void put_ip(uint16_t attribute, const Address& address) {
    mnl_attr_put(header, attribute, 4, address.ip.data());
  }
};

Address ip_of(const nlattr* attribute) {
  Address address;
  if (mnl_attr_get_payload_len(attribute) != 4) return address;
  address.family = 4;
  std::memcpy(address.ip.data(), mnl_attr_get_payload(attribute), 4);
  return address;
}

MacAddress mac_of(const nlattr* attribute) {
  MacAddress mac{};
  if (mnl_attr_get_payload_len(attribute) == mac.size()) {
    std::memcpy(mac.data(), mnl_attr_get_payload(attribute), mac.size());
  }
  return mac;
}

// The attributes of an answer, by type; nullptr: absent.
struct Attributes {
  static constexpr uint16_t kTypes = 32;  // above all types used here
  const nlattr* by_type[kTypes] = {};

  Attributes(const nlmsghdr* answer, size_t extra_bytes) {
    const auto note = [](const nlattr* attribute, void* table) {
      const uint16_t type = mnl_attr_get_type(attribute);
      if (type < kTypes) static_cast<const nlattr**>(table)[type] = attribute;
      return MNL_CB_OK;
    };
    mnl_attr_parse(answer, static_cast<unsigned>(extra_bytes), note, by_type);
  }
  const nlattr* operator[](uint16_t type) const { return by_type[type]; }
};

}  // namespace

void Routing::Close::operator()(mnl_socket* socket) const {
  mnl_socket_close(socket);
}

Result<Routing> Routing::open() {
  mnl_socket* socket = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket == nullptr || mnl_socket_bind(socket, 0, MNL_SOCKET_AUTOPID) != 0) {
    const int error = errno;
    if (socket != nullptr) mnl_socket_close(socket);
    return Status(ErrorCode::kResourceExhausted,
                  std::string("no socket to ask the kernel for routes: ") + std::strerror(error));
  }
  Routing routing(socket);
  routing.answer_ = std::make_unique_for_overwrite<uint8_t[]>(kAnswerBytes);
  return routing;
}

const nlmsghdr* Routing::ask(nlmsghdr* request) {
  request->nlmsg_flags = NLM_F_REQUEST;
  request->nlmsg_seq = ++sequence_;
  if (mnl_socket_sendto(socket_.get(), request, request->nlmsg_len) < 0) return nullptr;
  // Answers to earlier calls that gave up have other sequence numbers.
  for (;;) {
    const ssize_t size = mnl_socket_recvfrom(socket_.get(), answer_.get(), kAnswerBytes);
    if (size < 0) return nullptr;
    const auto* answer = reinterpret_cast<const nlmsghdr*>(answer_.get());
    if (!mnl_nlmsg_ok(answer, static_cast<int>(size)) || answer->nlmsg_seq != sequence_) continue;
    return answer->nlmsg_type == NLMSG_ERROR ? nullptr : answer;
  }
}

std::optional<Route> Routing::route(const Address& to) {
  if (to.family != 4) return std::nullopt;
  Request request(RTM_GETROUTE);
  auto* wanted = request.extra<rtmsg>();
  wanted->rtm_family = AF_INET;
  wanted->rtm_dst_len = kHostPrefix;
  request.put_ip(RTA_DST, to);
  const nlmsghdr* answer = ask(request.header);
  if (answer == nullptr || answer->nlmsg_type != RTM_NEWROUTE) return std::nullopt;
  if (static_cast<const rtmsg*>(mnl_nlmsg_get_payload(answer))->rtm_type != RTN_UNICAST) return std::nullopt;
  Route route;
  route.next_hop = to;
  route.next_hop.port = 0;
  const Attributes attributes(answer, sizeof(rtmsg));
  // RTA_VIA: an IPv4 route by way of an IPv6 neighbour.
  if (attributes[RTA_OIF] == nullptr || attributes[RTA_PREFSRC] == nullptr ||
      attributes[RTA_VIA] != nullptr) {
    return std::nullopt;
  }
  route.interface = mnl_attr_get_u32(attributes[RTA_OIF]);
  route.source = ip_of(attributes[RTA_PREFSRC]);
  if (attributes[RTA_GATEWAY] != nullptr) route.next_hop = ip_of(attributes[RTA_GATEWAY]);
  if (!route.source.valid() || !route.next_hop.valid()) return std::nullopt;
  return route;
}

std::optional<MacAddress> Routing::neighbour(uint32_t interface, const Address& ip) {
  Request request(RTM_GETNEIGH);
  auto* wanted = request.extra<ndmsg>();
  wanted->ndm_family = AF_INET;
  wanted->ndm_ifindex = static_cast<int>(interface);
  request.put_ip(NDA_DST, ip);
  const nlmsghdr* answer = ask(request.header);
  if (answer == nullptr || answer->nlmsg_type != RTM_NEWNEIGH) return std::nullopt;
  if ((static_cast<const ndmsg*>(mnl_nlmsg_get_payload(answer))->ndm_state & kValidNeighbour) == 0) {
    return std::nullopt;
  }
  const Attributes attributes(answer, sizeof(ndmsg));
  if (attributes[NDA_LLADDR] == nullptr) return std::nullopt;
  return mac_of(attributes[NDA_LLADDR]);
}

Result<Interface> Routing::interface(uint32_t index) {
  Request request(RTM_GETLINK);
  auto* wanted = request.extra<ifinfomsg>();
  wanted->ifi_family = AF_UNSPEC;
  wanted->ifi_index = static_cast<int>(index);
  const nlmsghdr* answer = ask(request.header);
  if (answer == nullptr || answer->nlmsg_type != RTM_NEWLINK) {
    return Status(ErrorCode::kUnreachable, "the kernel has no interface " + std::to_string(index));
  }
  const auto* link = static_cast<const ifinfomsg*>(mnl_nlmsg_get_payload(answer));
  Interface found;
  found.index = index;
  const Attributes attributes(answer, sizeof(ifinfomsg));
  if (attributes[IFLA_IFNAME] != nullptr) found.name = mnl_attr_get_str(attributes[IFLA_IFNAME]);
  if (attributes[IFLA_ADDRESS] != nullptr) found.mac = mac_of(attributes[IFLA_ADDRESS]);
  if (attributes[IFLA_MTU] != nullptr) found.mtu = mnl_attr_get_u32(attributes[IFLA_MTU]);
  if (attributes[IFLA_QDISC] != nullptr) found.queueing = mnl_attr_get_str(attributes[IFLA_QDISC]);
  if (link->ifi_type != ARPHRD_ETHER) {
    return Status(ErrorCode::kUnsupported,
                  "the route leads over " + found.name + ", which is no Ethernet interface");
  }
  if ((link->ifi_flags & IFF_UP) == 0) return Status(ErrorCode::kUnreachable, found.name + " is down");
  return found;
}

}  // namespace netsum
