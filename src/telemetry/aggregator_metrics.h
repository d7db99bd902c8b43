// An aggregator's status as metrics: netsum_aggregator_*. What each means: docs/operations.md.
#ifndef NETSUM_SRC_TELEMETRY_AGGREGATOR_METRICS_H_
#define NETSUM_SRC_TELEMETRY_AGGREGATOR_METRICS_H_

#include "netsum/aggregator.h"
#include "src/telemetry/metrics_page.h"

namespace netsum {

void add_aggregator_metrics(const AggregatorStatus& status, MetricsPage* page);

}  // namespace netsum

#endif  // NETSUM_SRC_TELEMETRY_AGGREGATOR_METRICS_H_
