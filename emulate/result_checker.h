// Knows what the results of verified sums should have been, and judges what the ranks do with those that they get: a wrong
// sum is never taken, a right one never refused, and scales that are no maxima are noticed before data is sent.
#ifndef NETSUM_EMULATE_RESULT_CHECKER_H_
#define NETSUM_EMULATE_RESULT_CHECKER_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "emulate/faulty_aggregator.h"

namespace netsum::emulate {

class ResultChecker {
 public:
  using Round = FaultyAggregator::Round;  // the aggregator: number of the stripe

  // A rank sends its contribution, perhaps again.
  void note_contribution(const Round& round, int rank, const netsum_fields& fields, const uint8_t* payload);
  // Whether this is the sum of what all `ranks` have sent, tag included.
  bool is_right(const Round& round, int ranks, const netsum_fields& fields, const uint8_t* payload) const;
  // The same without the tag. Some bits of a tag do not count, so that a rank may take a result with others.
  bool has_right_lanes(const Round& round, int ranks, const netsum_fields& fields,
                       const uint8_t* payload) const;

  // What a rank has done with a result.
  struct Reaction {
    bool waited = false;  // for a result of that slot and round; otherwise it has to ignore it
    bool taken = false, refused = false;
    bool of_weights = false;  // it is of the operation in which the ranks correct the weights of stripes
  };
  // Returns what is wrong, or "".
  std::string check(const Round& round, int rank, int ranks, const netsum_fields& fields,
                    const uint8_t* payload, const Reaction& reaction);

  // A job and its epoch.
  using Job = std::pair<uint16_t, uint16_t>;
  const std::set<Job>& lied_to() const { return lied_to_; }  // a false result has reached a rank that waited
  const std::set<Job>& alarmed() const { return alarmed_; }  // a rank has refused a result
  // Ranks that have taken false scales that are not confirmed.
  struct Misled {
    Job job;
    int rank = 0;
    bool of_weights = false;
  };
  std::vector<Misled> misled() const;

  uint64_t wrong_refused() const { return wrong_refused_; }  // results
  uint64_t false_scales() const { return false_scales_; }    // results that ranks have taken at first
  uint64_t false_alarms() const { return false_alarms_; }    // right results that were refused

 private:
  struct Truth {
    uint8_t format = 0;
    std::bitset<64> contributors;
    std::vector<uint8_t> lanes;
  };
  struct Unconfirmed {
    uint32_t bytes = 0;
    bool of_weights = false;
  };
  const std::vector<uint8_t>* truth_of(const Round& round, int ranks) const;
  std::string check_sum(const Round& round, int rank, const Reaction& reaction, bool right,
                        size_t lanes_bytes);
  std::string check_scales(const Round& round, int rank, const Reaction& reaction, bool right,
                           size_t lanes_bytes);

  std::map<Round, Truth> truths_;
  std::set<Job> lied_to_, alarmed_, misled_jobs_;
  // Slots, of ranks, in which they have taken false scales, and how many bytes of these are not confirmed.
  std::map<std::tuple<Round, int>, Unconfirmed> misled_;
  uint64_t wrong_refused_ = 0, false_scales_ = 0, false_alarms_ = 0;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_RESULT_CHECKER_H_
