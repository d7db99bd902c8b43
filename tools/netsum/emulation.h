// One run of `netsum emulate`: its rack, its processes, and what they have told.
#ifndef NETSUM_TOOLS_NETSUM_EMULATION_H_
#define NETSUM_TOOLS_NETSUM_EMULATION_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulate/ghost/cast.h"
#include "netsum/status.h"
#include "tools/netsum/emulate_keeper.h"
#include "tools/netsum/emulate_plan.h"
#include "tools/netsum/process.h"
#include "tools/netsum/rack_plan.h"
#include "tools/netsum/stop_signals.h"

namespace netsum::tool {

class Emulation {
 public:
  // `command`: of the real ranks; empty: they are processes of this program.
  Emulation(EmulatePlan plan, RackOptions rack, std::vector<std::string> command)
      : plan_(std::move(plan)), rack_(std::move(rack)), command_(std::move(command)) {}
  ~Emulation() { tear_down(); }
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;

  // Scripts write their programs there (NETSUM_RECORD). Before run().
  void record_scripts(const std::string& path) { record_path_ = path; }
  // `rack_name`: of one that is up; empty: none. `aggregator`: empty: of the rack.
  Status prepare(const std::string& rack_name, const std::string& aggregator);
  Status run(bool output_to_stderr);
  Result<nlohmann::ordered_json> report();

 private:
  // A process of this binary that plays a part.
  struct Part {
    std::unique_ptr<ChildProcess> process;
    std::string result_path;
    std::vector<int> ranks;
    bool is_real = false, ended = false;
    std::string failure;  // why; empty: it has not failed
    std::string code;     // of the failure
  };

  // The user's script as a real rank.
  struct Script {
    pid_t pid = 0;
    int rank = 0;
    std::optional<int> status;  // of wait4()
    rusage usage{};
  };

  // Checks it, or names that which prepare() makes.
  Status choose_rack(const std::string& name, bool has_aggregator);
  Status start(std::vector<int> ranks, bool is_real);
  Status start_scripts(bool output_to_stderr);
  Status watch();
  void take_events(Part* part);
  void reap_scripts();
  void show_progress(uint64_t step);
  void end_scripts();
  void tear_down();
  bool real_ended() const;
  bool all_ended() const;
  std::string why_failed() const;
  std::vector<std::string> in_place_of(int worker, std::vector<std::string> command) const;

  EmulatePlan plan_;
  RackOptions rack_;
  const std::vector<std::string> command_;
  std::string record_path_;  // empty: scripts are recorded if the environment says so
  const StopSignals stop_;   // before any thread
  bool in_rack_ = false;
  std::unique_ptr<EmulationKeeper> keeper_;  // from prepare() on
  std::string program_;
  std::vector<Part> parts_;
  std::vector<Script> scripts_;
  uint64_t steps_ = 0;
  double correlation_ = 0;           // of the profile
  std::vector<uint64_t> first_ids_;  // of each step of rank 0, the number of its first operation
  // A group of a real rank, and its operations.
  using GroupOperations = std::pair<ghost::GroupJob, std::vector<uint64_t>>;
  std::vector<std::vector<GroupOperations>> groups_;  // of the real ranks of a script
  std::chrono::steady_clock::time_point shown_;
  std::pair<double, double> times_before_;  // processor_times()
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_EMULATION_H_
