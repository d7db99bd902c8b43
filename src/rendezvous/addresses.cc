#include "src/rendezvous/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>

namespace netsum {
namespace {

std::string to_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address->sa_family == AF_INET) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(address);
    if ((ntohl(in->sin_addr.s_addr) >> 24) == 127) return "";
    inet_ntop(AF_INET, &in->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const auto* const in = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) return "";
    inet_ntop(AF_INET6, &in->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family || (each->ifa_flags & IFF_UP) == 0)
        continue;
      const std::string text = to_text(each->ifa_addr);
      if (!text.empty()) found.push_back({each->ifa_name, text});
    }
  }
  return found;
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> space = {};
  const ssize_t length = readlink("/proc/self/ns/net", space.data(), space.size() - 1);
  // Machines that were copied while they ran have one boot id, but not one address.
  const std::vector<InterfaceAddress> addresses = interface_addresses();
  return boot + " " + std::string(space.data(), length > 0 ? static_cast<size_t>(length) : 0) + " " +
         (addresses.empty() ? "" : addresses.front().address);
}

std::string address_towards(const std::string& remote) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* target = nullptr;
  if (getaddrinfo(remote.c_str(), "9", &hints, &target) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(target, &freeaddrinfo);
  const int probe = socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return "";
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  // Chooses a route, and sends nothing.
  const bool found = connect(probe, target->ai_addr, target->ai_addrlen) == 0 &&
                     getsockname(probe, reinterpret_cast<sockaddr*>(&local), &size) == 0;
  close(probe);
  const std::string address = found ? to_text(reinterpret_cast<const sockaddr*>(&local)) : "";
  return address == remote ? "" : address;
}

std::string with_port(const std::string& address, int port) {
  const bool ipv6 = address.find(':') != std::string::npos && address.front() != '[';
  return (ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

}  // namespace netsum
