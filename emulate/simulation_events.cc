// Faults of the nodes of a run, and their trace.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "emulate/simulation.h"
#include "wire/codec.h"

namespace netsum::emulate {
namespace {

// Capacity of a socket's buffer, for packets that arrive while their reader is paused.
constexpr size_t kSocketPackets = 256;

}  // namespace

void Simulation::stop_worker(size_t job, int rank, int64_t at_us) {
  clock_.at(at_us, [this, job, rank] {
    FaultEvent crash;
    crash.kind = FaultEvent::Kind::kCrash;
    crash.job = job;
    crash.rank = rank;
    crash_worker(crash);
  });
}

void Simulation::stop_aggregator(int index, int64_t at_us) {
  clock_.at(at_us, [this, index] { network_.detach(aggregator_address(index)); });
}

void Simulation::trace_packets() {
  tracing_ = true;
  network_.set_observer([this](const char* what, const Address& from, const OutPacket& packet) {
    netsum_fields fields;
    const bool parsed = netsum_parse(packet.data, packet.size, &fields) == NETSUM_DROP_NONE;
    std::fprintf(stderr, "%10" PRId64 " %-20s %s -> %s %s\n", clock_.now_us(), what, from.to_string().c_str(),
                 packet.to.to_string().c_str(),
                 parsed ? wire::describe(fields).c_str() : "not a netsum packet");
  });
}

void Simulation::note(const std::string& what) {
  if (tracing_) std::fprintf(stderr, "%10" PRId64 " ---- %s\n", clock_.now_us(), what.c_str());
}

std::string Simulation::name_of(const FaultEvent& event) const {
  if (event.rank == kNoRank) return "aggregator " + std::to_string(event.aggregator);
  return "job " + std::to_string(event.job) + " rank " + std::to_string(event.rank);
}

bool Simulation::is_due(const FaultEvent& event) const {
  if (event.rank == kNoRank) return events_done_ >= event.at_event;
  const JobRun& job = *jobs_[event.job];
  return job.started && events_done_ >= job.started_at_event + event.at_event;
}

void Simulation::apply_events() {
  for (size_t i = 0; i < coming_.size();) {
    if (!is_due(coming_[i])) {
      ++i;
      continue;
    }
    const FaultEvent event = coming_[i];
    coming_.erase(coming_.begin() + static_cast<ptrdiff_t>(i));
    apply(event);
  }
}

void Simulation::apply(const FaultEvent& event) {
  const bool worker = event.rank != kNoRank;
  if (worker ? worker_node(event.job, event.rank).stopped || job_is_done(*jobs_[event.job])
             : aggregators_[static_cast<size_t>(event.aggregator)].core == nullptr) {
    return;  // the node has ended
  }
  const Address address = worker ? address_of(event.job, event.rank) : aggregator_address(event.aggregator);
  const int64_t until_us = clock_.now_us() + event.duration_us;
  const std::string lasting = " for " + std::to_string(event.duration_us) + " us";
  switch (event.kind) {
    case FaultEvent::Kind::kPartition:
      ++report_.events.partitions;
      note(name_of(event) + " is cut off" + (event.outbound ? "" : " (inbound)") +
           (event.inbound ? "" : " (outbound)") + lasting);
      return network_.cut_off(address, event.outbound, event.inbound, until_us);
    case FaultEvent::Kind::kSlowLink:
      ++report_.events.slow_links;
      note(name_of(event) + " has slow links" + lasting);
      return network_.slow_down(address, event.bytes_per_us, until_us);
    case FaultEvent::Kind::kPause:
      ++report_.events.pauses;
      note(name_of(event) + " is stopped" + lasting);
      return worker ? pause_worker(event.job, event.rank, until_us)
                    : pause_aggregator(event.aggregator, until_us);
    case FaultEvent::Kind::kCrash:
      note(name_of(event) + " crashes");
      return worker ? crash_worker(event) : crash_aggregator(event);
  }
}

void Simulation::crash_worker(const FaultEvent& event) {
  WorkerNode& worker = worker_node(event.job, event.rank);
  ++report_.events.worker_crashes;
  worker.stopped = true;
  worker.pause = Pause();
  network_.detach(worker.address);
  if (event.reported_after_us != kNever) {
    const Status lost(ErrorCode::kPeerLost, "rank " + std::to_string(event.rank) + " has crashed",
                      event.rank);
    clock_.at(clock_.now_us() + event.reported_after_us, [this, job = event.job, lost] { tell(job, lost); });
  }
  remove_done_jobs();
  start_due_jobs();
}

void Simulation::crash_aggregator(const FaultEvent& event) {
  AggregatorNode& node = aggregators_[static_cast<size_t>(event.aggregator)];
  ++report_.events.aggregator_crashes;
  network_.detach(node.address);
  node.core.reset();
  node.pause = Pause();
  node.gathered = 0;
  if (event.reported_after_us != kNever) {
    const Status lost(ErrorCode::kAggregatorLost,
                      "the aggregator at " + node.address.to_string() + " has crashed");
    for (size_t j = 0; j < jobs_.size(); ++j) {
      if (!jobs_[j]->started) continue;
      clock_.at(clock_.now_us() + event.reported_after_us, [this, j, lost] { tell(j, lost); });
    }
  }
  if (event.duration_us == kNever) return;
  clock_.at(clock_.now_us() + event.duration_us,
            [this, index = event.aggregator] { restart_aggregator(index); });
}

void Simulation::restart_aggregator(int index) {
  AggregatorNode& node = aggregators_[static_cast<size_t>(index)];
  if (node.core != nullptr) return;
  ++report_.events.aggregator_restarts;
  note("aggregator " + std::to_string(index) + " is back, empty");
  create_aggregator(&node);
  start_due_jobs();
}

// The control plane's reaction to a loss: the job ends on all nodes.
void Simulation::tell(size_t job, const Status& status) {
  if (job_is_done(*jobs_[job])) return;
  note("job " + std::to_string(job) + " is told: " + status.to_string());
  remove_job(job);
  for (int rank = 0; rank < jobs_[job]->plan->ranks; ++rank) {
    clock_.at(worker_node(job, rank).pause.until_us, [this, job, rank, status] {
      WorkerNode& worker = worker_node(job, rank);
      if (worker.stopped) return;
      worker.core->fail(status);
      drive(job, rank);
    });
  }
}

bool Simulation::keep_if_paused(Pause* pause, const InPacket& packet) {
  if (clock_.now_us() >= pause->until_us) return false;
  if (pause->packets.size() < kSocketPackets) {
    pause->packets.push_back({packet.from, {packet.data, packet.data + packet.size}});
  }
  return true;
}

void Simulation::pause_worker(size_t job, int rank, int64_t until_us) {
  Pause& pause = worker_node(job, rank).pause;
  pause.until_us = std::max(pause.until_us, until_us);
  clock_.at(until_us, [this, job, rank] {
    WorkerNode& worker = worker_node(job, rank);
    if (worker.stopped || clock_.now_us() < worker.pause.until_us) return;
    for (const StoredPacket& packet : std::exchange(worker.pause.packets, {})) {
      worker_received(job, rank,
                      {packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from});
    }
    for (const size_t operation : std::exchange(worker.pause.submissions, {})) submit(job, rank, operation);
    drive(job, rank);
  });
}

void Simulation::pause_aggregator(int index, int64_t until_us) {
  AggregatorNode& node = aggregators_[static_cast<size_t>(index)];
  node.pause.until_us = std::max(node.pause.until_us, until_us);
  clock_.at(until_us, [this, &node] {
    if (node.core == nullptr || clock_.now_us() < node.pause.until_us) return;
    for (const StoredPacket& packet : std::exchange(node.pause.packets, {})) {
      aggregator_received(&node,
                          {packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from});
    }
    flush(&node);
    start_due_jobs();
  });
}

}  // namespace netsum::emulate
