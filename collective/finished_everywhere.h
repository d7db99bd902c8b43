// Which of a session's operations all ranks have finished, derived from this rank's own progress. By the protocol
// (wire/PROTOCOL.md, section 6), a slot's round completes only after all members have the result of the previous round,
// and a scale slot is reused only after all data of its scale group has arrived. So when an operation has ended here, all
// ranks have finished the operations that used the same scale slots one round earlier, on each stripe. Steps of data say
// less: values and zeros have none.
#ifndef NETSUM_COLLECTIVE_FINISHED_EVERYWHERE_H_
#define NETSUM_COLLECTIVE_FINISHED_EVERYWHERE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "src/worker/chunk_map.h"

namespace netsum {

class FinishedEverywhere {
 public:
  struct Slots {
    size_t stripes = 0;
    uint32_t scale = 0;  // per stripe
    uint32_t payload_bytes = 0;
  };
  // `first_number`: the number of the first operation on the stripes.
  FinishedEverywhere(const Slots& slots, uint64_t first_number);

  // The next operation in order has ended here: of `bytes` in the narrowest lanes that it may travel in, distributed over
  // the stripes by `chunk_map`.
  void ended(uint64_t bytes, const ChunkMap& chunk_map);
  // The first so many operations are finished on all ranks.
  uint64_t count() const { return everywhere_; }

 private:
  using Progress = std::vector<uint64_t>;  // [stripe]: steps in its scale slots, at least
  bool is_everywhere(const Progress& operation) const;

  const Slots slots_;
  uint64_t number_;
  Progress all_;                     // of the operations that have ended
  std::deque<Progress> operations_;  // running totals, from number everywhere_ on
  uint64_t everywhere_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_FINISHED_EVERYWHERE_H_
