// Bytes in bins of equal width: what a counter that is read at intervals has instead of a log.
#ifndef NETSUM_SRC_BURSTS_BINS_H_
#define NETSUM_SRC_BURSTS_BINS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "netsum/status.h"
#include "src/bursts/bursts.h"

namespace netsum::bursts {

inline constexpr size_t kMostBins = size_t{1} << 22;

// Bin k has the arrivals from from_ns + k width_ns on, below the next one. `width_ns` > 0, `from_ns` is not after the first
// arrival. Error: kResourceExhausted for more than kMostBins bins; the message has a width that is enough.
Result<std::vector<uint64_t>> bins_of(Log log, int64_t width_ns, int64_t from_ns);

// The most bytes of `k` >= 1 neighbours. It bounds the envelope, whatever the bins' phase:
// most_in_bins(k) <= E(k width) <= most_in_bins(k + 1).
uint64_t most_in_bins(std::span<const uint64_t> bins, size_t k);

// The correlation of the bins with themselves `lag` bins later, for lags 0 to `most_lag`, of which there are at most
// bins.size() - 1. Empty if all bins are alike.
std::vector<double> autocorrelation(std::span<const uint64_t> bins, size_t most_lag);

// The numbers of the bins in which more than half of the ports have more than half of what their link can carry. All
// ports' bins begin at the same time; a port without a bin has nothing in it.
struct PortBins {
  std::vector<uint64_t> bins;
  double full = 0;  // bytes in a bin at the link's rate
};
std::vector<size_t> synchronised_bins(std::span<const PortBins> ports);

}  // namespace netsum::bursts

#endif  // NETSUM_SRC_BURSTS_BINS_H_
