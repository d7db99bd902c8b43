// Knows what the results of verified sums should have been, and judges what the ranks do with those that they get: a wrong
// sum is never taken, a right one never refused, and scales that are no maxima are noticed before data is sent.
#ifndef NETSUM_EMULATE_JUDGE_H_
#define NETSUM_EMULATE_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "emulate/liar.h"

namespace netsum::emulate {

class Judge {
 public:
  using Round = Liar::Round;

  // The result that the topmost aggregator has summed, before it lies.
  void note_truth(const Round& round, const netsum_fields& fields, const uint8_t* payload);

  // What a rank of a job of `ranks` has done with a result: neither, if it did not wait for it. Returns what is wrong, or "".
  std::string check(const Round& round, int rank, int ranks, const netsum_fields& fields,
                    const uint8_t* payload, bool taken, bool refused);

  uint64_t wrong_refused() const { return wrong_refused_; }  // results
  uint64_t false_scales() const { return false_scales_; }    // results that ranks have taken at first

 private:
  std::map<Round, std::vector<uint8_t>> truths_;  // lanes
  std::set<std::tuple<uint16_t, uint16_t>> misled_jobs_;
  // Slots, of ranks, in which they have taken false scales, and how many bytes of these are not confirmed.
  std::map<std::tuple<Round, int>, uint32_t> misled_;
  uint64_t wrong_refused_ = 0, false_scales_ = 0;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_JUDGE_H_
