#include "collective/finished_everywhere.h"

#include "src/base/assert.h"

namespace netsum {

FinishedEverywhere::FinishedEverywhere(const Slots& slots, uint64_t first_number)
    : slots_(slots), number_(first_number), all_(slots.stripes) {
  NETSUM_ASSERT(slots.stripes > 0 && slots.scale > 0 && slots.payload_bytes > 1);
}

void FinishedEverywhere::ended(uint64_t bytes, const ChunkMap& chunk_map) {
  NETSUM_ASSERT(chunk_map.stripes() == slots_.stripes);
  const uint64_t chunks = (bytes + slots_.payload_bytes - 1) / slots_.payload_bytes;
  const uint64_t group = slots_.payload_bytes / 2;
  for (size_t stripe = 0; stripe < slots_.stripes; ++stripe) {
    const uint64_t share = chunk_map.count(number_, chunks, stripe);
    all_[stripe] += (share + group - 1) / group;
  }
  ++number_;
  operations_.push_back(all_);
  while (!operations_.empty() && is_everywhere(operations_.front())) {
    operations_.pop_front();
    ++everywhere_;
  }
}

bool FinishedEverywhere::is_everywhere(const Progress& operation) const {
  for (size_t i = 0; i < slots_.stripes; ++i) {
    if (operation[i] > 0 && all_[i] - operation[i] < slots_.scale) return false;
  }
  return true;
}

}  // namespace netsum
