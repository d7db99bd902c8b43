#include "session/data_path.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>
#include <vector>

#include "src/host/segment.h"
#include "src/job/capabilities.h"

namespace netsum {

DataPath::DataPath(Options options) : options_(std::move(options)) {}

DataPath::~DataPath() {
  close();
}

void DataPath::close() {
  options_.failures->attach(nullptr);
  watch_nothing();
  // The host's engine submits operations to the network's engine, which reads memory that the host's engine owns.
  if (host_engine_ != nullptr) host_engine_->stop();
  network_.engine.reset();
  host_engine_.reset();
  host_memberships_.clear();
}

Status DataPath::open(Deadline deadline) {
  return options_.placement.shares_memory() ? open_shared_memory(deadline) : open_network(deadline);
}

Status DataPath::open_network(Deadline deadline) {
  WorkerOptions worker;
  worker.rank = options_.user.rank;
  worker.world_size = options_.user.world_size;
  return connect(std::move(worker), options_.job, 0, options_.on_failed, deadline);
}

Status DataPath::connect(WorkerOptions worker, const Memberships& memberships, uint32_t payload_bytes,
                         std::function<void(const Status&)> on_failed, Deadline deadline) {
  worker.encoding = encoding_options();
  const bool shares_memory = options_.placement.shares_memory();
  const size_t ranks_here = shares_memory ? options_.placement.local_ranks().size() : 1;
  auto path = open_path(memberships, std::move(worker), payload_bytes, options_.user, ranks_here,
                        options_.shard, std::move(on_failed), shares_memory ? nullptr : options_.trace);
  if (!path.ok()) return path.status();
  network_ = std::move(path).value();
  options_.failures->attach(network_.engine.get());
  watch_results(memberships);
  return network_.engine->wait_connected(deadline);
}

// Results prove that their aggregator is alive. With embedded shards, those of the shard of the rank that runs the control
// service count.
void DataPath::watch_results(const Memberships& memberships) {
  const int root_rank = options_.user.aggregators.empty() ? options_.shard->root_rank() : kNoRank;
  for (size_t i = 0; i < memberships.size(); ++i) {
    std::vector<const Counter*> results;
    for (const NetworkPath::OneStripe& one : network_.stripes) {
      if (one.membership != i) continue;
      const StripeInfo& info = memberships[i]->membership().stripes[one.number];
      if (!info.embedded || (root_rank != kNoRank && info.owner_rank == root_rank))
        results.push_back(&one.stripe->counters().results);
    }
    const auto witness = [results] {
      uint64_t sum = 0;
      for (const Counter* counter : results) sum += counter->get();
      return sum;
    };
    memberships[i]->set_witness(witness);
    if (&memberships != &options_.job && i < options_.job.size()) options_.job[i]->set_witness(witness);
  }
}

void DataPath::watch_nothing() {
  for (const Memberships* memberships : {&options_.job, &std::as_const(host_memberships_)}) {
    for (const auto& control : *memberships) control->set_witness(nullptr);
  }
}

// The ranks of each host are summed in its memory. If there are several hosts, the owners of the same portion form a job
// of one rank per host.
Status DataPath::open_shared_memory(Deadline deadline) {
  const Placement& placement = options_.placement;
  const Membership& membership = options_.job.front()->membership();
  SegmentOptions memory;
  char name[64];
  std::snprintf(name, sizeof name, "netsum-%016" PRIx64 "-%zu", membership.host_meeting, placement.host);
  memory.name = name;
  memory.local = placement.local;
  memory.ranks = placement.local_ranks().size();
  memory.host_block_bytes = placement.host_block_bytes();
  memory.deadline = deadline;
  memory.interrupted = [failures = options_.failures] { return failures->failure(); };
  auto segment = Segment::open(memory);
  if (!segment.ok()) return segment.status();
  if (placement.hosts.size() > 1 && placement.is_owner()) {
    if (Status status = open_network_of_hosts(deadline); !status.ok()) return status;
  }
  if (placement.hosts.size() == 1 && !encoding_options().fixed_floats && options_.user.lane_bits != 8)
    network_.order_of_floats = "in memory";
  auto core = std::make_unique<SharedMemoryCore>(
      SharedMemoryCore::Options{placement, options_.user.world_size, host_encoding_options(),
                                lane_room(options_.user, membership), network_can(sums_partial_floats),
                                options_.user.spin},
      std::move(segment).value(), network_.engine.get());
  const HostCounters* const counters = &core->counters();
  auto engine = std::make_unique<Engine>(std::move(core), options_.on_failed, options_.trace);
  if (Status status = engine->start(); !status.ok()) return status;
  host_engine_ = std::move(engine);
  host_counters_ = counters;
  options_.failures->attach(host_engine_.get());
  return Status();
}

EncodingOptions DataPath::encoding_options() const {
  return {.lane_bits = options_.user.lane_bits,
          .fixed_floats = options_.fixed_floats || options_.user.numerics == Numerics::kFixed};
}

// Of the ranks of this host, which add floats themselves or give sums in float32 to the network.
EncodingOptions DataPath::host_encoding_options() const {
  EncodingOptions options = encoding_options();
  if (options_.placement.hosts.size() == 1)
    options.floats = FloatSums::kAsTheyAre;
  else if (network_can([](const Capabilities& can) { return adds_floats(can); }))
    options.floats = FloatSums::kInFloat32;
  return options;
}

// Whether all that sum for the job, and so for its owners, can do this with unverified sums. All ranks are told the same.
bool DataPath::network_can(bool (*can)(const Capabilities&)) const {
  return options_.user.verify == Verify::kPacket &&
         std::all_of(options_.job.begin(), options_.job.end(),
                     [can](const auto& control) { return can(control->membership().capabilities); });
}

Status DataPath::open_network_of_hosts(Deadline deadline) {
  const Placement& placement = options_.placement;
  const Membership& membership = options_.job.front()->membership();
  JobMember member;
  member.job = options_.user.job + "/" + std::to_string(placement.local);
  member.rank = static_cast<int>(placement.host);
  member.world_size = static_cast<int>(placement.hosts.size());
  member.shard_job = 1;
  // Not to be taken for that of the job that this one succeeds, which may still be there.
  if (options_.succeeds_another_job) member.succession.succeeds = membership.succession_id;
  // Its members are also members of the whole job, which reports failures with the right rank numbers.
  member.on_failure = [](const Status&) {};
  Status status = join_job(member, options_.user, options_.shard, deadline, &host_memberships_);
  if (!status.ok()) return status;
  WorkerOptions worker;
  worker.rank = member.rank;
  worker.world_size = member.world_size;
  worker.summands = options_.user.world_size;
  worker.names = placement.counterparts();
  // A failure of this job fails an operation of the host's engine, which reports it.
  return connect(
      std::move(worker), host_memberships_, membership.payload_bytes, [](const Status&) {}, deadline);
}

}  // namespace netsum
