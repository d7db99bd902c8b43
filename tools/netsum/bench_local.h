// `netsum bench COLLECTIVE --workers N`: every rank a process of its own on this machine.
#ifndef NETSUM_TOOLS_NETSUM_BENCH_LOCAL_H_
#define NETSUM_TOOLS_NETSUM_BENCH_LOCAL_H_

#include <chrono>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "tools/netsum/bench_report.h"

namespace netsum::tool {

struct LocalBench {
  std::string collective;  // the subcommand that ranks run
  int workers = 2;
  // Flags common to all ranks; --rank, --world-size and where to meet are added.
  std::vector<std::string> worker_flags;
  std::vector<std::string> aggregators;  // empty: embedded shards, or a private aggregator
  bool may_use_hosts = false;            // the ranks may have to do without these
  bool with_aggregator = false;          // start one for the time of the run
  // With that: start a hierarchy, of so many aggregators, each for a part of the ranks, and their parent.
  // 0: one aggregator for all.
  int racks = 0;
  int aggregator_cores = 1;
  int mtu = 1500;
  std::chrono::milliseconds silence_limit{0};  // the run has failed when no rank says anything for so long
  int total_iterations = 0;
  bool show_progress = false;
};

// Runs all ranks to their ends and gathers what they say in `report`. The status is about starting processes;
// failures of ranks are in the report. Nothing is left running.
Status run_local_bench(const LocalBench& bench, BenchReport* report);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BENCH_LOCAL_H_
