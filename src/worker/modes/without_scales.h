// Float sums and byte transfers (wire/PROTOCOL.md, rules 8 and 9): the encoding requires no agreement. A group's first chunk goes to
// the scale slot, so ranks in different operations contribute to the same slot; the other chunks are sent at once in data slots.
// Payloads are written and read as in modes/lanes.h.
#ifndef NETSUM_SRC_WORKER_MODES_WITHOUT_SCALES_H_
#define NETSUM_SRC_WORKER_MODES_WITHOUT_SCALES_H_

#include <cstddef>

#include "src/worker/scale_groups.h"
#include "src/worker/stripe_chunks.h"

namespace netsum {

class WithoutScales {
 public:
  WithoutScales(const StripeChunks& chunks, uint32_t payload_bytes)
      : chunks_(chunks), most_chunks_(payload_bytes / kMinAgreedBytes) {}

  static bool is_for(const Operation& operation) { return !operation.encoding().agrees(); }
  Step open(ScaleGroups::Share* share, ScaleGroup* group) const;

 private:
  const StripeChunks& chunks_;
  const size_t most_chunks_;  // of a group
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_WITHOUT_SCALES_H_
