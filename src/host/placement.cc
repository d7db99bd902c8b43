#include "src/host/placement.h"

#include <ifaddrs.h>
#include <net/ethernet.h>
#include <net/if_arp.h>
#include <netpacket/packet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>

#include "src/base/assert.h"
#include "src/host/host_identity.h"
#include "src/host/segment.h"

namespace netsum {
namespace {

// The portions of each owner are summed by a job of their own at the aggregators: with the default of 4096 slots per core, a
// dozen fit. A host does not need more streams than this to fill its link.
constexpr size_t kMostOwnersInNetwork = 8;

// Of the interface with the lowest number, which stays while others come and go: the ranks of a host start one after the other.
std::string first_ethernet_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  const sockaddr_ll* first = nullptr;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_PACKET) continue;
    const auto* link = reinterpret_cast<const sockaddr_ll*>(each->ifa_addr);
    if (link->sll_hatype == ARPHRD_ETHER && (first == nullptr || link->sll_ifindex < first->sll_ifindex))
      first = link;
  }
  if (first == nullptr) return "";
  std::string text;
  for (int i = 0; i < ETH_ALEN; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[first->sll_addr[i] >> 4];
    text += kDigits[first->sll_addr[i] & 15];
  }
  return text;
}

}  // namespace

std::string this_host() {
  // Whether this kernel supports such memory must be known before the ranks agree on it.
  const int probe = memfd_create("netsum", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (probe < 0) return "";
  close(probe);
  HostIdentity host;
  struct stat network {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, host.boot_id)) return "";
  if (stat("/proc/self/ns/net", &network) != 0) return "";
  host.network_namespace = network.st_ino;
  host.ethernet = first_ethernet_address();
  host.user = geteuid();
  return host.name();
}

std::string HostIdentity::name() const {
  return boot_id + "/net:" + std::to_string(network_namespace) + "/eth:" + ethernet +
         "/user:" + std::to_string(user);
}

bool Placement::shares_memory() const {
  return std::any_of(hosts.begin(), hosts.end(), [](const auto& ranks) { return ranks.size() > 1; });
}

// All blocks together should fit the processor's shared cache. Within that, larger blocks are better, especially on a busy
// machine, because every rank waits for a processor once per block.
size_t Placement::host_block_bytes() const {
  constexpr size_t kPage = 4096;
  constexpr size_t kLargest = size_t{2} << 20;
  constexpr size_t kSmallest = size_t{32} << 10;
  constexpr size_t kAllBlocks = size_t{64} << 20;
  size_t most_ranks = 0;
  for (const auto& ranks : hosts) most_ranks = std::max(most_ranks, ranks.size());
  const size_t fair = kAllBlocks / (Segment::kSlots * (most_ranks + 1)) / kPage * kPage;
  return std::clamp(fair, kSmallest, kLargest);
}

std::vector<int> Placement::counterparts() const {
  NETSUM_ASSERT(is_owner());
  std::vector<int> ranks;
  for (const std::vector<int>& there : hosts) ranks.push_back(there[local]);
  return ranks;
}

Placement place(std::span<const std::string> names, int rank) {
  NETSUM_ASSERT(rank >= 0 && static_cast<size_t>(rank) < names.size());
  Placement placement;
  std::map<std::string, size_t> known;
  for (size_t r = 0; r < names.size(); ++r) {
    size_t host = placement.hosts.size();
    if (!names[r].empty()) host = known.try_emplace(names[r], host).first->second;
    if (host == placement.hosts.size()) placement.hosts.emplace_back();
    if (static_cast<int>(r) == rank) {
      placement.host = host;
      placement.local = placement.hosts[host].size();
    }
    placement.hosts[host].push_back(static_cast<int>(r));
  }
  placement.owners = placement.hosts.front().size();
  for (const auto& ranks : placement.hosts) placement.owners = std::min(placement.owners, ranks.size());
  if (placement.hosts.size() > 1) placement.owners = std::min(placement.owners, kMostOwnersInNetwork);
  return placement;
}

}  // namespace netsum
