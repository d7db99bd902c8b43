// Which slots of a stripe are whose. Jobs are few and come rarely, so: first fit.
#ifndef NETSUM_AGGREGATOR_CONTROL_SLOT_RANGES_H_
#define NETSUM_AGGREGATOR_CONTROL_SLOT_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum {

// Not thread-safe.
class SlotRanges {
 public:
  explicit SlotRanges(uint32_t slots) : taken_(slots), free_(slots) {}

  uint32_t free() const { return free_; }

  // The first of `wanted` (at least 1) consecutive slots, which are now taken. Error: kResourceExhausted.
  Result<uint32_t> take(uint32_t wanted) {
    uint32_t run = 0;
    for (uint32_t slot = 0; slot < taken_.size(); ++slot) {
      run = taken_[slot] ? 0 : run + 1;
      if (run < wanted) continue;
      const uint32_t first = slot + 1 - wanted;
      std::fill_n(taken_.begin() + first, wanted, true);
      free_ -= wanted;
      return first;
    }
    return Status(ErrorCode::kResourceExhausted, "the job asks for " + std::to_string(wanted) +
                                                     " slots in a row; " + std::to_string(free_) + " of " +
                                                     std::to_string(taken_.size()) + " are free");
  }

  void give_back(uint32_t first, uint32_t count) {
    std::fill_n(taken_.begin() + first, count, false);
    free_ += count;
  }

 private:
  std::vector<bool> taken_;
  uint32_t free_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_SLOT_RANGES_H_
