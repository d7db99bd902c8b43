// Invariants of every run, and its report.
#include <algorithm>

#include "emulate/simulation.h"
#include "wire/codec.h"

namespace netsum::emulate {
namespace {

std::string name_of_operation(size_t job, int rank, size_t operation) {
  return "job " + std::to_string(job) + " rank " + std::to_string(rank) + " operation " +
         std::to_string(operation);
}

bool tells_of_a_loss(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kPeerLost || code == ErrorCode::kAggregatorLost;
}

}  // namespace

std::string Report::first_problem() const {
  if (!violations.empty()) return violations.front();
  for (size_t job = 0; job < jobs.size(); ++job) {
    for (size_t rank = 0; rank < jobs[job].size(); ++rank) {
      for (size_t i = 0; i < jobs[job][rank].operations.size(); ++i) {
        const OperationReport& operation = jobs[job][rank].operations[i];
        if (operation.ended && operation.status.ok()) continue;
        return name_of_operation(job, static_cast<int>(rank), i) + ": " +
               (operation.ended ? operation.status.to_string() : "has not ended");
      }
    }
  }
  return "";
}

uint64_t Report::retransmissions() const {
  uint64_t sum = 0;
  for (const auto& ranks : jobs) {
    for (const RankReport& rank : ranks) sum += rank.retransmissions;
  }
  return sum;
}

void Simulation::check_completion(size_t job_index, int rank, size_t i) {
  const JobRun& job = *jobs_[job_index];
  const WorkerNode& worker = worker_node(job_index, rank);
  const OperationReport& report = worker.report.operations[i];
  // A node that is paused at the deadline can report it only when it continues.
  const bool late = clock_.now_us() > worker.clock.true_us(worker.deadlines_us[i]);
  if (late && clock_.now_us() != worker.pause.until_us) {
    violate(name_of_operation(job_index, rank, i) + " ended after its deadline");
  }
  if (!job.overrides[static_cast<size_t>(rank)].empty()) return;
  const std::string wrong = job.memories[i]->check(rank, report.status.ok());
  if (wrong.empty()) return;
  report_.lies.wrong_delivered += report.status.ok() ? 1 : 0;
  violate(name_of_operation(job_index, rank, i) + ": " + wrong);
}

// Of an operation whose input arrives piece by piece. What has not come when it fails comes now, for the checks.
void Simulation::check_watermarks(size_t job, int rank, size_t i) {
  const WorkerNode& worker = worker_node(job, rank);
  const auto found = worker.watermarks.find(i);
  if (found == worker.watermarks.end()) return;
  OperationMemory& memory = *jobs_[job]->memories[i];
  const Watermarks& watermarks = *found->second;
  if (!worker.report.operations[i].status.ok())
    memory.arrive(rank, watermarks.available(), memory.bytes());
  else if (watermarks.delivered() != memory.bytes())
    violate(name_of_operation(job, rank, i) + " has ended with " + std::to_string(watermarks.delivered()) +
            " of " + std::to_string(memory.bytes()) + " bytes delivered");
}

// What a rank concludes about the others. An operation without elements ends without them.
void Simulation::check_everywhere(size_t job_index, uint64_t everywhere) {
  JobRun& job = *jobs_[job_index];
  for (; job.everywhere < everywhere; ++job.everywhere) {
    for (size_t rank = 0; rank < job.workers.size(); ++rank) {
      const WorkerNode& worker = job.workers[rank];
      const bool submitted = job.everywhere < worker.submitted.size();
      const size_t operation = submitted ? worker.submitted[job.everywhere] : job.everywhere;
      const std::vector<TensorPlan>& tensors = job.plan->operations[operation].tensors;
      if (std::all_of(tensors.begin(), tensors.end(), [](const TensorPlan& t) { return t.count == 0; }))
        continue;
      const OperationReport& report = worker.report.operations[operation];
      if (submitted && report.ended && report.status.ok()) continue;
      violate("job " + std::to_string(job_index) + " operation " + std::to_string(job.everywhere) +
              " counts as finished on all ranks, and rank " + std::to_string(rank) + " has not finished it");
    }
  }
}

// Jobs are isolated: an aggregator sends packets of a job to its own members of that job, and a rack to its parent.
void Simulation::check_addressee(const AggregatorNode& from, const OutPacket& packet) {
  netsum_fields fields;
  if (netsum_parse(packet.data, packet.size, &fields) != NETSUM_DROP_NONE) {
    return violate("an aggregator sent something that is no packet");
  }
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const JobPlan& plan = *jobs_[j]->plan;
    if (!jobs_[j]->started || plan.job != fields.job || plan.epoch != fields.epoch) continue;
    if (is_addressee(j, index_of(from), packet.to)) return;
  }
  violate("an aggregator sent a packet of job " + std::to_string(fields.job) + " epoch " +
          std::to_string(fields.epoch) + " to " + packet.to.to_string() + ", which is no member");
}

