// Runs a Scenario: real WorkerCores and aggregators, virtual time and network, every result checked. Two
// runs of one scenario are equal to the last bit of the last packet.
#ifndef NETSUM_EMULATE_SIMULATION_H_
#define NETSUM_EMULATE_SIMULATION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulate/aggregator.h"
#include "emulate/checker.h"
#include "emulate/clock.h"
#include "emulate/faulty_aggregator.h"
#include "emulate/network.h"
#include "emulate/result_checker.h"
#include "emulate/scenario.h"
#include "netsum/status.h"
#include "netsum/watermarks.h"
#include "src/base/rng.h"
#include "src/worker/worker_core.h"

namespace netsum::emulate {

struct OperationReport {
  bool submitted = false;
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
  uint64_t sums_verified = 0;
  uint64_t sums_refused = 0;
  uint64_t scales_predicted = 0;
  uint64_t scales_mispredicted = 0;
  uint64_t window_packets = 0;  // of stripe 0, at the end
  uint64_t srtt_us = 0;         // of stripe 0, at the end
};

// Faults of nodes and changes of jobs in a run; the network counts the faults of packets.
struct EventCounters {
  uint64_t partitions = 0;
  uint64_t slow_links = 0;
  uint64_t pauses = 0;
  uint64_t worker_crashes = 0;
  uint64_t aggregator_crashes = 0;
  uint64_t aggregator_restarts = 0;
  uint64_t jobs_started = 0;
  uint64_t jobs_on_used_hosts = 0;  // of them: restarts and changes of membership
  uint64_t switches = 0;            // P4 switches that have been started
};

// Of a lying aggregator.
struct LieCounters {
  std::array<uint64_t, static_cast<size_t>(Lie::kCount)> injected{};
  uint64_t injected_upwards = 0;  // of these, in what racks have sent to their parents
  uint64_t false_sent = 0;  // results: told, made of flipped bits or of false contributions, or passed on
  uint64_t flipped_in_ranks = 0;  // bits
  uint64_t wrong_refused = 0;
  uint64_t false_scales = 0;     // results that ranks have taken at first; no data is sent with them
  uint64_t false_alarms = 0;     // right results that were refused
  uint64_t wrong_delivered = 0;  // operations of a rank that ended well with something else than the sum
  // Whether a job of the run ...
  bool reached = false;     // ... has a rank that a false result has reached in time
  bool ended = false;       // ... has, and ended before false scales were confirmed: no rank refused anything
  bool unbalanced = false;  // ... the same, of the correction of weights after the last operation
};

struct Report {
  std::vector<std::string> violations;        // of what must hold in every run, faults or not
  std::vector<std::vector<RankReport>> jobs;  // [job][rank]
  NetworkCounters network;
  EventCounters events;
  LieCounters lies;
  uint64_t trace_hash = 0;
  int64_t ended_at_us = 0;  // when the last operation ended

