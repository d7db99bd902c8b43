#include "src/bursts/bursts.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace netsum::bursts {
namespace {

using Wide = __int128;

constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr int64_t kMostSpan = int64_t{1} << 62;
constexpr double kNanosecond = 1e-9;

// A rate in bytes per second times nanoseconds counts in 1e-9 bytes, and so do backlogs until the end.
constexpr Wide kByte = 1'000'000'000;

}  // namespace

Status check_log(Log log) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < log.size(); ++i) {
    const std::string which = "arrival " + std::to_string(i + 1);
    if (i > 0 && log[i].at_ns < log[i - 1].at_ns)
      return Status(ErrorCode::kInvalidArgument,
                    which + " is earlier than the one before: sort the log by time");
    if (static_cast<Wide>(log[i].at_ns) - log[0].at_ns >= kMostSpan)
      return Status(ErrorCode::kInvalidArgument,
                    which + " is more than 2^62 ns after the first: cut the log");
    if (log[i].bytes >= kMostBytes || (bytes += log[i].bytes) >= kMostBytes)
      return Status(ErrorCode::kInvalidArgument,
                    "up to " + which + " the log has 2^50 bytes or more: cut the log");
  }
  return Status();
}

uint64_t total_bytes(Log log) {
  uint64_t bytes = 0;
  for (const Arrival& arrival : log) bytes += arrival.bytes;
  return bytes;
}

int64_t span_ns(Log log) {
  return log.empty() ? 0 : log.back().at_ns - log.front().at_ns;
}

std::optional<double> mean_rate(Log log, int64_t span) {
  if (span <= 0) return std::nullopt;
  return static_cast<double>(total_bytes(log)) / (static_cast<double>(span) * kNanosecond);
}

uint64_t envelope(Log log, int64_t tau_ns) {
  uint64_t most = 0, inside = 0;
  size_t first = 0;
  for (const Arrival& last : log) {
    inside += last.bytes;
    while (last.at_ns - log[first].at_ns > tau_ns) inside -= log[first++].bytes;
    most = std::max(most, inside);
  }
  return most;
}

std::optional<double> peak_to_mean(Log log, int64_t tau_ns) {
  const std::optional<double> mean = mean_rate(log, span_ns(log));
  if (!mean || *mean == 0) return std::nullopt;
  return peak_to_mean(envelope(log, tau_ns), tau_ns, *mean);
}

double peak_to_mean(uint64_t envelope, int64_t tau_ns, double mean) {
  return static_cast<double>(envelope) / (static_cast<double>(tau_ns) * kNanosecond * mean);
}

std::vector<int64_t> geometric_grid(int64_t from_ns, int64_t to_ns, int per_decade) {
  std::vector<int64_t> grid;
  for (int k = 0;; ++k) {
    const auto tau =
        std::llround(static_cast<double>(from_ns) * std::pow(10.0, static_cast<double>(k) / per_decade));
    if (tau > to_ns) return grid;
    if (grid.empty() || tau > grid.back()) grid.push_back(tau);
  }
}

double backlog(Log log, uint64_t bytes_per_s) {
  Wide queue = 0, most = 0;
  for (size_t i = 0; i < log.size(); ++i) {
    if (i > 0) queue -= Wide{log[i].at_ns - log[i - 1].at_ns} * bytes_per_s;
    queue = std::max<Wide>(queue, 0) + Wide{log[i].bytes} * kByte;
    most = std::max(most, queue);
  }
  return static_cast<double>(most) * kNanosecond;
}

// Keeps `hull` an upper hull. Points come in ascending order of tau, and those of one tau in any order.
void BacklogCurve::add_to_hull(std::vector<Point>* hull, const Point& point) {
  if (!hull->empty() && hull->back().tau_ns == point.tau_ns) {
    if (point.bytes <= hull->back().bytes) return;
    hull->pop_back();
  }
  while (hull->size() >= 2) {
    const Point& a = (*hull)[hull->size() - 2];
    const Point& b = hull->back();
    if (Wide{b.bytes - a.bytes} * (point.tau_ns - b.tau_ns) >
        Wide{point.bytes - b.bytes} * (b.tau_ns - a.tau_ns))
      break;
    hull->pop_back();
  }
  hull->push_back(point);
}

