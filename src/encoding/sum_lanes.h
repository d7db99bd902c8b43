// The sum of the lanes of several inputs, for encodings.
#ifndef NETSUM_SRC_ENCODING_SUM_LANES_H_
#define NETSUM_SRC_ENCODING_SUM_LANES_H_

#include <cstddef>
#include <cstdint>

#include "src/base/assert.h"
#include "src/encoding/elements.h"
#include "src/kernels/kernels.h"
#include "wire/packet.h"

namespace netsum {

// Calls convert(input, lanes) for the run's values in each input, and writes the sum of what it writes to `lanes`: one lane
// of `lane_bytes` for each element. What an aggregator does for the inputs of different ranks.
// `convert` is a reference, because copying fields that have just been stored stalls the processor.
template <typename Convert>
void sum_lanes(const Elements& elements, const Run& run, size_t lane_bytes, uint8_t* lanes,
               const Convert& convert) {
  convert(run.input, lanes);
  if (elements.inputs() == 1) return;
  alignas(64) uint8_t more[NETSUM_MAX_PAYLOAD];
  const size_t bytes = run.count * lane_bytes;
  NETSUM_ASSERT(bytes <= sizeof more);
  elements.for_each_more_input(run, [&](const uint8_t* input) {
    convert(input, more);
    const bool overflow = kernels::add_lanes(lane_bytes, lanes, more, bytes);
    NETSUM_ASSERT(!overflow);  // the plan excludes it, as in the aggregator
  });
}

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_SUM_LANES_H_