bool Simulation::is_addressee(size_t job_index, int from, const Address& to) const {
  const JobPlan& plan = *jobs_[job_index]->plan;
  const int stripe = from % scenario_.aggregators, rack = from / scenario_.aggregators - 1;
  if (rack < 0 && scenario_.racks > 0) {
    for (int member = 0; member < scenario_.racks_of(plan); ++member)
      if (aggregators_[node_index(member, stripe)].address == to) return true;
    return false;
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const bool is_member = rack < 0 || scenario_.rack_of(plan, rank) == rack;
    if (is_member && address_of(job_index, rank) == to) return true;
  }
  return rack >= 0 && rack < scenario_.racks_of(plan) && aggregators_[node_index(-1, stripe)].address == to;
}

void Simulation::check_ending(size_t job_index, int rank, size_t i) {
  const JobRun& job = *jobs_[job_index];
  const WorkerNode& worker = worker_node(job_index, rank);
  const OperationReport& report = worker.report.operations[i];
  if (!report.ended) {
    if (!worker.stopped && job.started)
      violate(name_of_operation(job_index, rank, i) + " has not ended by its deadline");
    return;
  }
  if (!report.status.ok()) {
    const ErrorCode code = report.status.code();
    const bool lied_to = (scenario_.lies.any() || alter_) && code == ErrorCode::kWrongSum;
    const bool allowed = job.plan->ending == Ending::kAny ||
                         (job.plan->ending == Ending::kSuccessOrLoss && (tells_of_a_loss(code) || lied_to));
    if (!allowed) violate(name_of_operation(job_index, rank, i) + " failed: " + report.status.to_string());
  }
  if (!job.overrides[static_cast<size_t>(rank)].empty()) return;
  const std::string wrong = job.memories[i]->check(rank, report.status.ok());
  if (!wrong.empty()) violate(name_of_operation(job_index, rank, i) + ", after the end: " + wrong);
}

void Simulation::check_aggregators() {
  const bool all_done = std::all_of(jobs_.begin(), jobs_.end(),
                                    [this](const auto& job) { return !job->started || job_is_done(*job); });
  for (const AggregatorNode& node : aggregators_) {
    if (node.core == nullptr) continue;
    const std::string who = "the aggregator at " + node.address.to_string();
    const uint32_t free_slots = node.core->free_slots();
    if (all_done && free_slots != slots_) {
      violate(who + " has lost " + std::to_string(slots_ - free_slots) + " slots");
    }
    if (!orderly_) continue;
    // Drops that correct members never cause, whatever the network does to their packets.
    if (node.core->drops(NETSUM_DROP_FUTURE_ROUND) > 0) violate(who + " saw a round of the future");
    if (node.core->drops(NETSUM_DROP_UNKNOWN_PEER) > 0) violate(who + " saw a member before its HELLO");
    if (node.core->mismatches() > 0) violate(who + " found a mismatch, though all ranks agree");
  }
}

