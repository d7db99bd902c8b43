// Whether a job with ghosts takes as long as one of real ranks: `netsum emulate --check`.
#ifndef NETSUM_TOOLS_NETSUM_EMULATE_CHECK_H_
#define NETSUM_TOOLS_NETSUM_EMULATE_CHECK_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace netsum::tool {

// The median of some values, and the interval in which it is with a probability of 95 % (bootstrap).
struct MedianInterval {
  double median = 0, low = 0, high = 0;

  double half_width() const { return (high - low) / 2; }
};
MedianInterval median_interval(const std::vector<double>& values, uint64_t seed = 1);

// The reports of one round.
struct CheckRound {
  nlohmann::ordered_json real, ghosts, real_again;
  bool replays_real = false;  // ghosts play what was recorded in `real`, and are compared with that alone
};
// By how much steps with ghosts differ from those of real ranks, and these from one another: where the latter is not small, the
// machine cannot tell. And what ghosts cost. At least one round.
nlohmann::ordered_json check_report(const std::vector<CheckRound>& rounds);
std::string check_text(const nlohmann::ordered_json& report);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_EMULATE_CHECK_H_
