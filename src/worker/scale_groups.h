// The order of scale groups (scale_group.h), by stream: which is opened next and in which scale slot, which are finished, and
// what their results prove.
//
// The first groups of all operations are opened in the order of the operations. The later groups of an operation follow the
// order of its stream. A scale slot is used again when its group and all groups before that in their stream are finished. So a
// result in a scale slot proves that all ranks have finished them. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_SCALE_GROUPS_H_
#define NETSUM_SRC_WORKER_SCALE_GROUPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "src/worker/scale_group.h"
#include "src/worker/slots/slot_layout.h"
#include "src/worker/step.h"

namespace netsum {

class ScaleGroups {
 public:
  struct Share {  // the stripe's chunks of an operation
    Operation* operation = nullptr;
    size_t chunks = 0;
    StepKind opens_with = StepKind::kAgree;  // the step in the scale slot of each group
    size_t next_chunk = 0;                   // not in a group yet
    uint32_t groups = 0;                     // opened
    uint32_t early = 0;                      // groups in Stream::early
    size_t input_end = 0;  // as Operation::input_end(), of the next group; 0: not known, or nothing
  };

  ScaleGroups(const SlotLayout& layout, uint32_t scale_slots) : layout_(layout), groups_(scale_slots) {}

  // Calls set_up(&group) for each scale slot.
  template <typename SetUp>
  void for_each(const SetUp& set_up) {
    for (ScaleGroup& group : groups_) set_up(&group);
  }
  // The stream of an operation that moves bytes, or of one that sums.
  size_t stream_of(bool moves_bytes) const {
    return moves_bytes && layout_.divides() ? SlotLayout::kMoves : SlotLayout::kSums;
  }
  ScaleGroup& at(uint32_t slot) { return groups_[slot - layout_.first_groups().first]; }
  const ScaleGroup& at(uint32_t slot) const { return groups_[slot - layout_.first_groups().first]; }
  // Groups of the stream are numbered in their order. The number after that of the last one that is open:
  uint64_t end(size_t stream) const { return streams_[stream].retired + streams_[stream].groups.size(); }
  uint32_t slot_of(size_t stream, uint64_t number) const {
    return streams_[stream].groups[number - streams_[stream].retired];
  }

  void enqueue(const Share& share);
  // The operation whose groups are opened next; null: none.
  const Share* next_share(size_t stream) const {
    return streams_[stream].queue.empty() ? nullptr : &streams_[stream].queue.front();
  }

  // The next group to open, if its slot is free and is_due(&share).
  struct Opening {
    uint32_t slot = 0;
    size_t stream = 0;
    bool first = false;  // in a first-group slot
    Share* share = nullptr;
  };
  template <typename IsDue>
  std::optional<Opening> next_opening(const IsDue& is_due) {
    if (!to_open_.empty()) {
      const uint32_t slot = layout_.first_groups().slot(opened_);
      Stream& stream = streams_[to_open_.front()];
      Share* const share = &stream.queue[stream.begun];
      if (is_free(slot) && is_due(share)) return Opening{slot, to_open_.front(), true, share};
    }
    for (size_t number = 0; number < SlotLayout::kStreams; ++number) {
      Stream& stream = streams_[number];
      if (stream.begun == 0 || stream.queue.empty()) continue;
      const uint32_t slot = layout_.later_groups(number).slot(stream.later);
      Share* const share = &stream.queue.front();
      if (is_free(slot) && is_due(share)) return Opening{slot, number, false, share};
    }
    return {};
  }
  // Opening it takes three calls. The mode adds chunks of the share to the group between the first two.
  ScaleGroup* begin(const Opening& opening);
  // True: the group is the last of its stream's order, at end() - 1. False: groups before it are not open.
  bool add(const Opening& opening);
  // True: groups of the next operation, which were open, have become the last in the order.
  bool end_opening(const Opening& opening);

  // A step of data or of a sum is finished. True: and the group with it.
  bool finish_step(ScaleGroup* group);
  void finish(ScaleGroup* group);
  // Frees the slots of finished groups, in the stream's order.
  void retire_finished(size_t stream);
  // An operation whose last group is finished, each once and in that order; null: none.
  Operation* take_finished();

  // The first result in the slot's current use has arrived.
  void note_proof(uint32_t slot);
  // The number of the first operation of which it is not known that all ranks have finished its chunks here; UINT64_MAX if
  // there is none.
  uint64_t first_unproven() const;

  // The first open group of the stream for whose slot waits(slot).
  template <typename Waits>
  std::optional<uint32_t> first_waiting(size_t stream, const Waits& waits) const {
    for (const auto* groups : {&streams_[stream].groups, &streams_[stream].early})
      for (const uint32_t slot : *groups)
        if (waits(slot)) return slot;
    return {};
  }

 private:
  struct Stream {
    std::deque<Share> queue;  // operations with groups still to open
    size_t begun = 0;         // the number of its first operations that need no other first-group slot
    // Open groups in order, from number `retired` on, and those of operations after the first of the queue.
    std::deque<uint32_t> groups, early;
    uint64_t retired = 0;
    uint64_t later = 0;  // groups that were opened in the stream's later-group slots
    // Operations that some rank may not have finished here: number, and number of the group after its last one (UINT64_MAX:
    // not open yet).
    struct Unproven {
      uint64_t operation, end;
    };
    std::deque<Unproven> unproven;
    size_t ends_known = 0;  // of its first operations
  };

  bool is_free(uint32_t slot) const { return at(slot).state == ScaleGroupState::kFree; }
  bool take_begun(size_t stream);

  const SlotLayout layout_;
  std::vector<ScaleGroup> groups_;  // by scale slot
  std::array<Stream, SlotLayout::kStreams> streams_;
  std::deque<size_t> to_open_;       // the streams of operations that need first-group slots, in order
  uint64_t opened_ = 0;              // groups in first-group slots
  std::deque<Operation*> finished_;  // not taken yet
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SCALE_GROUPS_H_
