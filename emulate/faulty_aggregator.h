// What a lying or faulty aggregator does to its results, and in a hierarchy to the sums that it sends to its parent: they lack
// a contribution or have one twice, have one of another step, rank or job in the place of the right one, have altered lanes or
// scales. The packets are well-formed and their tags are right, so only verified sums (src/verify) reveal the lie.
#ifndef NETSUM_EMULATE_FAULTY_AGGREGATOR_H_
#define NETSUM_EMULATE_FAULTY_AGGREGATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "src/base/rng.h"
#include "src/net/address.h"
#include "wire/parse.h"

namespace netsum::emulate {

enum class Lie : uint8_t {
  kDropped,     // a contribution is not in the sum
  kDoubled,     // a contribution is in it twice
  kSwapped,     // that of another slot is there in its place
  kStale,       // that of an earlier round
  kOtherRank,   // that of another member, which is there twice
  kOtherJob,    // that of another job, or of another epoch
  kOffByOne,    // one lane
  kCancelling,  // two lanes, so that the sum of all is right
  kFlippedBit,  // as by faulty memory
  kNoise,       // many lanes
  kZeros,       // no lanes at all; upwards, where not every dataplane takes that, lanes that are all 0
  kOverflow,    // says that a lane has overflowed
  kCount,
};
std::string_view name_of(Lie lie);

struct Lies {
  double probability = 0;   // of a round's result
  double upwards = 0;       // of a round's sum that a rack sends to its parent
  std::optional<Lie> kind;  // otherwise, any
  uint32_t times = 0;       // so often to each member, then the truth; 0: up to 3 times, or always
  // One bit of memory flips, of the lanes of ...
  double flipped_in_slots = 0;  // ... a sum that an aggregator has completed, and which it repeats
  double flipped_in_ranks = 0;  // ... a result that a rank has received, after the check of its packet

  bool injected() const { return probability > 0 || upwards > 0; }
  bool any() const { return injected() || flipped_in_slots > 0 || flipped_in_ranks > 0; }
};

class FaultyAggregator {
 public:
  // It lies to all members or to some of them.
  FaultyAggregator(uint64_t seed, const Lies& lies) : seed_(seed), lies_(lies), rng_(seed) {}

  // Which sum: the aggregator, and the slot and round of the job.
  struct Round {
    int aggregator = 0;
    uint16_t job = 0, epoch = 0, slot = 0;
    uint32_t round = 0;
    auto operator<=>(const Round&) const = default;
  };
  static Round round_of(int aggregator, const netsum_fields& fields) {
    return {aggregator, fields.job, fields.epoch, fields.slot, fields.round};
  }

  // A contribution arrives.
  void observe(const Round& round, const netsum_fields& fields, const uint8_t* payload);
  // A result, or the contribution of a rack, leaves for `to`. Returns whether it has altered flags, or payload. (If so, it
  // needs a new tag.)
  bool alter(const Round& round, const Address& to, netsum_fields* fields, uint8_t* payload);

  // Lies told, by kind: packets sent.
  const std::array<uint64_t, static_cast<size_t>(Lie::kCount)>& injected() const { return injected_; }
  uint64_t injected_upwards() const { return injected_upwards_; }  // of them, contributions of racks

 private:
  struct Contribution {
    Round round;
    uint16_t member = 0;
    uint8_t format = 0;
    std::vector<uint8_t> lanes;
  };
  const Contribution* another(Lie lie, const Contribution& than);
  void tell(Lie lie, const Round& round, netsum_fields* fields, uint8_t* payload);
  void replace(Lie lie, const Round& round, const netsum_fields& fields, uint8_t* payload);

  const uint64_t seed_;
  const Lies lies_;
  Rng rng_;
  std::map<std::tuple<Round, uint16_t>, size_t> heard_;  // by round and member: where it is
  std::vector<Contribution> contributions_;
  std::map<std::tuple<Round, Address>, uint32_t> sent_;  // how often each result has been sent to each
  std::array<uint64_t, static_cast<size_t>(Lie::kCount)> injected_{};
  uint64_t injected_upwards_ = 0;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_FAULTY_AGGREGATOR_H_
