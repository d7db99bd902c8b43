#include "emulate/simulation.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "wire/codec.h"

namespace netsum::emulate {
namespace {

Address ipv4(uint8_t c, uint8_t d, uint16_t port) {
  Address address;
  address.ip = {10, 0, c, d};
  address.port = port;
  address.family = 4;
  return address;
}

}  // namespace

std::string Report::first_problem() const {
  if (!violations.empty()) return violations.front();
  for (size_t job = 0; job < jobs.size(); ++job) {
    for (size_t rank = 0; rank < jobs[job].size(); ++rank) {
      for (size_t i = 0; i < jobs[job][rank].operations.size(); ++i) {
        const OperationReport& operation = jobs[job][rank].operations[i];
        if (operation.ended && operation.status.ok()) continue;
        return "job " + std::to_string(job) + " rank " + std::to_string(rank) + " operation " +
               std::to_string(i) + ": " + (operation.ended ? operation.status.to_string() : "has not ended");
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

Address Simulation::aggregator_address(int index) {
  return ipv4(255, static_cast<uint8_t>(index), 5152);
}
Address Simulation::worker_address(uint16_t job, int rank) {
  return ipv4(static_cast<uint8_t>(job), static_cast<uint8_t>(rank), 40000);
}

Simulation::Simulation(const Scenario& scenario)
    : scenario_(scenario), network_(&clock_, netsum_mix64(scenario.seed + 1)) {
  network_.set_filter([this](const Address& from, const OutPacket& packet) { return filter(from, packet); });
  uint32_t slots = 0;
  for (const JobPlan& plan : scenario_.jobs) slots += plan.data_slots + plan.scale_slots;
  aggregators_.resize(static_cast<size_t>(scenario_.aggregators));
  for (int i = 0; i < scenario_.aggregators; ++i) {
    AggregatorNode& node = aggregators_[static_cast<size_t>(i)];
    node.core = std::make_unique<AggregatorCore>(
        AggregatorCore::Limits{.max_jobs = 8, .slots = slots, .payload_bytes = scenario_.payload_bytes});
    node.address = aggregator_address(i);
    network_.attach(node.address, scenario_.aggregator_up, scenario_.aggregator_down,
                    [this, &node](const InPacket& packet) { aggregator_received(&node, packet); });
  }
  for (const JobPlan& plan : scenario_.jobs) {
    auto job = std::make_unique<JobRun>();
    job->plan = &plan;
    job->workers.resize(static_cast<size_t>(plan.ranks));
    job->overrides.resize(static_cast<size_t>(plan.ranks));
    for (WorkerNode& worker : job->workers) {
      worker.pending = plan.operations.size();
      worker.report.operations.resize(plan.operations.size());
    }
    for (size_t i = 0; i < plan.operations.size(); ++i) {
      const uint64_t seed = netsum_mix64(scenario_.seed ^ netsum_mix64(plan.epoch * 1000u + i));
      job->memories.push_back(
          std::make_unique<OperationMemory>(plan.operations[i], plan.ranks, scenario_.payload_bytes, seed));
    }
    jobs_.push_back(std::move(job));
  }
}

void Simulation::stop_worker(size_t job, int rank, int64_t at_us) {
  clock_.at(at_us, [this, job, rank] {
    WorkerNode& worker = jobs_[job]->workers[static_cast<size_t>(rank)];
    worker.stopped = true;
    network_.detach(worker.address);
    start_waiting_jobs();
  });
}

void Simulation::stop_aggregator(int index, int64_t at_us) {
  clock_.at(at_us, [this, index] { network_.detach(aggregator_address(index)); });
}

void Simulation::override_plan(size_t job, int rank, size_t operation, const OperationPlan& plan) {
  override_plans_.push_back(std::make_unique<OperationPlan>(plan));
  auto& overrides = jobs_[job]->overrides[static_cast<size_t>(rank)];
  overrides.resize(jobs_[job]->plan->operations.size());
  overrides[operation] = override_plans_.back().get();
}

Report Simulation::run() {
  int64_t limit_us = 0;
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const JobPlan& plan = *jobs_[j]->plan;
    int64_t latest_us = 0;
    for (const OperationPlan& operation : plan.operations) {
      for (const int64_t at_us : operation.submit_at_us) {
        latest_us = std::max(latest_us, at_us + operation.timeout_us);
      }
    }
    limit_us += std::max<int64_t>(plan.start_at_us, 0) + latest_us + 10'000'000;
    if (plan.start_at_us != kWhenFree) clock_.at(plan.start_at_us, [this, j] { start_job(j); });
  }
  while (!clock_.empty() && clock_.next_us() <= limit_us) clock_.step();
  finish_report();
  return std::move(report_);
}

bool Simulation::job_is_done(const JobRun& job) const {
  return job.started && std::all_of(job.workers.begin(), job.workers.end(), [](const WorkerNode& worker) {
           return worker.stopped || worker.pending == 0;
         });
}

void Simulation::start_waiting_jobs() {
  for (size_t j = 0; j < jobs_.size(); ++j) {
    if (jobs_[j]->started || jobs_[j]->plan->start_at_us != kWhenFree) continue;
    const bool free =
        std::all_of(jobs_.begin(), jobs_.begin() + static_cast<ptrdiff_t>(j), [&](const auto& earlier) {
          return earlier->plan->job != jobs_[j]->plan->job || job_is_done(*earlier);
        });
    if (!free) continue;
    jobs_[j]->started = true;
    clock_.at(clock_.now_us(), [this, j] { start_job(j); });
  }
}

void Simulation::start_job(size_t job_index) {
  JobRun& job = *jobs_[job_index];
  const JobPlan& plan = *job.plan;
  job.started = true;
  WorkerOptions options;
  options.world_size = plan.ranks;
  for (AggregatorNode& node : aggregators_) {
    const Status installed = node.core->install({.job = plan.job,
                                                 .epoch = plan.epoch,
                                                 .key = plan.key,
                                                 .members = static_cast<uint16_t>(plan.ranks),
                                                 .data_slots = plan.data_slots,
                                                 .scale_slots = plan.scale_slots,
                                                 .payload_bytes = scenario_.payload_bytes});
    if (!installed.ok()) violate("install: " + installed.to_string());
    StripeOptions stripe;
    stripe.address = node.address;
    stripe.job = plan.job;
    stripe.epoch = plan.epoch;
    stripe.key = plan.key;
    stripe.data_slots = plan.data_slots;
    stripe.scale_slots = plan.scale_slots;
    stripe.payload_bytes = scenario_.payload_bytes;
    options.stripes.push_back(stripe);
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    WorkerNode& worker = job.workers[static_cast<size_t>(rank)];
    options.rank = rank;
    worker.core = std::make_unique<WorkerCore>(options);
    worker.address = worker_address(plan.job, rank);
    network_.attach(worker.address, scenario_.worker_up, scenario_.worker_down,
                    [this, job_index, rank, &worker](const InPacket& packet) {
                      worker.core->on_packet(clock_.now_us(), packet);
                      drive(job_index, rank);
                    });
    drive(job_index, rank);
    for (size_t i = 0; i < plan.operations.size(); ++i) {
      const int64_t at_us = clock_.now_us() + plan.operations[i].submit_at_us[static_cast<size_t>(rank)];
      clock_.at(at_us, [this, job_index, rank, i] { submit(job_index, rank, i); });
    }
  }
  start_waiting_jobs();  // those who wait for this one, if all its workers have stopped already
}

void Simulation::submit(size_t job_index, int rank, size_t i) {
  JobRun& job = *jobs_[job_index];
  WorkerNode& worker = job.workers[static_cast<size_t>(rank)];
  if (worker.stopped) return;
  const OperationPlan* plan = &job.plan->operations[i];
  OperationMemory* memory = job.memories[i].get();
  const auto& overrides = job.overrides[static_cast<size_t>(rank)];
  if (!overrides.empty() && overrides[i] != nullptr) {
    plan = overrides[i];
    worker.own_memories.push_back(
        std::make_unique<OperationMemory>(*plan, job.plan->ranks, scenario_.payload_bytes, i));
    memory = worker.own_memories.back().get();
  }
  OperationReport& report = worker.report.operations[i];
  report.submitted_at_us = clock_.now_us();
  worker.core->submit(i, plan->type, plan->op, memory->views(rank), clock_.now_us() + plan->timeout_us);
  drive(job_index, rank);
}

void Simulation::drive(size_t job, int rank) {
  WorkerNode& worker = jobs_[job]->workers[static_cast<size_t>(rank)];
  if (worker.stopped) return;
  const int64_t now_us = clock_.now_us();
  // A HELLO asks for a tick at once; after that nothing may be due any more.
  for (int turn = 0; turn < 3; ++turn) {
    if (worker.core->next_tick_us() <= now_us) worker.core->on_tick(now_us);
    for (auto burst = worker.core->collect(now_us); !burst.empty(); burst = worker.core->collect(now_us)) {
      for (const OutPacket& packet : burst) send(worker.address, packet);
    }
    if (worker.core->next_tick_us() > now_us) break;
  }
  if (worker.core->next_tick_us() <= now_us) violate("a worker's timer would spin");
  take_completions(job, rank);
  schedule_tick(job, rank);
}

void Simulation::schedule_tick(size_t job, int rank) {
  WorkerNode& worker = jobs_[job]->workers[static_cast<size_t>(rank)];
  const int64_t at_us = worker.core->next_tick_us();
  if (at_us == INT64_MAX || at_us >= worker.tick_at_us) return;
  worker.tick_at_us = at_us;
  clock_.at(at_us, [this, job, rank, at_us, core = worker.core.get()] {
    WorkerNode& node = jobs_[job]->workers[static_cast<size_t>(rank)];
    if (node.tick_at_us != at_us || node.core.get() != core) return;  // an earlier tick took its place
    node.tick_at_us = INT64_MAX;
    drive(job, rank);
  });
}

void Simulation::take_completions(size_t job_index, int rank) {
  JobRun& job = *jobs_[job_index];
  WorkerNode& worker = job.workers[static_cast<size_t>(rank)];
  std::vector<WorkerCore::Completion> completions;
  worker.core->take_completions(&completions);
  for (const WorkerCore::Completion& completion : completions) {
    const size_t i = completion.id;
    OperationReport& report = worker.report.operations[i];
    const std::string where = "job " + std::to_string(job_index) + " operation " + std::to_string(i) + " ";
    if (report.ended) violate(where + "ended twice on rank " + std::to_string(rank));
    report.ended = true;
    report.status = completion.status;
    report.ended_at_us = report_.ended_at_us = clock_.now_us();
    if (clock_.now_us() > report.submitted_at_us + job.plan->operations[i].timeout_us) {
      violate(where + "ended after its deadline on rank " + std::to_string(rank));
    }
    const std::string wrong = job.memories[i]->check(rank, report.status.ok());
    if (!wrong.empty() && job.overrides[static_cast<size_t>(rank)].empty()) violate(where + wrong);
    --worker.pending;
  }
  if (!completions.empty()) start_waiting_jobs();
}

void Simulation::aggregator_received(AggregatorNode* node, const InPacket& packet) {
  node->core->on_packet(packet);
  if (++node->gathered == AggregatorCore::kMaxBurst) flush(node);
  if (node->flush_scheduled) return;
  node->flush_scheduled = true;
  clock_.at(clock_.now_us() + scenario_.gather_us, [this, node] {
    node->flush_scheduled = false;
    flush(node);
  });
}

void Simulation::flush(AggregatorNode* node) {
  for (const OutPacket& packet : node->core->outbox()) send(node->address, packet);
  node->core->clear();
  node->gathered = 0;
}

void Simulation::send(const Address& from, const OutPacket& packet) {
  if (packet.size > NETSUM_HEADER_BYTES + scenario_.payload_bytes) violate("a packet is too long");
  network_.send(from, packet);
}

bool Simulation::filter(const Address& from, const OutPacket& packet) {
  if (tracing_) {
    netsum_fields fields;
    const bool parsed = netsum_parse(packet.data, packet.size, &fields) == NETSUM_DROP_NONE;
    std::fprintf(stderr, "%10lld %s -> %s %s\n", static_cast<long long>(clock_.now_us()),
                 from.to_string().c_str(), packet.to.to_string().c_str(),
                 parsed ? wire::describe(fields).c_str() : "not a netsum packet");
  }
  return !filter_ || filter_(from, packet);
}

void Simulation::finish_report() {
  for (const auto& job : jobs_) {
    std::vector<RankReport> ranks;
    for (int rank = 0; rank < job->plan->ranks; ++rank) {
      WorkerNode& worker = job->workers[static_cast<size_t>(rank)];
      RankReport& report = worker.report;
      if (worker.core != nullptr) {
        const WorkerCore& core = *worker.core;
        if (!core.connected()) report.not_connected_reason = core.not_connected_reason();
        const bool quiet = core.idle() && core.connected() && core.next_tick_us() != INT64_MAX;
        if (quiet) violate("a worker with nothing to do still has a timer");
        if (worker.pending == 0 && core.status().ok() && !core.idle())
          violate("a worker is not idle at the end");
        for (size_t s = 0; s < core.stripe_count(); ++s) {
          const StripeCounters& counters = core.stripe(s).counters();
          report.packets_sent += counters.packets_sent.get();
          report.bytes_sent += counters.bytes_sent.get();
          report.retransmissions += counters.retransmissions.get();
          report.probes += counters.probes.get();
          report.dropped += counters.dropped.get();
        }
        report.window_packets = core.stripe(0).counters().window_packets.get();
        report.srtt_us = core.stripe(0).counters().srtt_us.get();
      }
      for (size_t i = 0; i < report.operations.size(); ++i) {
        if (!report.operations[i].ended) {
          if (!worker.stopped)
            violate("operation " + std::to_string(i) + " has not ended by its deadline on rank " +
                    std::to_string(rank));
        } else if (job->overrides[static_cast<size_t>(rank)].empty()) {
          const std::string wrong = job->memories[i]->check(rank, report.operations[i].status.ok());
          if (!wrong.empty()) violate("after the end: " + wrong);
        }
      }
      ranks.push_back(report);
    }
    for (const auto& memory : job->memories) {
      const std::string wrong = memory->check_bound();
      if (!wrong.empty()) violate(wrong);
    }
    report_.jobs.push_back(std::move(ranks));
  }
  report_.network = network_.counters();
  report_.trace_hash = network_.trace_hash();
}

}  // namespace netsum::emulate
