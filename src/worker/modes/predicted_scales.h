// Predicted scales (wire/PROTOCOL.md, rule 12): the data of an operation's first group is sent without waiting for the agreement,
// where its bytes can be predicted from earlier operations (scale_history.h). When the agreement arrives, it shows for each
// chunk whether the prediction was right. If so, the sum of its data is the result. If not, the sum is discarded; the chunk
// is resent with the agreed scales after all predicted chunks. Results that overtake the agreement are kept until then.
#ifndef NETSUM_SRC_WORKER_MODES_PREDICTED_SCALES_H_
#define NETSUM_SRC_WORKER_MODES_PREDICTED_SCALES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/worker/scale_group.h"
#include "src/worker/scale_history.h"
#include "src/worker/slots/stripe_counters.h"
#include "src/worker/step.h"
#include "src/worker/stripe_chunks.h"

namespace netsum {

class PredictedScales {
 public:
  PredictedScales(const StripeChunks& chunks, StripeCounters* counters, uint32_t payload_bytes,
                  uint32_t data_slots);

  static void reserve(uint32_t payload_bytes, ScaleGroup* group);
  void predict(ScaleGroup* group);
  // The group is agreed on: which predictions were right?
  void compare(ScaleGroup* group);

  static uint32_t signature_of(const Step& step);
  // The ranks will not use the sum of this step of the group, as far as this rank can see.
  static bool is_discarded(const Step& step, const ScaleGroup& group);
  // Whether it is not known yet if the ranks will use the sum.
  static bool is_open(const Step& step, const ScaleGroup& group) {
    return step.predicted && group.state != ScaleGroupState::kReady;
  }

  struct EarlyResult {
    Step step;
    uint8_t flags = 0;
    std::vector<uint8_t> lanes;
  };
  // The result of a step that is_open(). False: there is no room for it, as if it had been lost.
  bool keep(const Step& step, uint8_t flags, const uint8_t* lanes);
  // Results that were kept, of one group.
  bool has_kept() const { return kept_count_ > 0; }
  uint32_t scale_slot_of_kept() const { return kept_[0].step.scale_slot; }
  // Valid until the next keep().
  const EarlyResult& take_kept() { return kept_[--kept_count_]; }

 private:
  // The agreement was sent before the data, so results that overtake it are rare unless it is lost.
  static constexpr size_t kMostKept = 16;

  const StripeChunks& chunks_;
  StripeCounters& counters_;
  ScaleHistory history_;
  std::vector<EarlyResult> kept_;  // the first kept_count_ are in use
  size_t kept_count_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_PREDICTED_SCALES_H_
