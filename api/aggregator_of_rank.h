// An aggregator inside a rank's process, as a plan of trees has them (relays.h).
#ifndef NETSUM_API_AGGREGATOR_OF_RANK_H_
#define NETSUM_API_AGGREGATOR_OF_RANK_H_

#include <memory>

#include "netsum/aggregator.h"
#include "netsum/status.h"

namespace netsum {

// As Aggregator::start(). Its loss counts as that of the rank.
Result<std::unique_ptr<Aggregator>> start_aggregator_of_rank(const AggregatorOptions& options, int rank);

}  // namespace netsum

#endif  // NETSUM_API_AGGREGATOR_OF_RANK_H_
