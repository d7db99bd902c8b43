// The job that netsum place places: from a file, from flags, or both.
#ifndef NETSUM_TOOLS_NETSUM_PLACE_JOB_H_
#define NETSUM_TOOLS_NETSUM_PLACE_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/placement.h"

namespace netsum::tool {

// Bytes of gradient if none are given: times are then those per GB.
inline constexpr uint64_t kDefaultGradient = 1'000'000'000;

struct PlaceJob {
  plan::PlacementJob job;
  std::vector<int64_t> rates;
  std::vector<std::string> sums;     // switches that may sum
  std::vector<std::string> exclude;  // hosts that get no rank
  // [shard]: hosts or switches that have it.
  std::vector<std::vector<std::string>> replicas;
};

// "100G,400G". kInvalidArgument.
Result<std::vector<int64_t>> parse_rates(const std::string& text);

// Throws UsageError (flags.h), whose message starts with "file:line: ".
PlaceJob load_place_job(const std::string& file);

// Marks hosts and switches, and finds the replicas. `file` is that of the job, for messages; empty: flags.
void apply(PlaceJob* job, const std::string& file, plan::Cluster* cluster);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLACE_JOB_H_
