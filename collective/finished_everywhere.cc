#include "collective/finished_everywhere.h"

#include "src/base/assert.h"
#include "src/worker/operation.h"

namespace netsum {

FinishedEverywhere::FinishedEverywhere(const Slots& slots, uint64_t first_number)
    : slots_(slots), number_(first_number), all_(stripes()), ended_(stripes()) {
  NETSUM_ASSERT(slots.data > 0 && slots.scale > 0 && slots.payload_bytes > 1);
}

void FinishedEverywhere::submitted(uint64_t bytes) {
  const uint64_t chunks = (bytes + slots_.payload_bytes - 1) / slots_.payload_bytes;
  const uint64_t group = slots_.payload_bytes / 2;
  const bool values = slots_.sums_values && chunks <= kMostValueChunks;
  for (size_t stripe = 0; stripe < stripes(); ++stripe) {
    const uint64_t share = slots_.chunk_map.count(number_, chunks, stripe);
    if (!values) all_[stripe].data += share;
    all_[stripe].scale += (share + group - 1) / group;
  }
  ++number_;
  operations_.push_back({values, all_});
}

void FinishedEverywhere::ended() {
  NETSUM_ASSERT(ended_count_ - everywhere_ < operations_.size());
  ended_ = operations_[ended_count_ - everywhere_].progress;
  ++ended_count_;
  while (everywhere_ < ended_count_ && is_everywhere(operations_.front())) {
    operations_.pop_front();
    ++everywhere_;
  }
}

bool FinishedEverywhere::is_everywhere(const Submitted& operation) const {
  for (size_t i = 0; i < stripes(); ++i) {
    const Progress& then = operation.progress[i];
    const bool turned = ended_[i].scale - then.scale >= slots_.scale ||
                        (!operation.values && ended_[i].data - then.data >= slots_.data);
    if (then.scale > 0 && !turned) return false;
  }
  return true;
}

}  // namespace netsum