void Simulation::check_at_end() {
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const JobRun& job = *jobs_[j];
    for (int rank = 0; rank < job.plan->ranks; ++rank) {
      const WorkerNode& worker = worker_node(j, rank);
      if (worker.core != nullptr) {
        const WorkerCore& core = *worker.core;
        if (core.idle() && !core.updates_weights() && core.connected() && core.next_tick_us() != INT64_MAX) {
          violate("a worker with nothing to do still has a timer");
        }
        if (worker.pending == 0 && core.status().ok() && !core.idle()) {
          violate("a worker is not idle at the end");
        }
      }
      if (worker.program != nullptr && !worker.stopped)
        violate("the program of job " + std::to_string(j) + " rank " + std::to_string(rank) +
                " has not ended");
      for (size_t i = 0; i < worker.report.operations.size(); ++i) check_ending(j, rank, i);
    }
    for (const auto& memory : job.memories) {
      const std::string wrong = memory->check_bound();
      if (!wrong.empty()) violate(wrong);
    }
  }
  check_aggregators();
  check_lies();
}

// A false result that reached a rank in time raises an alarm in its job. There are two exceptions, in which nothing was summed
// with it: the job ended before its ranks had confirmed false scales; the scales were those of a correction of weights, which no
// operation has waited for.
void Simulation::check_lies() {
  LieCounters& lies = report_.lies;
  lies.reached = !result_checker_.lied_to().empty();
  for (const ResultChecker::Misled& misled : result_checker_.misled()) {
    if (result_checker_.alarmed().contains(misled.job)) continue;
    const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& run) {
      return ResultChecker::Job(run->plan->job, run->plan->epoch) == misled.job;
    });
    const WorkerNode& worker = (*job)->workers[static_cast<size_t>(misled.rank)];
    const auto& operations = worker.report.operations;
    const bool all_ended_well =
        std::all_of(operations.begin(), operations.end(),
                    [](const OperationReport& report) { return report.ended && report.status.ok(); });
    if (!misled.of_weights && !worker.stopped && all_ended_well)
      violate("rank " + std::to_string(misled.rank) + " of job " + std::to_string(misled.job.first) +
              " has finished its operations, and nobody has noticed false scales");
    (misled.of_weights ? lies.unbalanced : lies.ended) = true;
  }
}

void Simulation::fill_counters(const WorkerCore& core, RankReport* report) const {
  if (!core.connected()) report->not_connected_reason = core.not_connected_reason();
  for (size_t s = 0; s < core.stripe_count(); ++s) {
    const StripeCounters& counters = core.stripe(s).counters();
    report->packets_sent += counters.packets_sent.get();
    report->bytes_sent += counters.bytes_sent.get();
    report->retransmissions += counters.retransmissions.get();
    report->probes += counters.probes.get();
    report->dropped += counters.dropped.get();
    report->sums_verified += counters.sums_verified.get();
    report->sums_refused += counters.sums_refused.get();
    report->scales_predicted += counters.scales_predicted.get();
    report->scales_mispredicted += counters.scales_mispredicted.get();
  }
  report->window_packets = core.stripe(0).counters().window_packets.get();
  report->srtt_us = core.stripe(0).counters().srtt_us.get();
}

void Simulation::finish_report() {
  if (!stopped_) check_at_end();
  for (const auto& job : jobs_) {
    std::vector<RankReport> ranks;
    for (WorkerNode& worker : job->workers) {
      if (worker.core != nullptr) fill_counters(*worker.core, &worker.report);
      ranks.push_back(worker.report);
    }
    report_.jobs.push_back(std::move(ranks));
  }
  report_.network = network_.counters();
  report_.lies.injected = faulty_aggregator_.injected();
  report_.lies.injected_upwards = faulty_aggregator_.injected_upwards();
  report_.lies.wrong_refused = result_checker_.wrong_refused();
  report_.lies.false_scales = result_checker_.false_scales();
  report_.lies.false_alarms = result_checker_.false_alarms();
  report_.trace_hash = network_.trace_hash();
}

}  // namespace netsum::emulate
