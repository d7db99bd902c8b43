// What `netsum bench` found, gathered from the events of its ranks, and how it is shown.
#ifndef NETSUM_TOOLS_NETSUM_BENCH_REPORT_H_
#define NETSUM_TOOLS_NETSUM_BENCH_REPORT_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/netsum/bench_worker.h"
#include "tools/netsum/log.h"

namespace netsum::tool {

class BenchReport {
 public:
  BenchReport(const BenchSettings& settings, int mtu, int world_size, std::string command)
      : settings_(settings), mtu_(mtu), world_size_(world_size), command_(std::move(command)) {}

  // Takes an event of `rank` (bench_worker.h).
  void on_event(int rank, const Json& event);
  // A failure seen from outside, e.g. a process that died.
  void on_failure(int rank, const std::string& message);
  void set_aggregator_cpu_seconds(double seconds) { aggregator_cpu_seconds_ = seconds; }

  bool has_ended(int rank) const { return ends_.contains(rank) || failures_.contains(rank); }
  int iterations_done(int rank) const;
  const std::map<int, std::string>& failures() const { return failures_; }
  // Whether any rank has measured anything.
  bool has_results() const { return !iterations_.empty() || !ends_.empty(); }
  // True if every result of every rank was checked and right, and all ranks had the same bits.
  bool verified() const;

  Json to_json() const;
  std::string to_table() const;

 private:
  // One iteration as all ranks saw it. It took as long as the slowest rank.
  struct Iteration {
    bool timed = false;
    int64_t time_us = 0;
    int ranks = 0;
    uint64_t checksum = 0;
    bool same_bits = true;
  };

  std::vector<int64_t> times_us() const;  // of the timed iterations, sorted
  std::string compression() const;        // its description; empty: none
  double relative_error() const;          // of compressed means: |mean - exact mean| / |exact mean|, L2 norms
  double bandwidth() const;               // bytes of gradient per second, at the median time

  BenchSettings settings_;
  int mtu_;
  int world_size_;
  std::string command_;
  std::string summed_by_;
  std::map<int, Iteration> iterations_;
  std::map<int, Json> ends_;
  std::map<int, Json> stamps_;  // of the timed iterations, where ranks start by a gate
  std::map<int, std::string> failures_;
  uint64_t verified_ = 0;
  uint64_t wrong_ = 0;
  double worst_error_ = 0;
  double squared_error_ = 0, squared_expected_ = 0;
  std::string first_wrong_;
  std::map<int, int> done_;
  std::optional<double> aggregator_cpu_seconds_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BENCH_REPORT_H_
