// Which of a stripe's slots an operation uses. All ranks derive it from the numbers of slots that they were granted.
//
// Operations are of two streams: sums, and byte transfers. Each stream has its own data slots, so that two operations can be in
// flight in opposite directions, such as an all-gather, which loads the links to the ranks, and a reduce-scatter, which loads
// the links from them:
//
//   data slots:   sums, 3/4 | byte transfers, 1/4
//   scale slots:  first groups, 3/4 | later groups of sums, 1/8 | later groups of byte transfers, 1/8
//
// The first scale group of every operation uses a first-group slot. These are used in the order of all operations, so ranks
// that are in different operations contribute to the same slot, and the aggregator reports the mismatch. The later groups of
// an operation use the scale slots of its stream. A stripe with few slots does not divide them: all operations are of one stream.
#ifndef NETSUM_SRC_WORKER_SLOTS_SLOT_LAYOUT_H_
#define NETSUM_SRC_WORKER_SLOTS_SLOT_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace netsum {

// Slots [first, first + count). They are used in turn.
struct SlotRange {
  uint32_t first = 0;
  uint32_t count = 0;

  constexpr uint32_t slot(uint64_t n) const { return first + static_cast<uint32_t>(n % count); }
};

class SlotLayout {
 public:
  static constexpr size_t kSums = 0, kMoves = 1, kStreams = 2;

  constexpr SlotLayout(uint32_t data_slots, uint32_t scale_slots) {
    const uint32_t later = data_slots >= 4 ? scale_slots / 8 : 0;
    const uint32_t moves = later > 0 ? data_slots / 4 : 0;
    data_ = {SlotRange{0, data_slots - moves}, SlotRange{data_slots - moves, moves}};
    first_groups_ = {data_slots, scale_slots - 2 * later};
    later_groups_ = {SlotRange{data_slots + first_groups_.count, later},
                     SlotRange{data_slots + first_groups_.count + later, later}};
  }

  // Whether byte transfers have a separate stream.
  constexpr bool divides() const { return data_[kMoves].count > 0; }
  constexpr const SlotRange& data(size_t stream) const { return data_[stream]; }
  constexpr const SlotRange& first_groups() const { return first_groups_; }
  // Empty if the slots are not divided: all scale groups use first-group slots.
  constexpr const SlotRange& later_groups(size_t stream) const { return later_groups_[stream]; }

 private:
  std::array<SlotRange, kStreams> data_, later_groups_;
  SlotRange first_groups_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_SLOT_LAYOUT_H_
