// Trees of aggregators, some of which are inside ranks (relays), as a text that all ranks of a job get:
//
//   network racks.yaml                           where it comes from, for messages
//   job train                                    of jobs whose name begins so; optional
//   ranks 4
//   tree 50000000                                what it sums, in bit/s from each rank
//   sum 10.0.0.1:5151 rank 0                     the aggregator at the top, inside rank 0
//   sum 10.0.0.9:5151 below 10.0.0.1:5151        outside ranks: `netsum aggregator` runs there
//   join 10.0.0.1:5151 0 1                       ranks 0 and 1 join there
//   join 10.0.0.9:5151 2 3
//
// Further trees follow. An aggregator comes after the one above it, and every rank joins once in each tree. '#' begins a comment.
#ifndef NETSUM_SRC_PLAN_RELAY_PLAN_H_
#define NETSUM_SRC_PLAN_RELAY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum::plan {

struct RelayTree {
  struct Aggregator {
    std::string address;          // control address, "host:port"
    int rank = -1;                // that it is inside of; -1: none
    std::optional<size_t> above;  // its parent in `aggregators`, before it; nothing: the root, the first one
  };
  int64_t rate_bps = 0;
  std::vector<Aggregator> aggregators;
  std::vector<size_t> joins;  // by rank, in `aggregators`
};

struct RelayPlan {
  std::string network;
  std::string job;
  int ranks = 0;
  std::vector<RelayTree> trees;

  // The network, and a number that differs between plans.
  std::string name() const;
};

inline constexpr size_t kMostRelayPlanBytes = 1 << 20;

// An error names `file` and the line. kInvalidArgument.
Result<RelayPlan> parse_relay_plan(const std::string& text, const std::string& file);
std::string to_text(const RelayPlan& plan);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_RELAY_PLAN_H_
