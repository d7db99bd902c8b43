// Predicts what the ranks will agree on for an operation: what they agreed on for the operation in its place when the
// sequence of operations was the same before.
//
// Training repeats a sequence of operations in every iteration. Operations have no names that are equal on all ranks, but
// their kinds are. So the earlier operation is found by its surroundings: it follows the one that predicted the operation
// before, as long as kinds agree. Operations in between, such as a sum of statistics now and then, halve the trust in that.
// If the operations before are equal in kind to more of those before another one, then that is it; of several, the latest.
//
// Each byte has a saturating counter, as in the branch predictors of J. E. Smith (A study of branch prediction strategies,
// ISCA 1981): how often it has recurred since it last changed. A byte is trusted after it has recurred twice, but not while
// more than one in 32 of those that were trusted before proves to be wrong: a prediction of noise would be right now and then,
// and cost more than it gains.
//
// All ranks predict alike, because they call the same operations and have agreed on the bytes. No I/O. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_SCALE_HISTORY_H_
#define NETSUM_SRC_WORKER_SCALE_HISTORY_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum {

class ScaleHistory {
 public:
  // So many of the latest operations are remembered, the one that has begun included.
  static constexpr size_t kOperations = 256;

  struct Prediction {
    std::span<const uint8_t> bytes, recurred;  // of equal size; empty: nothing is known
    bool reliable = false;

    // Whether all of the bytes [begin, begin + count) are likely to be right.
    bool trusts(size_t begin, size_t count) const;
  };

  // The next operation of the sequence begins. `kind`: the same for operations with as many agreed bytes of the same elements.
  // The prediction is valid until learn().
  Prediction begin(uint64_t kind);
  // What the ranks have agreed on for the operation that has begun. Before the next one begins.
  void learn(std::span<const uint8_t> agreed);

 private:
  static constexpr uint8_t kTrusted = 2, kMost = 3;

  struct Entry {
    uint64_t kind = 0;
    std::vector<uint8_t> bytes, recurred;
    bool reliable = false;  // at most one in 32 of the trusted bytes were wrong
  };
  Entry& entry(uint64_t number) { return entries_[number % kOperations]; }

  // The number of the operation that predicts this one; begun_: none.
  uint64_t find(uint64_t kind);

  uint64_t begun_ = 0;
  uint64_t following_ = 0;       // the one after that which was found last
  uint32_t followed_equal_ = 0;  // how many kinds have agreed on the way there; halved where they did not
  Prediction prediction_;
  std::array<Entry, kOperations> entries_;
  // By distance: how many of the latest operations are of the same kind as those so far before them.
  std::array<uint32_t, kOperations> equal_{};
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SCALE_HISTORY_H_
