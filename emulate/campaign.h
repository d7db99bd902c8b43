// Many random runs: their statistics, the failing run, and its reduction.
#ifndef NETSUM_EMULATE_CAMPAIGN_H_
#define NETSUM_EMULATE_CAMPAIGN_H_

#include <cstdint>
#include <map>
#include <string>

#include "emulate/random_scenario.h"
#include "emulate/simulation.h"

namespace netsum::emulate {

// Runs the scenario of `seed`. With `twice`, runs it again; different packets are a violation.
Report run_seed(uint64_t seed, const ScenarioLimits& limits, bool twice = false);
// The same, printing its packets and events to stderr.
Report trace_seed(uint64_t seed, const ScenarioLimits& limits);

// Statistics of several runs.
struct Tally {
  uint64_t runs = 0;
  // Of all packets of all runs and their times, whatever the order of the runs.
  uint64_t trace_hash = 0;
  NetworkCounters network;
  EventCounters events;
  LieCounters lies;
  // Runs: of LieCounters, and those in which no false result reached a rank in time.
  uint64_t runs_reached = 0, runs_ended = 0, runs_unbalanced = 0, runs_without = 0;
  uint64_t runs_upwards = 0;   // in which a rack has lied to its parent
  uint64_t runs_switches = 0;  // with P4 switches, in which false results were sent
  uint64_t sums_verified = 0;
  uint64_t scales_predicted = 0;  // of chunks, by each rank
  uint64_t scales_mispredicted = 0;
  uint64_t retransmissions = 0;
  uint64_t succeeded = 0;                // operations, of each rank
  std::map<ErrorCode, uint64_t> failed;  // operations that failed because of a lost rank or aggregator

  void add(const Report& report);
  void add(const Tally& other);
  uint64_t lies_injected() const;  // of all kinds
};

// Several lines, ending with a newline.
std::string describe(const Tally& tally);

// What a campaign of lies is about, in one line.
std::string to_json(const Tally& tally);

// Removes parts of a failing scenario as long as it still fails.
ScenarioLimits shrink(uint64_t seed, const ScenarioLimits& failing);

// The flags of `netsum simulate` for this one run.
std::string flags_of(uint64_t seed, const ScenarioLimits& limits);

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_CAMPAIGN_H_
