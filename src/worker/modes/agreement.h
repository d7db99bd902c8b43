// The ranks agree on the scanned bytes of a scale group before its data is sent (wire/PROTOCOL.md, rule 3): one packet of 8-bit
// maxima in the scale slot. The agreed bytes determine which packets each chunk needs. Agreements run ahead of the data.
#ifndef NETSUM_SRC_WORKER_MODES_AGREEMENT_H_
#define NETSUM_SRC_WORKER_MODES_AGREEMENT_H_

#include <cstddef>
#include <cstdint>

#include "netsum/status.h"
#include "src/worker/modes/predicted_scales.h"
#include "src/worker/scale_groups.h"
#include "src/worker/slots/stripe_counters.h"
#include "src/worker/stripe_chunks.h"

namespace netsum {

class ScaleAgreement {
 public:
  // `most_bytes`: that a group agrees on, unless one chunk has more. `predicted`: null if nothing is predicted.
  ScaleAgreement(const StripeChunks& chunks, ScaleGroups* groups, StripeCounters* counters,
                 PredictedScales* predicted, size_t most_bytes)
      : chunks_(chunks),
        groups_(*groups),
        counters_(*counters),
        predicted_(predicted),
        most_bytes_(most_bytes) {}

  // As Operation::input_end(), of the chunks of the group that open() would make.
  size_t input_end(const ScaleGroups::Share& share) const;
  Step open(ScaleGroups::Share* share, ScaleGroup* group);
  void write(const Step& step, uint8_t* lanes) const;
  Status take(const Step& step, const uint8_t* maxima);

  // All ranks have the group's bytes.
  void agree(ScaleGroup* group);
  // All groups before this one in its stream are agreed on.
  void reach(ScaleGroup* group);

 private:
  // The steps of data that the group needs are known from now on.
  void settle(ScaleGroup* group);
  // Counts the steps of data that are still to be sent, and writes the results of chunks that need none.
  uint32_t plan_data(const ScaleGroup& group);

  const StripeChunks& chunks_;
  ScaleGroups& groups_;
  StripeCounters& counters_;
  PredictedScales* const predicted_;
  const size_t most_bytes_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_AGREEMENT_H_
