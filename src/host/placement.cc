#include "src/host/placement.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "src/base/assert.h"
#include "src/host/segment.h"

namespace netsum {
namespace {

// The portions of each owner are summed by a job of their own at the aggregators: with the default of 4096 slots per core, a
// dozen fit. A host does not need more streams than this to fill its link.
constexpr size_t kMostOwnersInNetwork = 8;

}  // namespace

std::string this_host() {
  // Whether this kernel supports such memory must be known before the ranks agree on it.
  const int probe = memfd_create("netsum", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (probe < 0) return "";
  close(probe);
  std::string boot_id;
  struct stat network {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, boot_id)) return "";
  if (stat("/proc/self/ns/net", &network) != 0) return "";
  return boot_id + "/net:" + std::to_string(network.st_ino) + "/user:" + std::to_string(geteuid());
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
