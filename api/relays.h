// The aggregators of a plan that are inside this rank's process (src/plan/relay_plan.h): so ranks sum along trees without other
// hosts. The plan is named in the place of aggregators, as "plan:FILE".
#ifndef NETSUM_API_RELAYS_H_
#define NETSUM_API_RELAYS_H_

#include <chrono>
#include <memory>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum {

class Relays {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Starts them, if `options` name a plan, and replaces it by the aggregators at which this rank joins. None: they name no plan.
  // kInvalidArgument: the file is wrong, or of another job. Otherwise: as Aggregator::start().
  static Result<std::unique_ptr<Relays>> start(CommunicatorOptions* options);

  // While the job goes on: until no packet has come for a while (serve_until_quiet()), because other ranks may need results.
  void linger(Deadline deadline) const;
  // After this rank has left: likewise, or until all others have.
  void drain(Deadline deadline);

 private:
  uint64_t packets_received() const;

  std::vector<std::unique_ptr<Aggregator>> aggregators_;  // one for each tree in which this rank sums
};

}  // namespace netsum

#endif  // NETSUM_API_RELAYS_H_
