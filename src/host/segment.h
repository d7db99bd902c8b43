// The memory that the ranks of one host share: a few segment slots, each with room for one host block of every rank's
// input (or for the addresses of inputs that the others read in place) and for the block's sum, and the barriers and events
// between the ranks.
//
// The first rank creates it as a memfd, which has no name in a file system and disappears with its processes, and passes
// it to the others over a socket in the abstract name space, which belongs to the network namespace. Only processes of
// the same user are served.
#ifndef NETSUM_SRC_HOST_SEGMENT_H_
#define NETSUM_SRC_HOST_SEGMENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/host/sync.h"

namespace netsum {

struct SegmentOptions {
  std::string name;  // the same for these ranks, and unique to them
  size_t local = 0;  // this rank among them
  size_t ranks = 1;
  // One rank's elements in a segment slot; equal on all ranks of the job (see Placement::host_block_bytes()).
  size_t host_block_bytes = size_t{2} << 20;
  std::chrono::steady_clock::time_point deadline;
  // Called while waiting for the other ranks: an error ends the wait.
  std::function<Status()> interrupted = [] { return Status(); };
};

class Segment {
 public:
  // Steps use the segment slots in turn. With three, one block is copied in while the previous one is summed and the one
  // before that is copied out.
  static constexpr uint32_t kSlots = 3;

  // Waits until all ranks have mapped it. Errors: kTimeout, kResourceExhausted (no memory), kUnreachable,
  // kPermissionDenied, or that of `interrupted`.
  static Result<std::unique_ptr<Segment>> open(const SegmentOptions& options);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  size_t ranks() const { return ranks_; }
  // As in the options.
  size_t host_block_bytes() const { return host_block_bytes_; }

  // What one rank publishes about its step in a segment slot, before it arrives at the barrier.
  struct Note {
    uint32_t signature = 0;  // of the operation; with its input
    uint32_t overflow = 0;   // an integer of its portion of the sum does not fit; with that portion
  };
  // How many steps a rank has finished; used only in messages that name the ranks that others wait for.
  struct alignas(kCacheLine) Progress {
    std::atomic<uint64_t> staged{0};
    std::atomic<uint64_t> reduced{0};  // its portion is summed, or being summed over the network
    std::atomic<uint64_t> taken{0};
  };

  // What a rank tells the others about its memory (peer_memory.h).
  struct alignas(kCacheLine) Peer {
    int32_t process = 0;
    uint64_t identity = 0;
    uint64_t identity_address = 0;
    std::atomic<uint32_t> reads{0};      // it can read the memory of all other ranks
    std::atomic<uint32_t> withdrawn{0};  // its memory is no longer as it submitted it
  };

  Barrier& staged(uint32_t slot) { return control_->slots[slot].staged; }
  Barrier& reduced(uint32_t slot) { return control_->slots[slot].reduced; }
  Barrier& taken(uint32_t slot) { return control_->slots[slot].taken; }
  Note& note(uint32_t slot, size_t rank) { return control_->slots[slot].notes[rank]; }
  // The rank that sums a block for all, once every rank has staged it. Only messages use it.
  std::atomic<uint32_t>& summing(uint32_t slot) { return control_->slots[slot].summing; }
  FutexEvent& event(size_t rank) { return control_->events[rank]; }
  Progress& progress(size_t rank) { return control_->progress[rank]; }
  Peer& peer(size_t rank) { return control_->peers[rank]; }
  uint8_t* input(uint32_t slot, size_t rank) {
    return blocks_ + (slot * (ranks_ + 1) + rank) * host_block_bytes_;
  }
  uint8_t* sum(uint32_t slot) { return input(slot, ranks_); }
  // Where all ranks write what they contribute to one block, instead of each to its own.
  uint8_t* moved(uint32_t slot) { return input(slot, 0); }

 private:
  struct Slot {
    Barrier staged;   // all ranks have written their inputs
    Barrier reduced;  // all owners have written their portions of the sum
    Barrier taken;    // no rank reads the slot's blocks any more
    std::atomic<uint32_t> summing{0};
    Note notes[kMaxRanks];
  };
  struct Control {
    Slot slots[kSlots];
    FutexEvent events[kMaxRanks];
    Progress progress[kMaxRanks];
    Peer peers[kMaxRanks];
  };

  Segment(size_t ranks, size_t host_block_bytes);
  Status make(int* file);
  Status map(int file);

  const size_t ranks_;
  const size_t host_block_bytes_;
  const size_t bytes_;
  Control* control_ = nullptr;
  uint8_t* blocks_ = nullptr;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_SEGMENT_H_
