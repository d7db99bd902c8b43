#include "src/net/udp/socket.h"

#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "src/net/udp/local_addresses.h"

namespace netsum {
namespace {

constexpr uint32_t kLargestDatagram = 65'507;  // what an IPv4 packet can carry

Status open_error(const Address& address, int error) {
  const std::string where = "UDP socket on " + address.to_string() + ": ";
  switch (error) {
    case EADDRINUSE:
      return Status(ErrorCode::kAddressInUse,
                    where + "another socket has this port; stop the other process or choose another port");
    case EADDRNOTAVAIL:
    case EINVAL:
    case ENODEV:
      return Status(ErrorCode::kInvalidArgument,
                    where + "this host has no such address; see `ip address` for those it has");
    case EAFNOSUPPORT:
      return Status(ErrorCode::kInvalidArgument,
                    where + "this host does not speak IPv" + std::to_string(address.family));
    case EACCES:
    case EPERM:
      return Status(ErrorCode::kInvalidArgument,
                    where + "not permitted; choose a port from 1024 up, or 0 for any free one");
    case EMFILE:
      return Status(ErrorCode::kResourceExhausted,
                    where + "this process has all the files open that it may have; see `ulimit -n`");
    default:
      return Status(ErrorCode::kResourceExhausted, where + std::strerror(error));
  }
}

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// The forced form passes the system's limit but needs CAP_NET_ADMIN; the plain one is cut to the limit.
void set_buffers(int fd, const UdpIoOptions& options) {
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, options.receive_buffer)) {
    set_option(fd, SOL_SOCKET, SO_RCVBUF, options.receive_buffer);
  }
  if (!set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, options.send_buffer)) {
    set_option(fd, SOL_SOCKET, SO_SNDBUF, options.send_buffer);
  }
}

// Nothing proves that an ICMP message comes from the path: PROBE ignores the path MTU that it reports, and sends what fits
// the interface. A path that carries less loses the HELLOs of full size, which a join reports.
bool set_fragmentation(int fd, const UdpIoOptions& options) {
  if (options.bind.family == 4) {
    const int mode = options.dont_fragment ? IP_PMTUDISC_PROBE : IP_PMTUDISC_DONT;
    return set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, mode);
  }
  const int mode = options.dont_fragment ? IPV6_PMTUDISC_PROBE : IPV6_PMTUDISC_DONT;
  return set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, mode);
}

// So that packets to groups leave by the interface that has the address bound, whatever the routes say: their
// source is then what the receivers expect.
Status set_multicast_sending(int fd, const UdpIoOptions& options) {
  if (options.bind.family != 4 || options.bind.is_wildcard()) {
    return Status(ErrorCode::kInvalidArgument,
                  "UDP socket on " + options.bind.to_string() +
                      ": sending to multicast groups needs one IPv4 address of this host");
  }
  ip_mreqn by{};
  std::memcpy(&by.imr_address, options.bind.ip.data(), sizeof by.imr_address);
  if (setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by) != 0 ||
      !set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, options.multicast_ttl)) {
    return open_error(options.bind, errno);
  }
  return Status();
}

Status join_group(int fd, const MulticastMembership& membership) {
  ip_mreqn join{};
  std::memcpy(&join.imr_multiaddr, membership.multicast_group.ip.data(), sizeof join.imr_multiaddr);
  std::memcpy(&join.imr_address, membership.interface.ip.data(), sizeof join.imr_address);
  if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join) == 0) return Status();
  const int error = errno;
  const std::string what = "cannot join multicast group " + membership.multicast_group.to_string() +
                           " by the interface of " + membership.interface.to_string() + ": ";
  if (error == ENOBUFS) {
    return Status(
        ErrorCode::kResourceExhausted,
        what + "this host's limit is reached; raise it with `sysctl net.ipv4.igmp_max_memberships`");
  }
  return Status(ErrorCode::kInvalidArgument, what + std::strerror(error));
}

// The kernel runs it on each datagram from its UDP header on: 0 drops it. Five instructions for each source, of 4096.
Status take_only_from(int fd, const MulticastMembership& membership) {
  std::vector<sock_filter> filter;
  for (const Address& source : membership.sources) {
    uint32_t ip = 0;
    std::memcpy(&ip, source.ip.data(), sizeof ip);
    filter.insert(
        filter.end(),
        {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_NET_OFF) + 12),
         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(ip), 0, 3), BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),
         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, source.port, 0, 1), BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)});
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  sock_fprog program;
  std::memset(&program, 0, sizeof program);  // its padding, too: memcheck looks at all that the kernel gets
  program.len = static_cast<unsigned short>(filter.size());
  program.filter = filter.data();
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return Status();
  return Status(ErrorCode::kUnsupported,
                "UDP socket of multicast group " + membership.multicast_group.to_string() +
                    ": the kernel takes no filter of " + std::to_string(membership.sources.size()) +
                    " senders: " + std::strerror(errno));
}

