// Receive queues of the user-space dataplane: one for each job, sorted by the kernel, so that a job that
// floods the aggregator, or is flooded, fills a queue of its own.
#ifndef NETSUM_AGGREGATOR_SERVER_QUEUES_H_
#define NETSUM_AGGREGATOR_SERVER_QUEUES_H_

#include <linux/filter.h>

#include <cstdint>
#include <vector>

namespace netsum {

struct JobQueues {
  // Each is a socket per core. Where there are more jobs, several share one.
  static constexpr uint32_t kMostJobs = 32;

  int count = 0;
  std::vector<sock_filter> selector;  // as UdpIoOptions::queue_selector
};

// One queue for what names no job below `max_jobs` (at least 1), one for what parents send (they name jobs as
// they know them), and those of the jobs. A packet's check is not looked at here: who forges packets chooses
// whose queue they fill.
JobQueues queues_for_jobs(uint32_t max_jobs);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_SERVER_QUEUES_H_
