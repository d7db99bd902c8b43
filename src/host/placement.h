// Where the ranks of a job run: which share this host's memory, and which sum over the network for their host.
#ifndef NETSUM_SRC_HOST_PLACEMENT_H_
#define NETSUM_SRC_HOST_PLACEMENT_H_

#include <span>
#include <string>
#include <vector>

namespace netsum {

// Identifies the processes with which this one can share memory: those on the same kernel (its boot id), in the same
// network namespace and of the same user. They reach each other's sockets and may map each other's memory. "": memory
// cannot be shared here.
std::string this_host();

struct Placement {
  // Ranks by host: hosts in the order of their lowest ranks, the ranks of each ascending.
  std::vector<std::vector<int>> hosts;
  size_t host = 0;   // this rank's
  size_t local = 0;  // its index in hosts[host]
  // The first `owners` ranks of every host each sum a portion of every host block, also over the network. There are as
  // many as the smallest host has ranks, so that every owner has a counterpart on each host, and at most 8. If there is
  // one host, all its ranks are owners.
  size_t owners = 1;

  bool shares_memory() const;  // some host has several ranks
  // Size of one rank's elements in a segment slot. All hosts sum the same host blocks at the same time, so it depends on
  // the largest host, not on this one.
  size_t host_block_bytes() const;
  const std::vector<int>& local_ranks() const { return hosts[host]; }
  bool is_owner() const { return local < owners; }
  // The ranks that sum the same portions as this rank, by host.
  std::vector<int> counterparts() const;
};

// `names`: this_host() of every rank, as collected by the control plane; a rank without a name shares no memory.
Placement place(std::span<const std::string> names, int rank);

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_PLACEMENT_H_