// Local address and offloads, once the socket is bound.
Status finish_open(const UdpIoOptions& options, const Address& bound, UdpSocket* out) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  const int fd = out->fd.get();
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return open_error(bound, errno);
  out->local = Address::from_sockaddr(name);
  int segment = 0;
  socklen_t segment_size = sizeof segment;
  out->gso = options.gso && getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, &segment_size) == 0;
  out->gro = options.gro && set_option(fd, IPPROTO_UDP, UDP_GRO, 1);
  return Status();
}

// `shared`: others of ours have the port, or will have it.
Result<UdpSocket> open_bound(const UdpIoOptions& options, bool shared) {
  if (!options.bind.valid()) {
    return Status(ErrorCode::kInvalidArgument, "UDP socket: no address to bind; use 0.0.0.0 or [::] for all");
  }
  if (options.max_packet == 0 || options.max_packet > kLargestDatagram) {
    return Status(ErrorCode::kInvalidArgument, "UDP socket: largest packet " +
                                                   std::to_string(options.max_packet) + " is not from 1 to " +
                                                   std::to_string(kLargestDatagram) + " bytes");
  }
  const int domain = options.bind.family == 4 ? AF_INET : AF_INET6;
  UdpSocket out;
  out.fd = FileDescriptor(socket(domain, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.fd.valid()) return open_error(options.bind, errno);
  const int fd = out.fd.get();

  set_buffers(fd, options);
  if (domain == AF_INET6 && !set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1))
    return open_error(options.bind, errno);
  if (!set_fragmentation(fd, options)) return open_error(options.bind, errno);
  if (options.multicast_ttl > 0) {
    if (const Status status = set_multicast_sending(fd, options); !status.ok()) return status;
  }

  if (shared && !set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1)) return open_error(options.bind, errno);
  sockaddr_storage name{};
  const socklen_t size = options.bind.to_sockaddr(&name);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), size) != 0) return open_error(options.bind, errno);
  if (options.answer_from_address_asked && options.bind.is_wildcard()) {
    if (!LocalAddresses::ask(fd, options.bind.family)) return open_error(options.bind, errno);
    out.says_local = true;
  }
  if (const Status status = finish_open(options, options.bind, &out); !status.ok()) return status;
  return out;
}

}  // namespace

uint64_t overflowed(int fd) {
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t size = sizeof memory;
  // In vain before Linux 4.12 only.
  getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size);
  return memory[SK_MEMINFO_DROPS];
}

Result<UdpSocket> open_multicast_socket(const MulticastMembership& membership, const UdpIoOptions& options) {
  UdpSocket out;
  out.fd = FileDescriptor(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.fd.valid()) return open_error(membership.multicast_group, errno);
  const int fd = out.fd.get();
  set_buffers(fd, options);
  // The ranks of one host each have a socket on the group's port; the kernel gives every one its copy.
  if (!set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1)) return open_error(membership.multicast_group, errno);
  sockaddr_storage name{};
  const socklen_t size = membership.multicast_group.to_sockaddr(&name);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), size) != 0)
    return open_error(membership.multicast_group, errno);
  if (!membership.sources.empty())
    if (const Status status = take_only_from(fd, membership); !status.ok()) return status;
  if (const Status status = join_group(fd, membership); !status.ok()) return status;
  if (const Status status = finish_open(options, membership.multicast_group, &out); !status.ok())
    return status;
  return out;
}

Result<UdpSocket> open_udp_socket(const UdpIoOptions& options) {
  return open_bound(options, false);
}

// The first takes the port for itself alone, so that a port in use is found. The kernel numbers them in the
// order in which they are bound.
Result<std::vector<UdpSocket>> open_udp_queues(const UdpIoOptions& options) {
  if (options.queues < 1 || options.queues > UdpIoOptions::kMaxQueues) {
    return Status(ErrorCode::kInvalidArgument, "UDP socket: " + std::to_string(options.queues) +
                                                   " queues are not from 1 to " +
                                                   std::to_string(UdpIoOptions::kMaxQueues));
  }
  std::vector<UdpSocket> sockets;
  Result<UdpSocket> first = open_udp_socket(options);
  if (!first.ok()) return first.status();
  sockets.push_back(std::move(first).value());
  if (options.queues == 1) return sockets;
  UdpIoOptions rest = options;
  rest.bind = sockets[0].local;
  const int fd = sockets[0].fd.get();
  if (!set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1)) return open_error(rest.bind, errno);
  while (sockets.size() < static_cast<size_t>(options.queues)) {
    Result<UdpSocket> next = open_bound(rest, true);
    if (!next.ok()) return next.status();
    sockets.push_back(std::move(next).value());
  }
  std::vector<sock_filter> selector = options.queue_selector;
  sock_fprog program;
  std::memset(&program, 0, sizeof program);  // its padding, too: memcheck looks at all that the kernel gets
  program.len = static_cast<unsigned short>(selector.size());
  program.filter = selector.data();
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) != 0) {
    return Status(ErrorCode::kUnsupported,
                  "UDP socket on " + rest.bind.to_string() +
                      ": the kernel does not sort datagrams into queues: " + std::strerror(errno));
  }
  return sockets;
}

}  // namespace netsum
