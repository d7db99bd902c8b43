// Receive queues of the user-space dataplane: the kernel puts the packets of each job into a queue of its own, so that a
// flood of one job does not displace the packets of others.
#ifndef NETSUM_AGGREGATOR_USER_QUEUES_H_
#define NETSUM_AGGREGATOR_USER_QUEUES_H_

#include <linux/filter.h>

#include <cstdint>
#include <vector>

namespace netsum {

struct JobQueues {
  // Each queue is a socket per stripe. Further jobs share queues.
  static constexpr uint32_t kMostJobs = 32;

  int count = 0;
  std::vector<sock_filter> selector;  // as UdpIoOptions::queue_selector
};

// One queue for packets without a job index below `max_jobs` (at least 1), one for packets of parents (which use their
// own job indices), and those of the jobs. The packet's tag is not verified at this point, so forged packets can fill
// any queue.
JobQueues queues_for_jobs(uint32_t max_jobs);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_USER_QUEUES_H_
