#include "src/bursts/bins.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace netsum::bursts {

Result<std::vector<uint64_t>> bins_of(Log log, int64_t width_ns, int64_t from_ns) {
  if (log.empty()) return std::vector<uint64_t>();
  const auto last = static_cast<uint64_t>((log.back().at_ns - from_ns) / width_ns);
  if (last >= kMostBins) {
    const int64_t enough = (log.back().at_ns - from_ns) / static_cast<int64_t>(kMostBins) + 1;
    return Status(ErrorCode::kResourceExhausted, "the log needs more than " + std::to_string(kMostBins) +
                                                     " bins of " + std::to_string(width_ns) +
                                                     " ns: take bins of " + std::to_string(enough) +
                                                     " ns or more");
  }
  std::vector<uint64_t> bins(last + 1);
  for (const Arrival& arrival : log)
    bins[static_cast<size_t>((arrival.at_ns - from_ns) / width_ns)] += arrival.bytes;
  return bins;
}

uint64_t most_in_bins(std::span<const uint64_t> bins, size_t k) {
  uint64_t inside = 0, most = 0;
  for (size_t i = 0; i < bins.size(); ++i) {
    inside += bins[i];
    if (i >= k) inside -= bins[i - k];
    most = std::max(most, inside);
  }
  return most;
}

std::vector<double> autocorrelation(std::span<const uint64_t> bins, size_t most_lag) {
  std::vector<double> values(bins.begin(), bins.end());
  if (values.empty()) return {};
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  for (double& value : values) value -= mean;
  const auto product = [&](size_t lag) {
    return std::inner_product(values.begin(), values.end() - static_cast<ptrdiff_t>(lag),
                              values.begin() + static_cast<ptrdiff_t>(lag), 0.0);
  };
  if (std::all_of(bins.begin(), bins.end(), [&](uint64_t each) { return each == bins[0]; })) return {};
  const double power = product(0);
  std::vector<double> correlation;
  for (size_t lag = 0; lag <= std::min(most_lag, bins.size() - 1); ++lag)
    correlation.push_back(product(lag) / power);
  return correlation;
}

std::vector<size_t> synchronised_bins(std::span<const PortBins> ports) {
  size_t longest = 0;
  for (const PortBins& port : ports) longest = std::max(longest, port.bins.size());
  std::vector<size_t> found;
  for (size_t i = 0; i < longest; ++i) {
    const auto busy = std::count_if(ports.begin(), ports.end(), [&](const PortBins& port) {
      return i < port.bins.size() && 2 * static_cast<double>(port.bins[i]) > port.full;
    });
    if (2 * static_cast<size_t>(busy) > ports.size()) found.push_back(i);
  }
  return found;
}

}  // namespace netsum::bursts
