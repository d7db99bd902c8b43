// The report of `netsum emulate`.
#ifndef NETSUM_TOOLS_NETSUM_EMULATE_REPORT_H_
#define NETSUM_TOOLS_NETSUM_EMULATE_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "tools/netsum/emulate_plan.h"

namespace netsum::tool {

// How late 99 of 100 of the ghosts' operations may be, as a share of a step.
inline constexpr double kMostLateness = 0.002;

class EmulateReport {
 public:
  // `first_ids`: of each step of rank 0, the number of its first operation among those of all steps.
  EmulateReport(const EmulatePlan& plan, std::vector<uint64_t> first_ids)
      : plan_(plan), first_ids_(std::move(first_ids)) {}

  // What a process of `netsum emulate-role` has written. kInvalidArgument: it is not such a file.
  Status add_result(const std::string& path);
  // The trace of a real rank with PyTorch (NETSUM_TRACE) in a group, to which these operations of its program belong. `is_of_all`:
  // it is the group of all ranks. kInvalidArgument: it is no trace.
  Status add_trace(int rank, const std::string& path, const std::vector<uint64_t>& operations,
                   bool is_of_all);

  // What a real rank with PyTorch has cost, from its start to its end.
  void add_cost(double cpu_seconds, uint64_t peak_bytes) {
    real_cpu_seconds_ += cpu_seconds;
    real_peak_bytes_ += peak_bytes;
  }

  // The share of the processors' time in which the hypervisor ran other machines.
  void set_stolen_share(double share) { stolen_share_ = share; }

  // ghost::correlation_of() the profile.
  void set_correlation(double correlation) { correlation_ = correlation; }

  // In the time of the job: what was measured, divided by EmulatePlan::dilate. kInvalidArgument: no process has told anything, so there is nothing to report.
  Result<nlohmann::ordered_json> to_json() const;

 private:
  // Times of the wall clock; 0: not known.
  struct Rank {
    std::vector<int64_t> submitted_us;  // by operation in the group of all ranks
    std::vector<int64_t> done_us;       // by operation
    size_t set_up = 0;                  // of submitted_us: those of the first step
  };
  // From the end of the last operation of a step to that of the next, in seconds. The first step sets up.
  std::vector<double> step_seconds() const;
  nlohmann::ordered_json waited_for() const;
  std::vector<std::string> not_claimed() const;

  const EmulatePlan plan_;
  std::map<int, Rank> ranks_;
  const std::vector<uint64_t> first_ids_;
  std::vector<int64_t> lateness_ns_;              // of ghosts, after the first step
  uint64_t bytes_sent_ = 0, bytes_received_ = 0;  // of ghosts
  double ghost_cpu_seconds_ = 0, real_cpu_seconds_ = 0;
  uint64_t ghost_peak_bytes_ = 0, real_peak_bytes_ = 0;
  int ghosts_ = 0, real_ = 0;
  double stolen_share_ = 0, correlation_ = 0;
};

// What people read, from that.
std::string report_text(const nlohmann::ordered_json& report);
// The same as a page without scripts or files from elsewhere, with the time of each step and their distribution.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_EMULATE_REPORT_H_