std::vector<BacklogCurve::Point> BacklogCurve::merged(const std::vector<Point>& a,
                                                      const std::vector<Point>& b) {
  std::vector<Point> all(a.size() + b.size()), hull;
  std::merge(a.begin(), a.end(), b.begin(), b.end(), all.begin(),
             [](const Point& x, const Point& y) { return x.tau_ns < y.tau_ns; });
  for (const Point& point : all) add_to_hull(&hull, point);
  return hull;
}

// The hull of the windows that begin before `middle` and end at or after it. A window from arrival i to j is the
// difference of the points (t_j, bytes up to and with j) and (t_i, bytes before i), so that the hull of all windows is the
// Minkowski sum of two hulls.
std::vector<BacklogCurve::Point> BacklogCurve::across(Log log, std::span<const int64_t> before,
                                                      size_t middle) {
  std::vector<Point> ends, begins;
  for (size_t j = middle; j < log.size(); ++j) add_to_hull(&ends, {log[j].at_ns, before[j + 1]});
  for (size_t i = middle; i-- > 0;) add_to_hull(&begins, {-log[i].at_ns, -before[i]});
  std::vector<Point> sum;
  size_t i = 0, j = 0;
  for (;;) {
    sum.push_back({ends[j].tau_ns + begins[i].tau_ns, ends[j].bytes + begins[i].bytes});
    const bool more_i = i + 1 < begins.size(), more_j = j + 1 < ends.size();
    if (!more_i && !more_j) return sum;
    // The steeper edge comes first.
    const auto steeper = [&] {
      return Wide{begins[i + 1].bytes - begins[i].bytes} * (ends[j + 1].tau_ns - ends[j].tau_ns) >
             Wide{ends[j + 1].bytes - ends[j].bytes} * (begins[i + 1].tau_ns - begins[i].tau_ns);
    };
    if (!more_j || (more_i && steeper())) {
      ++i;
    } else {
      ++j;
    }
  }
}

std::vector<BacklogCurve::Point> BacklogCurve::hull_of(Log log, std::span<const int64_t> before) {
  if (log.empty()) return {};
  if (log.size() == 1) return {{0, before[1] - before[0]}};
  const size_t middle = log.size() / 2;
  const std::vector<Point> inside = merged(hull_of(log.first(middle), before.first(middle + 1)),
                                           hull_of(log.subspan(middle), before.subspan(middle)));
  return merged(inside, across(log, before, middle));
}

BacklogCurve::BacklogCurve(Log log) {
  // Times from the first arrival, so that differences fit.
  std::vector<Arrival> shifted(log.begin(), log.end());
  for (Arrival& arrival : shifted) arrival.at_ns -= log.front().at_ns;
  std::vector<int64_t> before = {0};
  for (const Arrival& arrival : log) before.push_back(before.back() + static_cast<int64_t>(arrival.bytes));
  hull_ = hull_of(shifted, before);
}

double BacklogCurve::at(uint64_t bytes_per_s) const {
  Wide most = 0;
  for (const Point& point : hull_)
    most = std::max(most, Wide{point.bytes} * kByte - Wide{point.tau_ns} * bytes_per_s);
  return static_cast<double>(most) * kNanosecond;
}

std::vector<Burst> bursts_of(Log log, int64_t gap_ns) {
  std::vector<Burst> bursts;
  for (const Arrival& arrival : log) {
    if (bursts.empty() || arrival.at_ns - bursts.back().to_ns > gap_ns)
      bursts.push_back({arrival.at_ns, arrival.at_ns, 0, 0});
    bursts.back().to_ns = arrival.at_ns;
    bursts.back().bytes += arrival.bytes;
    ++bursts.back().arrivals;
  }
  return bursts;
}

std::vector<int64_t> idle_gaps(Log log) {
  std::vector<int64_t> gaps;
  for (size_t i = 1; i < log.size(); ++i) gaps.push_back(log[i].at_ns - log[i - 1].at_ns);
  std::sort(gaps.begin(), gaps.end());
  return gaps;
}

}  // namespace netsum::bursts