  // "" if every operation of every rank has ended well, and nothing was violated: a run without trouble. Where JobPlan::ending
  // allows more, `violations` alone counts.
  std::string first_problem() const;
  uint64_t retransmissions() const;
};

// What runs on a rank beside the operations of the job's plan: operations that depend on the results of earlier ones.
class Program {
 public:
  virtual ~Program() = default;
  // The next operation, if it can begin now; nullopt otherwise. Its deadline is set by the simulation.
  virtual std::optional<OperationSpec> next() = 0;
  // The operation number `number`, from 0, has ended.
  virtual void ended(uint64_t number, const Status& status) = 0;
  virtual bool done() const = 0;  // the job ends when all are
};

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario);

  // --- Before run() ---------------------------------------------------------------------------------------
  // Sees every packet before it leaves; false loses it.
  void set_filter(Network::Filter filter) { network_.set_filter(std::move(filter)); }
  // The machine is gone from then on. Its operations need not end.
  void stop_worker(size_t job, int rank, int64_t at_us);
  void stop_aggregator(int index, int64_t at_us);
  // Alters results before they leave, in addition to Scenario::lies; true: it has. Only if all jobs verify their sums.
  void set_result(std::function<bool(netsum_fields* fields, uint8_t* payload)> alter) {
    alter_ = std::move(alter);
  }
  // Where a packet of the aggregator `from` goes, before it is checked: a misdirected one is a violation.
  void set_addressee(std::function<Address(const Address& from, const OutPacket& packet)> addressee) {
    addressee_ = std::move(addressee);
  }
  // Lets a program look whether it can begin its next operation.
  void wake(size_t job, int rank) { drive(job, rank); }
  // Anything else that happens during the run.
  void at(int64_t at_us, VirtualClock::Event event) { clock_.at(at_us, std::move(event)); }
  OperationMemory& memory(size_t job, size_t operation) { return *jobs_[job]->memories[operation]; }
  // The caller of an operation whose input arrives piece by piece fails it.
  void fail_input(size_t job, int rank, size_t operation, int64_t at_us, const Status& status);
  // Lets the plan of one rank differ from the others': what the checks for mismatches are there for.
  void override_plan(size_t job, int rank, size_t operation, const OperationPlan& plan);
  // Every rank of the job must have one. It outlives the run.
  void set_program(size_t job, int rank, Program* program);
  // Prints the fate of every packet and the faults of nodes to stderr.
  void trace_packets();

  Report run();
  // From a filter or an event: run() returns after this event, and does not check what is there at the end.
  void stop() { stopped_ = true; }

  // --- For filters and events -----------------------------------------------------------------------------
  int64_t now_us() const { return clock_.now_us(); }
  Network& network() { return network_; }
  const SimulatedAggregator& aggregator(int index) const {
    return *aggregators_[static_cast<size_t>(index)].core;
  }
  const WorkerCore& worker(size_t job, int rank) const {
    return *jobs_[job]->workers[static_cast<size_t>(rank)].core;
  }
  static Address aggregator_address(int index);
  static Address worker_address(uint16_t job, int host);

 private:
  struct StoredPacket {
    Address from;
    std::vector<uint8_t> bytes;
  };
  // Of a node that is stopped: the packets in its socket, and the operations that it would have submitted.
  struct Pause {
    int64_t until_us = 0;
    std::vector<StoredPacket> packets;
    std::vector<size_t> submissions;  // operations
  };
  struct AggregatorNode {
    std::unique_ptr<SimulatedAggregator> core;  // null after a crash
    Address address;
    Pause pause;
    int gathered = 0;  // packets taken in since the last flush
    bool flush_scheduled = false;
  };
  struct WorkerNode {
    std::unique_ptr<WorkerCore> core;
    Address address;
    LocalClock clock;
    Pause pause;
    int64_t tick_at_us = INT64_MAX;  // of the next scheduled tick
    bool stopped = false;
    bool left = false;   // the job is over: it says no more, though late packets may still reach it
    size_t pending = 0;  // operations that have not ended, and 1 for a program that is not done
    Program* program = nullptr;
    uint64_t program_operations = 0;  // submitted
    std::vector<size_t> submitted;    // operations of the plan, by number; only without a program
    RankReport report;
    std::vector<int64_t> deadlines_us;                           // [operation], by its own clock
    std::map<size_t, std::shared_ptr<Watermarks>> watermarks;    // by operation
    std::vector<std::unique_ptr<OperationMemory>> own_memories;  // of overridden plans
  };
  struct JobRun {
    const JobPlan* plan = nullptr;
    std::vector<std::unique_ptr<OperationMemory>> memories;
    std::vector<WorkerNode> workers;
    std::vector<std::vector<const OperationPlan*>> overrides;  // [rank][operation]
    bool due = false;                                          // its time has come
    bool started = false;
    uint64_t started_at_event = 0;
    bool removal_scheduled = false;
    uint64_t everywhere = 0;  // operations below this number are known to have ended on all ranks
  };

  // simulation.cc: jobs, operations, packets.
  void start_due_jobs();
  bool may_start(size_t job) const;
  void start_job(size_t job);
  bool has_stripe(const JobPlan& plan, int stripe) const;
  // What `rack` is to install, or, if that is -1, the stripe's own aggregator; without its parent.
  bool sums_values(const JobPlan& plan) const;
  OperationMemory::Additions additions(const JobPlan& plan) const;
  DataplaneJob dataplane_job(const JobPlan& plan, int rack) const;
  void install(const JobPlan& plan, int stripe);
  WorkerOptions worker_options(const JobPlan& plan, int rank) const;
  void start_worker(size_t job, int rank, const WorkerOptions& options);
  bool job_is_done(const JobRun& job) const;
  void remove_done_jobs();
  void remove_job(size_t job);
  void submit(size_t job, int rank, size_t operation);
  // Of an operation whose input arrives piece by piece.
  std::shared_ptr<Watermarks> make_watermarks(size_t job, int rank, size_t operation);
  void arrive(size_t job, int rank, size_t operation, Rng rng);
  void drive(size_t job, int rank);
  void schedule_tick(size_t job, int rank);
  void take_completions(size_t job, int rank);
  bool run_program(WorkerNode* worker);
  void worker_received(size_t job, int rank, const InPacket& packet);
  void aggregator_received(AggregatorNode* node, const InPacket& packet);
  void create_aggregator(AggregatorNode* node);
  void flush(AggregatorNode* node);
  int index_of(const AggregatorNode& node) const { return static_cast<int>(&node - aggregators_.data()); }
  // Of each payload, the bytes for lanes.
  uint32_t lane_room(const JobPlan& plan) const;
  void send(const Address& from, const OutPacket& packet);
  WorkerNode& worker_node(size_t job, int rank) { return jobs_[job]->workers[static_cast<size_t>(rank)]; }
  Address address_of(size_t job, int rank) const;
  // Of the aggregator of `rack`, or of the stripe's own if that is -1.
  size_t node_index(int rack, int stripe) const {
    return static_cast<size_t>(scenario_.aggregators * (1 + rack) + stripe);
  }

  // simulation_lies.cc: lying aggregators, memory that flips bits, and what ranks do with what they get.
  void observe(size_t job, int rank, const OutPacket& packet);
  // As the ranks number it.
  FaultyAggregator::Round round_of(size_t job, const Address& aggregator, netsum_fields fields) const;
  // A result, or the contribution of a rack.
  void send_sum(const AggregatorNode& node, const OutPacket& packet, netsum_fields fields);
  void judge(size_t job, int rank, const InPacket& packet);
  // As if after the check of the packet, whose new copy is in `memory`.
  InPacket flip_a_bit(const InPacket& packet, const netsum_fields& fields, const wire::PacketKey& key,
                      std::vector<uint8_t>* memory);
  bool is_checked(size_t job) const {
    return scenario_.jobs[job].verifies_sums && !scenario_.alters_contributions(scenario_.jobs[job]);
  }

  // simulation_events.cc: faults of nodes.
  void apply_events();
  bool is_due(const FaultEvent& event) const;
  void apply(const FaultEvent& event);
  void crash_worker(const FaultEvent& event);
  void crash_aggregator(const FaultEvent& event);
  void restart_aggregator(int index);
  void tell(size_t job, const Status& status);
  void pause_worker(size_t job, int rank, int64_t until_us);
  void pause_aggregator(int index, int64_t until_us);
  bool keep_if_paused(Pause* pause, const InPacket& packet);
  void note(const std::string& what);
  std::string name_of(const FaultEvent& event) const;

  // simulation_report.cc: what must hold.
  void check_completion(size_t job, int rank, size_t operation);
  void check_watermarks(size_t job, int rank, size_t operation);
  void check_everywhere(size_t job, uint64_t everywhere);
  void check_addressee(const AggregatorNode& from, const OutPacket& packet);
  bool is_addressee(size_t job, int from, const Address& to) const;
  void check_at_end();
  void check_ending(size_t job, int rank, size_t operation);
  void check_aggregators();
  void check_lies();
  void violate(const std::string& what) { report_.violations.push_back(what); }
  void finish_report();
  void fill_counters(const WorkerCore& core, RankReport* report) const;

  const Scenario scenario_;
  uint32_t slots_ = 0;  // of an aggregator
  VirtualClock clock_;
  Network network_;
  std::function<bool(netsum_fields*, uint8_t*)> alter_;
  std::function<Address(const Address& from, const OutPacket& packet)> addressee_;
  FaultyAggregator faulty_aggregator_;
  Rng flips_;
  ResultChecker result_checker_;
  bool tracing_ = false;
  uint64_t events_done_ = 0;
  std::vector<FaultEvent> coming_;
  bool stopped_ = false;
  bool has_programs_ = false;
  bool orderly_ = false;  // every job says how it may end: stricter checks apply
  std::vector<AggregatorNode> aggregators_;
  std::vector<std::shared_ptr<faults::LastContributions>> shards_last_;  // by shard
  std::vector<std::unique_ptr<JobRun>> jobs_;
  std::vector<std::unique_ptr<OperationPlan>> override_plans_;
  Report report_;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_SIMULATION_H_
