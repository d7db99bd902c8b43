// The slots that have a payload or a PROBE due, in order. It may contain a slot whose step has ended since.
#ifndef NETSUM_SRC_WORKER_SLOTS_URGENT_RING_H_
#define NETSUM_SRC_WORKER_SLOTS_URGENT_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace netsum {

class UrgentRing {
 public:
  // Each slot is in it at most once, so the number of slots suffices.
  explicit UrgentRing(size_t slots) : ring_(slots) {}

  bool empty() const { return count_ == 0; }
  void push(uint32_t slot) { ring_[(first_ + count_++) % ring_.size()] = slot; }
  uint32_t pop() {
    const uint32_t slot = ring_[first_];
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return slot;
  }

 private:
  std::vector<uint32_t> ring_;
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_URGENT_RING_H_
