// The memory that the ranks of one host share: a few slots, each with room for one block of every rank's
// input and for the block's sum, and what they wait by.
//
// The first of the ranks makes it (a memfd: no name in any file system, nothing left behind however the
// processes end) and hands it to the others over a socket in the abstract name space, which is that of the
// network namespace. Only processes of the same user are served.
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
  std::string name;  // of the meeting: the same for these ranks, and for nobody else
  size_t local = 0;  // this rank among them
  size_t ranks = 1;
  // Of one rank's elements in a slot; the same for all ranks of the job (see Placement::block_bytes()).
  size_t block_bytes = size_t{2} << 20;
  std::chrono::steady_clock::time_point deadline;
  // Asked while waiting for the others: an error ends the wait.
  std::function<Status()> interrupted = [] { return Status(); };
};

class Segment {
 public:
  // Steps use the slots in turn. Three, so that one block can be copied in while the one before is summed and
  // the one before that copied out: then a rank that gets the processor finds work for three.
  static constexpr uint32_t kSlots = 3;

  // Waits until all ranks have mapped it. Errors: kTimeout, kResourceExhausted (no memory), kUnreachable,
  // kPermissionDenied, or what `interrupted` says.
  static Result<std::unique_ptr<Segment>> open(const SegmentOptions& options);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  size_t ranks() const { return ranks_; }
  // Room for one block of one rank's elements, as in the options.
  size_t block_bytes() const { return block_bytes_; }

  // What one rank tells the others about its step in a slot, before it arrives at the barrier in question.
  struct Note {
    uint32_t signature = 0;  // with its input: of the operation
    uint32_t overflow = 0;   // with its part of the sum: an integer does not fit
  };
  // How many steps a rank has gone through: only to name who is waited for.
  struct alignas(kCacheLine) Progress {
    std::atomic<uint64_t> staged{0};
    std::atomic<uint64_t> reduced{0};  // its part of them is summed, or on its way into the network
    std::atomic<uint64_t> taken{0};
  };

  Barrier& staged(uint32_t slot) { return control_->slots[slot].staged; }
  Barrier& reduced(uint32_t slot) { return control_->slots[slot].reduced; }
  Barrier& taken(uint32_t slot) { return control_->slots[slot].taken; }
  Note& note(uint32_t slot, size_t rank) { return control_->slots[slot].notes[rank]; }
  FutexEvent& event(size_t rank) { return control_->events[rank]; }
  Progress& progress(size_t rank) { return control_->progress[rank]; }
  uint8_t* input(uint32_t slot, size_t rank) { return blocks_ + (slot * (ranks_ + 1) + rank) * block_bytes_; }
  uint8_t* sum(uint32_t slot) { return input(slot, ranks_); }

 private:
  struct Slot {
    Barrier staged;   // inputs are in: all ranks
    Barrier reduced;  // parts of the sum are there: all owners
    Barrier taken;    // no rank needs the slot's blocks any more
    Note notes[kMaxRanks];
  };
  struct Control {
    Slot slots[kSlots];
    FutexEvent events[kMaxRanks];
    Progress progress[kMaxRanks];
  };

  Segment(size_t ranks, size_t block_bytes);
  Status make(int* file);
  Status map(int file);

  const size_t ranks_;
  const size_t block_bytes_;
  const size_t bytes_;
  Control* control_ = nullptr;
  uint8_t* blocks_ = nullptr;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_SEGMENT_H_
