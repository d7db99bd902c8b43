// How ranks and durations are named in messages, on both sides of the control plane.
#ifndef NETSUM_SRC_JOB_RANKS_H_
#define NETSUM_SRC_JOB_RANKS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/job/job_spec.h"

namespace netsum {

// "rank 3", "ranks 1 and 3", "ranks 1, 2, 3 and 17 more".
std::string describe_ranks(std::span<const int> ranks);

// "rank 3 (10.0.0.7)".
std::string describe_rank(int rank, const std::string& host);

// A rank's connection has ended, and the rank has not left. `by_aggregator`: the connection was that of an aggregator which
// had joined for the rank, and which tells of ranks that are lost (kPeerLost) before it ends their connections. So it is
// lost itself (kAggregatorLost).
Status disconnected(int rank, const std::string& host, bool by_aggregator);

// `lost` tells of an aggregator. If that is inside a rank's process, the rank is lost, too: kPeerLost. kNoRank: it is inside none.
Status lost_with(int inside_rank, const Status& lost);

// 1500 -> "1.5 s", 200 -> "200 ms".
std::string describe_ms(int64_t ms);

// kTimeout: not all ranks that `job` needs joined it within `waited_ms`. `missing` is ascending and not empty.
Status ranks_missing(const JobSpec& job, std::span<const int> missing, int64_t waited_ms);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_RANKS_H_
