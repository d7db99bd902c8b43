// Which of a stripe's slots an operation uses. All ranks derive it from the numbers of slots that they were granted.
//
// Operations are of two streams: sums, and moved bytes. Each stream has its own data slots, so that two operations can be in
// flight in opposite directions, such as an all-gather, which loads the links to the ranks, and a reduce-scatter, which loads
// those from them:
//
//   data slots:   sums, 3/4 | moved bytes, 1/4
//   scale slots:  opening, 3/4 | sums, 1/8 | moved bytes, 1/8
//
// The first scale group of every operation uses an opening slot. These are used in the order of all operations, so ranks that
// are in different operations meet in one of them, which the aggregator reports. The further groups of an operation use the
// scale slots of its stream. A stripe with few slots does not divide them: all operations are of one stream.
#ifndef NETSUM_SRC_WORKER_SLOT_LAYOUT_H_
#define NETSUM_SRC_WORKER_SLOT_LAYOUT_H_

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
    const uint32_t further = data_slots >= 4 ? scale_slots / 8 : 0;
    const uint32_t moves = further > 0 ? data_slots / 4 : 0;
    data_ = {SlotRange{0, data_slots - moves}, SlotRange{data_slots - moves, moves}};
    opening_ = {data_slots, scale_slots - 2 * further};
    further_ = {SlotRange{data_slots + opening_.count, further},
                SlotRange{data_slots + opening_.count + further, further}};
  }

  // Whether moved bytes are a stream of their own.
  constexpr bool divides() const { return data_[kMoves].count > 0; }
  constexpr const SlotRange& data(size_t stream) const { return data_[stream]; }
  constexpr const SlotRange& opening() const { return opening_; }
  // Empty if the slots are not divided: all scale groups use opening slots.
  constexpr const SlotRange& further(size_t stream) const { return further_[stream]; }

 private:
  std::array<SlotRange, kStreams> data_, further_;
  SlotRange opening_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOT_LAYOUT_H_
