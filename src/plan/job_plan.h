// The share plan of a job, from the rates that its ranks and aggregators declare when they join.
#ifndef NETSUM_SRC_PLAN_JOB_PLAN_H_
#define NETSUM_SRC_PLAN_JOB_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/job/job.pb.h"
#include "src/plan/topology.h"

namespace netsum::plan {

struct JobTopology {
  std::vector<LinkRate> links;  // by rank; 0: unknown
  bool shards = false;          // every rank offers a shard
  // The aggregators, in the order in which the ranks name them; of a hierarchy, the topmost one with those below it
  // (src/job/place_path.h).
  std::vector<PlaceInfo> places;
};

struct JobPlan {
  // One weight for each stripe of the places, in their order, and one for each rank's shard. With Shares::kOff all are
  // equal, and shards have none where there are places.
  std::vector<uint32_t> of_places;
  std::vector<uint32_t> of_shards;
  size_t places = 0;  // ports of aggregators, switches and shards that have a share
  SharePlan summary;  // without weights, because the caller decides which stripes the job uses
};

// The topology that plan_job() plans for. `note`, if given, describes the assumed rates ("" if there are none).
// Errors: kInvalidArgument for a place whose stripes do not follow from its ports and cores, and for two places that are
// one aggregator.
Result<Topology> topology_of(const JobTopology& job, bool with_shards, std::string* note);

// With Shares::kAuto and kPlanned, the best weights; with Shares::kOff, the expected times of equal ones. An unknown rate is assumed to
// be the lowest known rate of a rank or, if none is known, of a port.
// Errors: kInvalidArgument, kResourceExhausted and kUnreachable, as check() of topology.h; kInvalidArgument also for a
// place whose stripes do not follow from its ports and cores, and for two places that are one aggregator.
Result<JobPlan> plan_job(const JobTopology& job, Shares shares);

inline constexpr size_t kMaxCoresDeclared = 4096;  // of one place; stripes, too
inline constexpr size_t kMaxPortsDeclared = 1024;  // of all places that one rank names

// Whether all numbers that a rank declares are in range, or 0 where that means unknown. The limits of topology.h hold for
// what it names alone. `who` begins the message. kInvalidArgument, kResourceExhausted.
Status check_declared(const LinkRate& link, const std::vector<const PlaceInfo*>& paths,
                      const std::string& who);

// Whether a declared rate is in range, or 0 (unknown). `what` begins the message. kInvalidArgument.
Status check_declared_rate(double bps, const char* what);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_JOB_PLAN_H_
