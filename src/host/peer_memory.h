// Reads the memory of the other ranks of a host, so that large inputs need not be copied to the segment. The kernel copies
// from one process to another (process_vm_readv), if it permits that; where it does not, nothing is read in place.
//
// Thread rule: one thread.
#ifndef NETSUM_SRC_HOST_PEER_MEMORY_H_
#define NETSUM_SRC_HOST_PEER_MEMORY_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/host/segment.h"

namespace netsum {

class PeerMemory {
 public:
  // Tells the other ranks, in the segment, where this one is. `allowed`: false if no rank is to read in place.
  PeerMemory(Segment* segment, size_t local, bool allowed);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Finds out whether this rank can read the memory of all others, and tells them. Every rank must exist. Later calls do
  // nothing.
  void probe();
  // Whether every rank can read the memory of every other. All must have called probe().
  bool available() const;

  // Copies `bytes` from the memory of `rank`, which `from` lists. False if that process has ended or the memory is not
  // there.
  bool read(size_t rank, std::span<const iovec> from, void* to, size_t bytes) const;

  // This rank gives its operations up, so its memory changes from now on without regard to the others.
  void withdraw();
  // Whether `rank` had done so. What was read before a call that returns false is what the rank submitted.
  bool withdrawn(size_t rank) const;

 private:
  bool read_some(size_t rank, std::span<const iovec> from, void* to, size_t bytes) const;

  Segment& segment_;
  const size_t local_;
  const bool allowed_;
  // Random. Whoever reads from this process also reads this, because after its end another process may get its number.
  const uint64_t identity_;
  bool probed_ = false;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_PEER_MEMORY_H_
