// Which slots of a stripe are whose. Jobs are few and come rarely, so: first fit.
#ifndef NETSUM_AGGREGATOR_DATAPLANE_SLOT_RANGES_H_
#define NETSUM_AGGREGATOR_DATAPLANE_SLOT_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum {

// Not thread-safe.
class SlotRanges {
 public:
  explicit SlotRanges(uint32_t slots) : taken_(slots), free_(slots) {}

  uint32_t free() const { return free_; }

  // The most slots in a row that are free.
  uint32_t longest_run() const {
    uint32_t run = 0, longest = 0;
    for (const bool taken : taken_) {
      run = taken ? 0 : run + 1;
      longest = std::max(longest, run);
    }
    return longest;
  }

  // The first of `wanted` (at least 1) slots in a row, which are now taken: those from `at` on, or the first that
  // are free. Error: kResourceExhausted.
  Result<uint32_t> take(uint32_t wanted, std::optional<uint32_t> at = std::nullopt) {
    const std::optional<uint32_t> first = find(wanted, at);
    if (!first)
      return Status(ErrorCode::kResourceExhausted,
                    "the job asks for " + std::to_string(wanted) + " slots in a row" +
                        (at ? " from " + std::to_string(*at) + " on" : "") + "; " + std::to_string(free_) +
                        " of " + std::to_string(taken_.size()) + " are free, at most " +
                        std::to_string(longest_run()) + " in a row");
    std::fill_n(taken_.begin() + *first, wanted, true);
    free_ -= wanted;
    return *first;
  }

  void give_back(uint32_t first, uint32_t count) {
    std::fill_n(taken_.begin() + first, count, false);
    free_ += count;
  }

 private:
  std::optional<uint32_t> find(uint32_t wanted, std::optional<uint32_t> at) const {
    uint32_t run = 0;
    for (uint32_t slot = at.value_or(0); slot < taken_.size(); ++slot) {
      run = taken_[slot] ? 0 : run + 1;
      if (run == 0 && at) return std::nullopt;
      if (run >= wanted) return slot + 1 - wanted;
    }
    return std::nullopt;
  }

  std::vector<bool> taken_;
  uint32_t free_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_DATAPLANE_SLOT_RANGES_H_
