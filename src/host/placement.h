// Where the ranks of a job run: who shares this host's memory, and who speaks for each host in the network.
#ifndef NETSUM_SRC_HOST_PLACEMENT_H_
#define NETSUM_SRC_HOST_PLACEMENT_H_

#include <span>
#include <string>
#include <vector>

namespace netsum {

// A name for what this process can share memory with: the kernel it runs on (its boot id), its network
// namespace, and its user. Processes of equal names find each other's sockets and may map each other's
// memory.
// "" if memory cannot be shared here at all.
std::string this_host();

struct Placement {
  // Ranks by host: hosts in the order of their lowest ranks, the ranks of each ascending.
  std::vector<std::vector<int>> hosts;
  size_t host = 0;   // this rank's
  size_t local = 0;  // its place in hosts[host]
  // The first `owners` ranks of every host each sum a part of every tensor, and carry that part's sum into
  // the network: as many as the smallest host has, so that every owner has a counterpart on each host, and 8
  // at most. On a lone host all ranks are owners.
  size_t owners = 1;

  bool shares_memory() const;  // some host has several ranks
  // Of one rank's elements in a slot of the shared memory. Hosts with several ranks sum block by block
  // together, so it depends on the largest host, not on this one.
  size_t block_bytes() const;
  const std::vector<int>& local_ranks() const { return hosts[host]; }
  bool is_owner() const { return local < owners; }
  // Those whose parts are the same as this rank's, by host.
  std::vector<int> counterparts() const;
};

// `names`: this_host() of every rank, as the control plane has gathered them; a rank without a name shares
// with nobody.
Placement place(std::span<const std::string> names, int rank);

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_PLACEMENT_H_
