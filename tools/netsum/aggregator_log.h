// What the daemon writes down of its jobs: each event of the control plane as it happens, and waits that
// last.
#ifndef NETSUM_TOOLS_NETSUM_AGGREGATOR_LOG_H_
#define NETSUM_TOOLS_NETSUM_AGGREGATOR_LOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

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
  using Job = std::pair<std::string, std::string>;  // name and id: jobs of several tenants may have one name
  Log* log_;
  std::map<Job, std::string> waiting_;  // for whom
};

// Says once when a link or host of a running job is at fault or has lost its share, and once when it is well again. What comes and
// goes is said again after a pause, which doubles from a minute to an hour while it does.
class FaultLog {
 public:
  explicit FaultLog(Log* log) : log_(log) {}
  // Call it again and again. Times are those of the status.
  void look(const AggregatorStatus& status);

 private:
  using Trouble =
      std::tuple<std::string, std::string, std::string, std::string>;  // job: name and id; kind; ranks
  struct Known {
    bool there = false, said = false;
    uint64_t times = 0;  // that it came since it was said
    uint64_t pause_ms = 0, quiet_until_ms = 0;
  };
  void say(const Trouble& trouble, Known* known, Json fields, uint64_t now_ms);
  Log* log_;
  std::map<Trouble, Known> known_;
};

// Warns when a P4 switch has begun to drop packets of a wrong length, and names what makes such packets; after that, each time
// that ten times as many have been dropped.
class LengthLog {
 public:
  explicit LengthLog(Log* log) : log_(log) {}
  // Call it again and again.
  void look(const AggregatorStatus& status);

 private:
  Log* log_;
  uint64_t next_ = 1;  // number to warn at
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_AGGREGATOR_LOG_H_
