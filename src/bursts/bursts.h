// How bursty traffic is, and what backlog it needs: metrics of a log of packets, without I/O.
//
// A(s, t) is the number of bytes in the closed window [s, t]. A packet arrives whole, at the time of its last bit.
//   E(tau)   = max over s of A(s, s + tau): the most that any window of this length has.
//   PtM(tau) = E(tau) / (tau x mean rate): peak to mean.
//   B(r)     = max over tau of E(tau) - r tau: the largest backlog, after an arrival, of a server of rate r.
//
// Logs are sorted by time. Bytes are below 2^50 and times span less than 2^62 ns: check_log(). Results are exact unless their
// comment says otherwise.
#ifndef NETSUM_SRC_BURSTS_BURSTS_H_
#define NETSUM_SRC_BURSTS_BURSTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "netsum/status.h"

namespace netsum::bursts {

struct Arrival {
  int64_t at_ns = 0;
  uint64_t bytes = 0;
};
using Log = std::span<const Arrival>;

// All other functions require it. Error: kInvalidArgument; the message has the number of the arrival, from 1.
Status check_log(Log log);

uint64_t total_bytes(Log log);
// From the first arrival to the last; 0 for an empty log.
int64_t span_ns(Log log);
// Bytes per second over `span`; none if it is 0.
std::optional<double> mean_rate(Log log, int64_t span);

// E(tau), in O(n). `tau_ns` >= 0.
uint64_t envelope(Log log, int64_t tau_ns);
// PtM(tau), `tau_ns` > 0, with the mean rate over span_ns(log); none if that is 0. It tends to 1, but not monotonically.
std::optional<double> peak_to_mean(Log log, int64_t tau_ns);
// The same from E(tau), in bytes, and a mean rate above 0, in bytes per second.
double peak_to_mean(uint64_t envelope, int64_t tau_ns, double mean);
// Times from `from_ns` to `to_ns`, `per_decade` of them in each factor of 10, rounded to whole nanoseconds.
std::vector<int64_t> geometric_grid(int64_t from_ns = 1'000, int64_t to_ns = 10'000'000'000,
                                    int per_decade = 8);

// B(r) in bytes, in O(n), by Lindley's recursion.
double backlog(Log log, uint64_t bytes_per_s);

// B(r) for all r from one pass of O(n log n).
class BacklogCurve {
 public:
  explicit BacklogCurve(Log log);
  // The same as backlog(log, bytes_per_s).
  double at(uint64_t bytes_per_s) const;

 private:
  struct Point {
    int64_t tau_ns = 0;
    int64_t bytes = 0;
  };
  static void add_to_hull(std::vector<Point>* hull, const Point& point);
  static std::vector<Point> merged(const std::vector<Point>& a, const std::vector<Point>& b);
  static std::vector<Point> across(Log log, std::span<const int64_t> before, size_t middle);
  static std::vector<Point> hull_of(Log log, std::span<const int64_t> before);

  std::vector<Point> hull_;  // the upper hull of all (tau, E(tau)), by tau
};

// Bursts end where nothing arrives for longer than `gap_ns`.
struct Burst {
  int64_t from_ns = 0;
  int64_t to_ns = 0;
  uint64_t bytes = 0;
  uint64_t arrivals = 0;
};
std::vector<Burst> bursts_of(Log log, int64_t gap_ns);
// Times between successive arrivals, in ascending order.
std::vector<int64_t> idle_gaps(Log log);
// The smallest of the sorted values that a share `q` of them, 0 to 1, does not exceed. `sorted` is not empty.
template <typename T>
T quantile(const std::vector<T>& sorted, double q) {
  const double rank = q * static_cast<double>(sorted.size());
  const auto index = static_cast<size_t>(rank);
  return sorted[std::min(sorted.size() - 1,
                         index > 0 && static_cast<double>(index) == rank ? index - 1 : index)];
}

}  // namespace netsum::bursts

#endif  // NETSUM_SRC_BURSTS_BURSTS_H_
