#include "src/net/interface_rate.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include "src/net/ask_driver.h"

namespace netsum {
namespace {

constexpr double kBitsPerMegabit = 1e6;

// The kernel's answer has a variable part: three bitmaps of at most 127 words.
constexpr size_t kSettingsBytes = sizeof(ethtool_link_settings) + size_t{3 * 127} * sizeof(__u32);

Status no_rate(const std::string& interface, const std::string& reason) {
  return Status(ErrorCode::kUnsupported,
                "interface '" + interface + "' reports no rate (" + reason + "): declare the link's rate");
}

// Whether the interface's driver has no link, and reports a number that says nothing of how fast it is.
bool is_nominal(const std::string& interface) {
  constexpr std::array<std::string_view, 3> kDrivers = {"veth", "bridge", "tun"};
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  if (ask_driver(interface, &info) != 0) return false;
  return std::find(kDrivers.begin(), kDrivers.end(), std::string_view(info.driver)) != kDrivers.end();
}

Address address_of(const ifaddrs& entry) {
  sockaddr_storage name{};
  if (entry.ifa_addr == nullptr) return {};
  const bool v4 = entry.ifa_addr->sa_family == AF_INET;
  if (!v4 && entry.ifa_addr->sa_family != AF_INET6) return {};
  std::memcpy(&name, entry.ifa_addr, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  Address address = Address::from_sockaddr(name);
  address.port = 0;
  return address;
}

}  // namespace

Result<std::string> interface_with_address(const Address& local) {
  if (!local.valid() || local.is_wildcard()) {
    return Status(ErrorCode::kInvalidArgument,
                  (local.valid() ? local.to_string() : std::string("no address")) +
                      ": not the address of one interface; give an address of this host");
  }
  Address wanted = local;
  wanted.port = 0;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Status(ErrorCode::kInternal,
                  std::string("cannot list this host's addresses: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (address_of(*entry) == wanted) return std::string(entry->ifa_name);
  }
  return Status(ErrorCode::kUnreachable,
                "no interface of this host has the address of " + local.to_string() + ": see `ip address`");
}

Result<double> interface_rate_bps(const std::string& interface) {
  alignas(ethtool_link_settings) std::array<std::byte, kSettingsBytes> buffer{};
  auto* const settings = new (buffer.data()) ethtool_link_settings{};
  // The first call returns the number of words in a bitmap, negated; the second one has to repeat it.
  for (int call = 0; call < 2; ++call) {
    settings->cmd = ETHTOOL_GLINKSETTINGS;
    if (ask_driver(interface, settings) != 0) {
      if (errno == EOPNOTSUPP) return no_rate(interface, "its driver has none");
      return no_rate(interface, std::strerror(errno));
    }
    if (call == 0) settings->link_mode_masks_nwords = static_cast<__s8>(-settings->link_mode_masks_nwords);
  }
  const __u32 megabits = settings->speed;
  if (megabits == 0 || megabits == static_cast<__u32>(SPEED_UNKNOWN)) {
    return no_rate(interface, "unknown: without a carrier, or virtual");
  }
  if (is_nominal(interface)) return no_rate(interface, "it is virtual");
  return megabits * kBitsPerMegabit;
}

Result<double> interface_rate_bps(const Address& local) {
  const Result<std::string> interface = interface_with_address(local);
  if (!interface.ok()) return interface.status();
  return interface_rate_bps(*interface);
}

}  // namespace netsum
