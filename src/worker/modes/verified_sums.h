// Verified sums (wire/PROTOCOL.md, rule 11): the lanes of every sum carry a tag (src/verify/verified_sums.h), and a result with a
// wrong tag is not taken. Maxima carry none, so the ranks confirm the maxima of a group before they send its data: in a sum, in
// the next rounds of the scale slot, they count by how many ranks each maximum is reached. The tag of that sum proves that all
// ranks have the same maxima.
#ifndef NETSUM_SRC_WORKER_MODES_VERIFIED_SUMS_H_
#define NETSUM_SRC_WORKER_MODES_VERIFIED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "netsum/status.h"
#include "src/verify/verified_sums.h"
#include "src/worker/scale_groups.h"
#include "src/worker/slots/stripe_counters.h"
#include "src/worker/stripe_options.h"

namespace netsum {

class VerifiedSteps {
 public:
  // The options have a sum_key.
  VerifiedSteps(const StripeOptions& options, uint32_t lane_room, ScaleGroups* groups,
                StripeCounters* counters);

  // The bytes of maxima whose counts, in 16 bits each, have room in a packet.
  static uint32_t confirmed_at_once(uint32_t lane_room) { return lane_room / 16 * 8; }

  // The bytes of the step's payload with its tag.
  uint32_t payload_bytes_of(const Step& step) const;
  void write_tag(uint32_t slot, uint32_t round, const Step& step, uint8_t* lanes) const;
  // Whether the result can be taken.
  bool accepts(uint32_t slot, uint32_t round, const Step& step, uint8_t flags, const uint8_t* lanes);
  // kWrongSum; `what` is wrong with the step's sum.
  Status wrong_sum(const Step& step, const std::string& what) const;

  // The step of kAgree or kConfirm is taken. True: the maxima of the group are confirmed. Otherwise a confirmation is due.
  bool is_confirmed(const Step& step);
  // A scale slot whose next confirmation is due. Its step is made that of the confirmation by open().
  std::optional<uint32_t> next_slot();
  void open(Step* step) const;
  void write(const Step& step, uint8_t* lanes) const;
  Status take(const Step& step, const uint8_t* counts);

 private:
  static bool carries_tag(const Step& step) { return step.kind != StepKind::kAgree; }
  bool is_right(uint32_t slot, uint32_t round, const Step& step, const uint8_t* lanes) const;
  verify::SumId sum_id(uint32_t slot, uint32_t round, const Step& step) const;

  const StripeOptions& options_;
  const uint32_t at_once_;  // bytes of maxima
  const verify::VerifiedSums sums_;
  ScaleGroups& groups_;
  StripeCounters& counters_;
  std::deque<uint32_t> due_;  // scale slots whose next round is one of kConfirm
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_VERIFIED_SUMS_H_
