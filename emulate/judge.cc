#include "emulate/judge.h"

#include <algorithm>

#include "src/verify/verified_sums.h"

namespace netsum::emulate {

namespace {

// Those that are left out are 0.
std::vector<uint8_t> lanes_of(const netsum_fields& fields, const uint8_t* payload) {
  std::vector<uint8_t> lanes(netsum_full_bytes(&fields));
  if ((fields.flags & NETSUM_FLAG_NO_LANES) == 0) std::copy_n(payload, lanes.size(), lanes.begin());
  return lanes;
}

}  // namespace

void Judge::note_truth(const Round& round, const netsum_fields& fields, const uint8_t* payload) {
  truths_.emplace(round, lanes_of(fields, payload));
}

std::string Judge::check(const Round& round, int rank, int ranks, const netsum_fields& fields,
                         const uint8_t* payload, bool taken, bool refused) {
  if (!taken && !refused) return "";
  const std::string what = "rank " + std::to_string(rank) + ", slot " + std::to_string(round.slot) +
                           " of stripe " + std::to_string(round.aggregator) + ", round " +
                           std::to_string(round.round) + ": ";
  const auto found = truths_.find(round);
  if (found == truths_.end()) return what + "a result of a sum that has not been made";
  const std::vector<uint8_t>& truth = found->second;
  const std::vector<uint8_t> lanes = lanes_of(fields, payload);
  const bool sum = fields.format >> 4 == NETSUM_OP_SUM;
  const uint32_t tag = sum ? verify::tag_bytes(netsum_lane_bytes(fields.format), ranks) : 0;
  const bool may_be = lanes.size() == truth.size() && (fields.flags & NETSUM_FLAG_OVERFLOW) == 0;
  const bool right = may_be && std::equal(lanes.begin(), lanes.end() - tag, truth.begin());
  const bool right_tag = right && lanes == truth;

  Round slot = round;
  slot.round = 0;
  wrong_refused_ += refused && !right_tag ? 1 : 0;
  if (sum) {
    if (taken && !right) return what + "a wrong sum was taken";
    // After false scales the counts of all ranks do not fit together.
    if (refused && right_tag && !misled_jobs_.contains({round.job, round.epoch}))
      return what + "a right sum was refused";
    const auto misled = misled_.find({slot, rank});
    if (!taken || misled == misled_.end()) return "";
    // Each byte is counted in 16 bits.
    misled->second -= std::min(misled->second, static_cast<uint32_t>(lanes.size() - tag) / 2);
    return misled->second == 0 ? what + "false scales were confirmed" : "";
  }
  if (refused && right) return what + "right scales were refused";
  if (!taken) return "";
  if (misled_.contains({slot, rank})) return what + "false scales in this slot have not been noticed";
  if (right) return "";
  ++false_scales_;
  misled_.emplace(std::tuple(slot, rank), static_cast<uint32_t>(lanes.size()));
  misled_jobs_.insert({round.job, round.epoch});
  return "";
}

}  // namespace netsum::emulate
