#include "collective/finished_everywhere.h"

#include "src/base/assert.h"
#include "src/worker/operation.h"

namespace netsum {

FinishedEverywhere::FinishedEverywhere(const Slots& slots, uint64_t first_number)
    : slots_(slots), number_(first_number), all_(stripes()), ended_(stripes()) {
  NETSUM_ASSERT(slots.scale > 0 && slots.payload_bytes > 1);
}

void FinishedEverywhere::submitted(uint64_t bytes) {
  const uint64_t chunks = (bytes + slots_.payload_bytes - 1) / slots_.payload_bytes;
  const uint64_t group = slots_.payload_bytes / 2;
  for (size_t stripe = 0; stripe < stripes(); ++stripe) {
    const uint64_t share = slots_.chunk_map.count(number_, chunks, stripe);
    all_[stripe] += (share + group - 1) / group;
  }
  ++number_;
  operations_.push_back(all_);
}

void FinishedEverywhere::ended() {
  NETSUM_ASSERT(ended_count_ - everywhere_ < operations_.size());
  ended_ = operations_[ended_count_ - everywhere_];
  ++ended_count_;
  while (everywhere_ < ended_count_ && is_everywhere(operations_.front())) {
    operations_.pop_front();
    ++everywhere_;
  }
}

bool FinishedEverywhere::is_everywhere(const Progress& operation) const {
  for (size_t i = 0; i < stripes(); ++i) {
    if (operation[i] > 0 && ended_[i] - operation[i] < slots_.scale) return false;
  }
  return true;
}

}  // namespace netsum
