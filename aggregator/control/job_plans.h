// The share plan of a complete job, from what its ranks have declared. Takes up to seconds, so it is made without the table
// of jobs and its lock.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_PLANS_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_PLANS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/control/control.pb.h"
#include "src/plan/job_plan.h"

namespace netsum {

struct PlanInput {
  struct Rank {
    std::string host;  // for messages
    // A serialised control::Sharing: as a message, it would take up to 150 times as much memory.
    std::shared_ptr<const std::string> sharing;
    bool shard = false;
  };
  std::vector<Rank> ranks;
  bool own_sums = false;  // the aggregator that plans is one of the places
  PlaceInfo own;
  Shares shares = Shares::kOff;
};

// Error: kInvalidArgument (a rank names other aggregators than rank 0), kResourceExhausted (too many aggregators).
Result<plan::JobTopology> topology_of(const PlanInput& input);

// Errors: those of topology_of() and of plan::plan_job().
Result<plan::JobPlan> plan_of(const PlanInput& input);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_PLANS_H_
