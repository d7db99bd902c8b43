// What the daemon writes down of its jobs: each event of the control plane as it happens, and waits that
// last.
#ifndef NETSUM_TOOLS_NETSUM_AGGREGATOR_LOG_H_
#define NETSUM_TOOLS_NETSUM_AGGREGATOR_LOG_H_

#include <map>
#include <string>

#include "netsum/aggregator.h"
#include "tools/netsum/log.h"

namespace netsum::tool {

// One line: "job began", "member joined", "job running", "member left", "member lost", "job failed",
// "job ended", "join refused" or "draining", with what there is of job, rank, host, joined, world_size, state
// and reason.
void log_event(const AggregatorEvent& event, Log* log);

// Says once when a running job has waited for a rank for a second, and once when it goes on.
class WaitLog {
 public:
  explicit WaitLog(Log* log) : log_(log) {}
  // Call it again and again.
  void look(const AggregatorStatus& status);

 private:
  Log* log_;
  std::map<std::string, std::string> waiting_;  // job, and for whom
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_AGGREGATOR_LOG_H_
