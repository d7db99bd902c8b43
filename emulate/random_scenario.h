// Random scenarios: any valid run with any faults. A seed always gives the same scenario; limits then remove parts of it,
// which is how a failing run is reduced.
#ifndef NETSUM_EMULATE_RANDOM_SCENARIO_H_
#define NETSUM_EMULATE_RANDOM_SCENARIO_H_

#include <climits>
#include <cstdint>
#include <string>
#include <string_view>

#include "emulate/scenario.h"
#include "netsum/status.h"

namespace netsum::emulate {

// Kinds of faults, one bit each.
using Faults = uint32_t;
inline constexpr Faults kLoss = 1u << 0;
inline constexpr Faults kDuplicate = 1u << 1;
inline constexpr Faults kReorder = 1u << 2;  // by jitter
inline constexpr Faults kLate = 1u << 3;     // packets that take dozens of round trips
inline constexpr Faults kDamage = 1u << 4;   // flipped bits, truncation
inline constexpr Faults kBandwidth = 1u << 5;
inline constexpr Faults kPartition = 1u << 6;
inline constexpr Faults kPause = 1u << 7;
inline constexpr Faults kCrash = 1u << 8;        // of workers and aggregators; restarts
inline constexpr Faults kDrift = 1u << 9;        // clocks have different offsets and rates
inline constexpr Faults kDeadline = 1u << 10;    // operations with deadlines that faults can make them miss
inline constexpr Faults kStraggler = 1u << 11;   // ranks that submit late
inline constexpr Faults kJobs = 1u << 12;        // several jobs at the same time
inline constexpr Faults kMembership = 1u << 13;  // a job ends and its members form another, with other ranks
inline constexpr Faults kHierarchy = 1u << 14;   // aggregators that feed others
inline constexpr Faults kLies = 1u << 15;        // of aggregators, to jobs that verify their sums
inline constexpr Faults kSwitches = 1u
                                    << 16;  // P4 switches as aggregators, of jobs whose packets have no tags
inline constexpr Faults kAllFaults = (1u << 17) - 1;

// "all", "none", or names as in fault_names(). Error: kInvalidArgument, listing them.
Result<Faults> parse_faults(std::string_view text);
// "loss,late,pause"
std::string fault_names(Faults faults);

// Limits on a random scenario: the maximum of each kind.
struct ScenarioLimits {
  Faults faults = kAllFaults;
  int aggregators = INT_MAX;
  int jobs = INT_MAX;
  int ranks = INT_MAX;       // of a job
  int operations = INT_MAX;  // of a job
  int events = INT_MAX;
  int elements = INT_MAX;  // of a tensor
  bool lying = false;      // in every run all jobs verify their sums, and aggregators lie
};

// Every job says how it may end (JobPlan::ending).
Scenario random_scenario(uint64_t seed, const ScenarioLimits& limits = {});

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_RANDOM_SCENARIO_H_
