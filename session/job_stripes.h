// The stripes of a job that has been joined, in the order that all its ranks use, and how many chunks each sums.
#ifndef NETSUM_SESSION_JOB_STRIPES_H_
#define NETSUM_SESSION_JOB_STRIPES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "netsum/status.h"
#include "src/control/membership.h"

namespace netsum {

struct JobStripe {
  size_t membership = 0;  // whose stripe it is ...
  size_t number = 0;      // ... and its number there, from which its key follows
  uint32_t weight = 1;    // above 0
};

// Those of the aggregators, in the order of the memberships; then the embedded ones. Only those that have a share: no
// others are opened. The plan is the first membership's. Errors: kInvalidArgument (the plan does not fit the stripes).
Result<std::vector<JobStripe>> job_stripes(std::span<const Membership* const> memberships);

}  // namespace netsum

#endif  // NETSUM_SESSION_JOB_STRIPES_H_
