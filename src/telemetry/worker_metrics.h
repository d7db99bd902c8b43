// A communicator as metrics: netsum_worker_*. What each means: docs/operations.md.
#ifndef NETSUM_SRC_TELEMETRY_WORKER_METRICS_H_
#define NETSUM_SRC_TELEMETRY_WORKER_METRICS_H_

#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "src/telemetry/metrics_page.h"

namespace netsum {

struct WorkerView {
  std::string job;
  int rank = 0;
  int world_size = 1;
  bool ready = false;               // connected, and nothing has failed
  std::string verify;               // what protects its sums: "packet", "both" or "sum"
  std::vector<std::string> places;  // of its sums now: aggregators, "hosts"
  CommunicatorStats stats;
};

void add_worker_metrics(const WorkerView& worker, MetricsPage* page);

}  // namespace netsum

#endif  // NETSUM_SRC_TELEMETRY_WORKER_METRICS_H_
