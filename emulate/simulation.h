// Runs a Scenario: real WorkerCores and AggregatorCores, virtual time and network, every result checked. Two
// runs of one scenario are equal to the last bit of the last packet.
#ifndef NETSUM_EMULATE_SIMULATION_H_
#define NETSUM_EMULATE_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/server/core.h"
#include "emulate/checker.h"
#include "emulate/clock.h"
#include "emulate/network.h"
#include "emulate/scenario.h"
#include "netsum/status.h"
#include "src/worker/worker_core.h"

namespace netsum::emulate {

struct OperationReport {
  bool ended = false;
  Status status;
  int64_t submitted_at_us = 0;
  int64_t ended_at_us = 0;
};

struct RankReport {
  std::vector<OperationReport> operations;
  std::string not_connected_reason;  // at the end of the run; empty if connected
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t retransmissions = 0;
  uint64_t probes = 0;
  uint64_t dropped = 0;
  uint64_t window_packets = 0;  // of stripe 0, at the end
  uint64_t srtt_us = 0;         // of stripe 0, at the end
};

struct Report {
  std::vector<std::string> violations;        // of what must hold in every run, faults or not
  std::vector<std::vector<RankReport>> jobs;  // [job][rank]
  NetworkCounters network;
  uint64_t trace_hash = 0;
  int64_t ended_at_us = 0;  // when the last operation ended

  // Every operation of every rank has ended well, and nothing was violated.
  bool all_ok() const { return first_problem().empty(); }
  std::string first_problem() const;
  uint64_t retransmissions() const;
};

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario);

  // --- Before run() ---------------------------------------------------------------------------------------
  // Sees every packet before it leaves; false loses it.
  void set_filter(Network::Filter filter) { filter_ = std::move(filter); }
  // The machine is gone from then on. Its operations need not end.
  void stop_worker(size_t job, int rank, int64_t at_us);
  void stop_aggregator(int index, int64_t at_us);
  // Anything else that happens during the run.
  void at(int64_t at_us, VirtualClock::Event event) { clock_.at(at_us, std::move(event)); }
  OperationMemory& memory(size_t job, size_t operation) { return *jobs_[job]->memories[operation]; }
  // Lets the plan of one rank differ from the others': what the checks for mismatches are there for.
  void override_plan(size_t job, int rank, size_t operation, const OperationPlan& plan);
  // Prints every packet to stderr.
  void trace_packets() { tracing_ = true; }

  Report run();

  // --- For filters and events -----------------------------------------------------------------------------
  int64_t now_us() const { return clock_.now_us(); }
  Network& network() { return network_; }
  const AggregatorCore& aggregator(int index) const { return *aggregators_[static_cast<size_t>(index)].core; }
  const WorkerCore& worker(size_t job, int rank) const {
    return *jobs_[job]->workers[static_cast<size_t>(rank)].core;
  }
  static Address aggregator_address(int index);
  static Address worker_address(uint16_t job, int rank);

 private:
  struct AggregatorNode {
    std::unique_ptr<AggregatorCore> core;
    Address address;
    int gathered = 0;  // packets taken in since the last flush
    bool flush_scheduled = false;
  };
  struct WorkerNode {
    std::unique_ptr<WorkerCore> core;
    Address address;
    int64_t tick_at_us = INT64_MAX;  // of the next scheduled tick
    bool stopped = false;
    size_t pending = 0;  // operations that have not ended
    RankReport report;
    std::vector<std::unique_ptr<OperationMemory>> own_memories;  // of overridden plans
  };
  struct JobRun {
    const JobPlan* plan = nullptr;
    std::vector<std::unique_ptr<OperationMemory>> memories;
    std::vector<WorkerNode> workers;
    std::vector<std::vector<const OperationPlan*>> overrides;  // [rank][operation]
    bool started = false;
  };

  void start_job(size_t job);
  void start_waiting_jobs();
  bool job_is_done(const JobRun& job) const;
  void submit(size_t job, int rank, size_t operation);
  void drive(size_t job, int rank);
  void schedule_tick(size_t job, int rank);
  void take_completions(size_t job, int rank);
  void aggregator_received(AggregatorNode* node, const InPacket& packet);
  void flush(AggregatorNode* node);
  void send(const Address& from, const OutPacket& packet);
  bool filter(const Address& from, const OutPacket& packet);
  void violate(const std::string& what) { report_.violations.push_back(what); }
  void finish_report();

  const Scenario scenario_;
  VirtualClock clock_;
  Network network_;
  Network::Filter filter_;
  bool tracing_ = false;
  std::vector<AggregatorNode> aggregators_;
  std::vector<std::unique_ptr<JobRun>> jobs_;
  std::vector<std::unique_ptr<OperationPlan>> override_plans_;
  Report report_;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_SIMULATION_H_
