#include "emulate/faulty_aggregator.h"

#include <algorithm>
#include <cstring>

#include "wire/packet.h"

namespace netsum::emulate {
namespace {

constexpr std::string_view kNames[] = {
    "a contribution dropped",
    "one counted twice",
    "one of another slot",
    "one of an earlier round",
    "one of another rank",
    "one of another job",
    "a lane off by one",
    "two lanes off that cancel",
    "a bit flipped",
    "many lanes altered",
    "zeros",
    "an overflow that is none",
};
static_assert(std::size(kNames) == static_cast<size_t>(Lie::kCount));

// Adds `factor` times the lanes, modulo their range; maxima have no sums, but false ones can be made so as well.
void add(uint8_t format, int factor, const std::vector<uint8_t>& lanes, uint8_t* payload) {
  const size_t bytes = netsum_lane_bytes(format);
  for (size_t i = 0; i < lanes.size(); i += bytes) {
    uint64_t sum = 0, lane = 0;
    std::memcpy(&sum, payload + i, bytes);
    std::memcpy(&lane, &lanes[i], bytes);
    sum += static_cast<uint64_t>(factor) * lane;
    std::memcpy(payload + i, &sum, bytes);
  }
}

}  // namespace

std::string_view name_of(Lie lie) {
  return kNames[static_cast<size_t>(lie)];
}

void FaultyAggregator::observe(const Round& round, const netsum_fields& fields, const uint8_t* payload) {
  if ((fields.flags & NETSUM_FLAG_EMPTY) != 0) return;
  if (!heard_.emplace(std::tuple(round, fields.member), contributions_.size()).second) return;
  contributions_.push_back({round, fields.member, fields.format, {payload, payload + fields.payload_bytes}});
}

// Another contribution of the same shape to put in the place of this one: the first from a random place on.
const FaultyAggregator::Contribution* FaultyAggregator::another(Lie lie, const Contribution& than) {
  const size_t first = rng_.below(contributions_.size());
  for (size_t i = 0; i < contributions_.size(); ++i) {
    const Contribution& other = contributions_[(first + i) % contributions_.size()];
    const Round &a = other.round, &b = than.round;
    if (other.format != than.format || other.lanes.size() != than.lanes.size()) continue;
    const bool same_job = a.job == b.job && a.epoch == b.epoch;
    const bool same_member = other.member == than.member;
    const bool fits = lie == Lie::kSwapped ? same_job && same_member && a.slot != b.slot
                      : lie == Lie::kStale ? same_job && same_member && a.slot == b.slot && a.round < b.round
                                           : !same_job;
    if (fits) return &other;
  }
  return nullptr;
}

void FaultyAggregator::replace(Lie lie, const Round& round, const netsum_fields& fields, uint8_t* payload) {
  const auto first = heard_.lower_bound(std::tuple(round, uint16_t{0}));
  std::vector<const Contribution*> all;
  for (auto it = first; it != heard_.end() && std::get<Round>(it->first) == round; ++it)
    if (contributions_[it->second].lanes.size() == fields.payload_bytes)
      all.push_back(&contributions_[it->second]);
  if (all.empty()) return;
  const Contribution& mine = *all[rng_.below(all.size())];
  if (lie == Lie::kDropped) return add(fields.format, -1, mine.lanes, payload);
  if (lie == Lie::kDoubled) return add(fields.format, 1, mine.lanes, payload);
  const Contribution* other = lie == Lie::kOtherRank ? all[rng_.below(all.size())] : another(lie, mine);
  if (other == nullptr) return;
  add(fields.format, -1, mine.lanes, payload);
  add(fields.format, 1, other->lanes, payload);
}

void FaultyAggregator::tell(Lie lie, const Round& round, netsum_fields* fields, uint8_t* payload) {
  const size_t bytes = netsum_lane_bytes(fields->format);
  const size_t lanes = fields->payload_bytes / bytes;
  const auto change = [&](size_t lane, uint64_t by) {
    uint64_t value = 0;
    std::memcpy(&value, payload + lane * bytes, bytes);
    value += by;
    std::memcpy(payload + lane * bytes, &value, bytes);
  };
  switch (lie) {
    case Lie::kOffByOne:
      return change(rng_.below(lanes), rng_.chance(0.5) ? 1 : ~uint64_t{0});
    case Lie::kCancelling: {
      const size_t lane = rng_.below(lanes);
      const uint64_t by = 1 + rng_.below(100);
      change(lane, by);
      return change((lane + 1) % lanes, ~by + 1);
    }
    case Lie::kFlippedBit: {
      const uint64_t bit = rng_.below(8 * uint64_t{fields->payload_bytes});
      payload[bit / 8] = static_cast<uint8_t>(payload[bit / 8] ^ 1u << bit % 8);
      return;
    }
    case Lie::kNoise:
      for (size_t lane = 0; lane < lanes; lane += 1 + rng_.below(4)) change(lane, rng_.next());
      return;
    case Lie::kZeros: {
      if (fields->type == NETSUM_TYPE_CONTRIBUTION) {
        std::fill_n(payload, fields->payload_bytes, uint8_t{0});
        return;
      }
      const netsum_be64 absent = netsum_put64(fields->payload_bytes);
      std::memcpy(payload, &absent, sizeof absent);
      fields->absent_bytes = fields->payload_bytes;
      fields->payload_bytes = NETSUM_EMPTY_BYTES;
      fields->flags |= NETSUM_FLAG_EMPTY;
      return;
    }
    case Lie::kOverflow:
      fields->flags |= NETSUM_FLAG_OVERFLOW;
      return;
    default:
      return replace(lie, round, *fields, payload);
  }
}

bool FaultyAggregator::alter(const Round& round, const Address& to, netsum_fields* fields, uint8_t* payload) {
  if ((fields->flags & NETSUM_FLAG_EMPTY) != 0) return false;
  // All lies about a round in one direction are of one kind.
  const bool upwards = fields->type == NETSUM_TYPE_CONTRIBUTION;
  Rng choice(
      (upwards ? ~seed_ : seed_) ^ netsum_mix64(uint64_t{round.round} << 32 | round.slot) ^
      netsum_mix64(static_cast<uint64_t>(round.aggregator) << 40 | uint64_t{round.job} << 16 | round.epoch));
  if (!choice.chance(upwards ? lies_.upwards : lies_.probability)) return false;
  const auto any = static_cast<Lie>(choice.below(static_cast<uint64_t>(Lie::kCount)));
  const Lie lie = lies_.kind.value_or(any);
  const bool to_all = choice.chance(0.5);
  const uint32_t few = choice.chance(0.5) ? UINT32_MAX : static_cast<uint32_t>(1 + choice.below(3));
  const uint32_t times = lies_.times > 0 ? lies_.times : few;
  uint32_t& sent = sent_[{round, to}];
  const uint64_t listener = netsum_mix64(choice.next() ^ static_cast<uint64_t>(to.ip[3]) << 8 ^ to.ip[2]);
  if (sent++ >= times || (!to_all && listener % 2 == 0)) return false;
  const netsum_fields before = *fields;
  const std::vector<uint8_t> truth(payload, payload + fields->payload_bytes);
  tell(lie, round, fields, payload);
  const bool altered = fields->flags != before.flags || !std::equal(truth.begin(), truth.end(), payload);
  injected_[static_cast<size_t>(lie)] += altered ? 1 : 0;
  injected_upwards_ += altered && upwards ? 1 : 0;
  return altered;
}

}  // namespace netsum::emulate
