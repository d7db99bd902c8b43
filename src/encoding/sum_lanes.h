// The combined lanes of several inputs, for encodings.
#ifndef NETSUM_SRC_ENCODING_SUM_LANES_H_
#define NETSUM_SRC_ENCODING_SUM_LANES_H_

#include <cstddef>
#include <cstdint>

#include "src/base/assert.h"
#include "src/encoding/elements.h"
#include "src/kernels/kernels.h"
#include "wire/packet.h"

namespace netsum {

// Calls convert(input, lanes) for the run's values in each input, and writes to `lanes` what it writes, combined as an aggregator
// combines the lanes of different ranks: combine(acc, lanes, bytes) returns whether a lane overflowed. Each element has
// `lane_bytes`. `convert` is a reference, because copying fields that have just been stored stalls the processor.
template <typename Convert, typename Combine>
void combine_inputs(const Elements& elements, const Run& run, size_t lane_bytes, uint8_t* lanes,
                    const Convert& convert, const Combine& combine) {
  convert(run.input, lanes);
  if (elements.inputs() == 1) return;
  alignas(64) uint8_t more[NETSUM_MAX_PAYLOAD];
  const size_t bytes = run.count * lane_bytes;
  NETSUM_ASSERT(bytes <= sizeof more);
  elements.for_each_more_input(run, [&](const uint8_t* input) {
    convert(input, more);
    const bool overflow = combine(lanes, more, bytes);
    NETSUM_ASSERT(!overflow);  // the plan excludes it, as in the aggregator
  });
}

// The same for sums of lanes of `lane_bytes`.
template <typename Convert>
void sum_lanes(const Elements& elements, const Run& run, size_t lane_bytes, uint8_t* lanes,
               const Convert& convert) {
  combine_inputs(elements, run, lane_bytes, lanes, convert,
                 [lane_bytes](uint8_t* acc, const uint8_t* more, size_t bytes) {
                   return kernels::add_lanes(lane_bytes, acc, more, bytes);
                 });
}

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_SUM_LANES_H_
