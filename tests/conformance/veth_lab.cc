#include "tests/conformance/veth_lab.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "src/base/assert.h"
#include "tests/conformance/ip_batch.h"

namespace netsum::conformance {
namespace {

constexpr char kOwnNamespace[] = "/proc/thread-self/ns/net";

int own_namespace() {
  const int fd = open(kOwnNamespace, O_RDONLY | O_CLOEXEC);
  NETSUM_ASSERT(fd >= 0);
  return fd;
}

// A file descriptor of a new namespace, or -1 and errno.
int make_namespace() {
  const int before = own_namespace();
  int made = -1;
  // Without the right to unshare there is none to come back either.
  const bool moved = unshare(CLONE_NEWNET) == 0;
  const int error = errno;
  if (moved) {
    made = own_namespace();
    NETSUM_ASSERT(setns(before, CLONE_NEWNET) == 0);
  }
  close(before);
  errno = error;
  return made;
}

// A veth end takes frames that XDP sends to it only if it polls, which GRO makes it do.
Status switch_gro_on(const std::string& interface) {
  ethtool_value on{.cmd = ETHTOOL_SGRO, .data = 1};
  ifreq request{};
  std::strcpy(request.ifr_name, interface.c_str());
  request.ifr_data = reinterpret_cast<char*>(&on);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int result = ioctl(fd, SIOCETHTOOL, &request);
  close(fd);
  return result == 0 ? Status() : Status(ErrorCode::kUnsupported, "cannot switch GRO on");
}

// A veth pair from this namespace to another one; its end here is up.
Status link_here(const std::string& here, int there, const std::string& name, int mtu) {
  const std::string space = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(there);
  const std::string size = " mtu " + std::to_string(mtu);
  return ip_batch("link add " + here + size + " type veth peer name " + name + size + " netns " + space +
                  "\nlink set dev " + here + " addrgenmode none up\n");
}

std::string to_text(const Mac& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4],
                mac[5]);
  return text;
}

std::string text_of(const Address& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}

}  // namespace

VethLab::Inside::Inside(int network_namespace) : before_(own_namespace()) {
  NETSUM_ASSERT(setns(network_namespace, CLONE_NEWNET) == 0);
}

VethLab::Inside::~Inside() {
  NETSUM_ASSERT(setns(before_, CLONE_NEWNET) == 0);
  close(before_);
}

Result<std::unique_ptr<VethLab>> VethLab::make(int hosts, const Options& options) {
  std::unique_ptr<VethLab> lab(new VethLab);
  for (int i = 0; i < hosts + (options.cut_links ? 2 : 1); ++i) {
    const int made = make_namespace();
    if (made < 0) {
      return Status(errno == EPERM ? ErrorCode::kPermissionDenied : ErrorCode::kUnsupported,
                    std::string("cannot make a network namespace: ") + std::strerror(errno));
    }
    if (i == 0)
      lab->switch_ = made;
    else if (i <= hosts)
      lab->hosts_.push_back(made);
    else
      lab->between_ = made;
  }
  {
    const Inside inside = lab->in_switch();
    const Status status = ip_batch(
        "link set dev lo up\nlink add br0 type bridge forward_delay 0\n"
        "link set dev br0 addrgenmode none\naddress add " +
        text_of(switch_address()) + "/16 dev br0\nlink set dev br0 up\n");
    if (!status.ok()) return status;
  }
  for (int host = 0; host < hosts; ++host) {
    if (const Status status = lab->connect(host, options.mtu); !status.ok()) return status;
  }
  if (options.known_neighbours) {
    if (const Status status = lab->introduce_hosts(); !status.ok()) return status;
  }
  return lab;
}

VethLab::~VethLab() {
  for (const int fd : hosts_) close(fd);
  if (switch_ >= 0) close(switch_);
  if (between_ >= 0) close(between_);
}

Status VethLab::connect(int host, int mtu) const {
  const std::string number = std::to_string(host);
  const int there = hosts_[static_cast<size_t>(host)];
  const bool cut = between_ >= 0;
  {
    const Inside inside = in_switch();
    Status status = cut ? link_here("p" + number, between_, "s" + number, mtu)
                        : link_here("p" + number, there, "eth0", mtu);
    if (status.ok()) status = ip_batch("link set dev p" + number + " master br0\n");
    if (!status.ok()) return status;
  }
  if (cut) {
    const Inside inside = between();
    Status status = link_here("h" + number, there, "eth0", mtu);
    if (status.ok()) status = ip_batch("link set dev s" + number + " addrgenmode none up\n");
    if (status.ok()) status = switch_gro_on("s" + number);
    if (!status.ok()) return status;
  }
  const Inside inside = in_host(host);
  const Status status = ip_batch("link set dev lo up\nlink set dev eth0 addrgenmode none\naddress add " +
                                 text_of(host_address(host)) + "/16 dev eth0\nlink set dev eth0 up" +
                                 (cut ? " gso_max_segs 1\n" : "\n"));
  return status.ok() ? switch_gro_on("eth0") : status;
}

Status VethLab::introduce_hosts() const {
  std::string lines;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    lines += "neighbour replace " + text_of(host_address(host)) + " lladdr " + to_text(host_mac(host)) +
             " dev eth0 nud permanent\n";
  }
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    if (const Status status = ip_in_host(host, lines); !status.ok()) return status;
  }
  return {};
}

Status VethLab::ip_in_host(int host, const std::string& command) const {
  const Inside inside = in_host(host);
  return ip_batch(command + "\n");
}

bool VethLab::send_frame(int host, const Bytes& frame) const {
  const Inside inside = in_host(host);
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_ifindex = static_cast<int>(if_nametoindex("eth0"));
  const ssize_t sent =
      sendto(fd, frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  close(fd);
  return sent == static_cast<ssize_t>(frame.size());
}

Mac VethLab::switch_mac() const {
  const Inside inside = in_switch();
  return mac_here("br0");
}

Mac VethLab::host_mac(int host) const {
  const Inside inside = in_host(host);
  return mac_here("eth0");
}

Mac VethLab::mac_here(const char* interface) {
  ifreq request{};
  std::strcpy(request.ifr_name, interface);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  NETSUM_ASSERT(ioctl(fd, SIOCGIFHWADDR, &request) == 0);
  close(fd);
  Mac mac;
  std::memcpy(mac.data(), request.ifr_hwaddr.sa_data, mac.size());
  return mac;
}

std::vector<std::string> VethLab::ports() const {
  std::vector<std::string> names;
  for (size_t host = 0; host < hosts_.size(); ++host) names.push_back("p" + std::to_string(host));
  return names;
}

Address VethLab::switch_address(uint16_t port) {
  return Address::parse("10.99.1.1:" + std::to_string(port)).value();
}

Address VethLab::host_address(int host, uint16_t port) {
  return Address::parse("10.99.0." + std::to_string(host + 1) + ":" + std::to_string(port)).value();
}

}  // namespace netsum::conformance
