// Inline sums (wire/PROTOCOL.md, rule 8): the elements of a small operation are sent unconverted, one chunk in each scale slot,
// and the aggregator adds them. Each chunk is a scale group without data.
#ifndef NETSUM_SRC_WORKER_MODES_INLINE_SUMS_H_
#define NETSUM_SRC_WORKER_MODES_INLINE_SUMS_H_

#include <cstdint>

#include "netsum/status.h"
#include "src/worker/scale_groups.h"
#include "src/worker/stripe_chunks.h"
#include "src/worker/stripe_options.h"

namespace netsum {

class InlineSums {
 public:
  InlineSums(const StripeOptions& options, const StripeChunks& chunks) : options_(options), chunks_(chunks) {}

  // Whether the operation uses this mode, on all ranks alike.
  bool is_for(const Operation& operation) const;
  Step open(ScaleGroups::Share* share, ScaleGroup* group) const;
  void write(const Step& step, uint8_t* elements) const;
  Status take(const Step& step, const uint8_t* elements) const;

 private:
  // The elements travel as float32. This rank divides their sums and rounds them to the type.
  bool sends_partial_floats() const { return !options_.sums_values; }

  const StripeOptions& options_;
  const StripeChunks& chunks_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_INLINE_SUMS_H_
