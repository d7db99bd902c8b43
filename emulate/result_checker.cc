#include "emulate/result_checker.h"

#include <algorithm>
#include <cstring>

#include "src/verify/verified_sums.h"
#include "wire/packet.h"

namespace netsum::emulate {

namespace {

// Those that are left out are 0.
std::vector<uint8_t> lanes_of(const netsum_fields& fields, const uint8_t* payload) {
  std::vector<uint8_t> lanes(netsum_full_bytes(&fields));
  if ((fields.flags & NETSUM_FLAG_EMPTY) == 0) std::copy_n(payload, lanes.size(), lanes.begin());
  return lanes;
}

bool is_sum(uint8_t format) {
  return format >> 4 == NETSUM_OP_SUM;
}

// Plainly, so as not to repeat a mistake of an aggregator: maxima of bytes, or sums of little-endian lanes.
void combine(uint8_t format, const std::vector<uint8_t>& more, std::vector<uint8_t>* lanes) {
  if (!is_sum(format)) {
    for (size_t i = 0; i < lanes->size(); ++i) (*lanes)[i] = std::max((*lanes)[i], more[i]);
    return;
  }
  const size_t bytes = netsum_lane_bytes(format);
  for (size_t i = 0; i < lanes->size(); i += bytes) {
    uint64_t sum = 0, lane = 0;
    std::memcpy(&sum, lanes->data() + i, bytes);
    std::memcpy(&lane, more.data() + i, bytes);
    sum += lane;
    std::memcpy(lanes->data() + i, &sum, bytes);
  }
}

// Of the lanes of a result, those that its tag takes.
uint32_t tag_bytes_of(const netsum_fields& fields, int ranks) {
  return is_sum(fields.format) ? verify::tag_bytes(netsum_lane_bytes(fields.format), ranks) : 0;
}

ResultChecker::Round slot_of(ResultChecker::Round round) {
  round.round = 0;
  return round;
}

}  // namespace

void ResultChecker::note_contribution(const Round& round, int rank, const netsum_fields& fields,
                                      const uint8_t* payload) {
  Truth& truth = truths_[round];
  if (truth.contributors[static_cast<size_t>(rank)]) return;
  std::vector<uint8_t> lanes = lanes_of(fields, payload);
  if (truth.contributors.none()) {
    truth.format = fields.format;
    truth.lanes = std::move(lanes);
  } else if (lanes.size() == truth.lanes.size()) {  // otherwise ranks disagree, and there is no sum
    combine(truth.format, lanes, &truth.lanes);
  }
  truth.contributors.set(static_cast<size_t>(rank));
}

const std::vector<uint8_t>* ResultChecker::truth_of(const Round& round, int ranks) const {
  const auto found = truths_.find(round);
  const bool made =
      found != truths_.end() && found->second.contributors.count() == static_cast<size_t>(ranks);
  return made ? &found->second.lanes : nullptr;
}

bool ResultChecker::is_right(const Round& round, int ranks, const netsum_fields& fields,
                             const uint8_t* payload) const {
  const std::vector<uint8_t>* truth = truth_of(round, ranks);
  return truth != nullptr && (fields.flags & NETSUM_FLAG_OVERFLOW) == 0 &&
         lanes_of(fields, payload) == *truth;
}

bool ResultChecker::has_right_lanes(const Round& round, int ranks, const netsum_fields& fields,
                                    const uint8_t* payload) const {
  const std::vector<uint8_t>* truth = truth_of(round, ranks);
  if (truth == nullptr || (fields.flags & NETSUM_FLAG_OVERFLOW) != 0) return false;
  const std::vector<uint8_t> lanes = lanes_of(fields, payload);
  return lanes.size() == truth->size() &&
         std::equal(lanes.begin(), lanes.end() - tag_bytes_of(fields, ranks), truth->begin());
}

std::string ResultChecker::check(const Round& round, int rank, int ranks, const netsum_fields& fields,
                                 const uint8_t* payload, const Reaction& reaction) {
  if (!reaction.waited && !reaction.taken && !reaction.refused) return "";
  const std::string what = "rank " + std::to_string(rank) + ", slot " + std::to_string(round.slot) +
                           " of stripe " + std::to_string(round.aggregator) + ", round " +
                           std::to_string(round.round) + ": ";
  const std::vector<uint8_t>* truth = truth_of(round, ranks);
  if (truth == nullptr) return what + "a result of a sum that has not been made";
  const std::vector<uint8_t> lanes = lanes_of(fields, payload);
  const bool sum = is_sum(fields.format);
  const uint32_t tag = tag_bytes_of(fields, ranks);
  const bool right = has_right_lanes(round, ranks, fields, payload);
  const bool right_tag = right && lanes == *truth;

  const Job job{round.job, round.epoch};
  // Some bits of a tag do not count, so that a result may have others.
  if (!right || (reaction.refused && !right_tag)) lied_to_.insert(job);
  if (!right && !reaction.taken && !reaction.refused) return what + "nobody has noticed a false result";
  if (reaction.refused) alarmed_.insert(job);
  wrong_refused_ += reaction.refused && !right_tag ? 1 : 0;
  // After false scales the counts of all ranks do not fit together.
  const bool false_alarm = reaction.refused && right_tag && (!sum || !misled_jobs_.contains(job));
  false_alarms_ += false_alarm ? 1 : 0;
  if (false_alarm) return what + (sum ? "a right sum was refused" : "right scales were refused");
  const std::string wrong = sum ? check_sum(round, rank, reaction, right, lanes.size() - tag)
                                : check_scales(round, rank, reaction, right, lanes.size());
  return wrong.empty() ? "" : what + wrong;
}

std::string ResultChecker::check_sum(const Round& round, int rank, const Reaction& reaction, bool right,
                                     size_t lanes_bytes) {
  if (reaction.taken && !right) return "a wrong sum was taken";
  const auto misled = misled_.find({slot_of(round), rank});
  if (!reaction.taken || misled == misled_.end()) return "";
  // Each byte is counted in 16 bits.
  uint32_t& left = misled->second.bytes;
  left -= std::min(left, static_cast<uint32_t>(lanes_bytes) / 2);
  return left == 0 ? "false scales were confirmed" : "";
}

std::string ResultChecker::check_scales(const Round& round, int rank, const Reaction& reaction, bool right,
                                        size_t lanes_bytes) {
  if (!reaction.taken) return "";
  if (misled_.contains({slot_of(round), rank})) return "false scales in this slot have not been noticed";
  if (right) return "";
  ++false_scales_;
  misled_.emplace(std::tuple(slot_of(round), rank),
                  Unconfirmed{static_cast<uint32_t>(lanes_bytes), reaction.of_weights});
  misled_jobs_.insert({round.job, round.epoch});
  return "";
}

std::vector<ResultChecker::Misled> ResultChecker::misled() const {
  std::vector<Misled> all;
  for (const auto& [where, unconfirmed] : misled_) {
    const auto& [slot, rank] = where;
    all.push_back({{slot.job, slot.epoch}, rank, unconfirmed.of_weights});
  }
  return all;
}

}  // namespace netsum::emulate
