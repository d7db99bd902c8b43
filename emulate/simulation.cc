// The course of a run: jobs start, operations are submitted, packets arrive and timers expire, until nothing is left.
#include "emulate/simulation.h"

#include <algorithm>
#include <utility>

#include "aggregator/user/core.h"
#include "src/base/assert.h"
#include "wire/codec.h"

namespace netsum::emulate {
namespace {

// Operations of programs, apart from those of the plan.
constexpr uint64_t kProgramId = uint64_t{1} << 32;
constexpr int64_t kProgramTimeoutUs = 3'600'000'000;

Address ipv4(uint8_t c, uint8_t d, uint16_t port) {
  Address address;
  address.ip = {10, 0, c, d};
  address.port = port;
  address.family = 4;
  return address;
}

// A time at which all operations must have ended, even on the slowest clock.
int64_t latest_end_us(const Scenario& scenario) {
  int64_t sum_us = 0;
  for (const JobPlan& plan : scenario.jobs) {
    int64_t latest_us = 0;
    for (const OperationPlan& operation : plan.operations) {
      for (const int64_t at_us : operation.submit_at_us) {
        latest_us = std::max(latest_us, at_us + operation.timeout_us);
      }
    }
    sum_us += std::max<int64_t>(plan.start_at_us, 0) + latest_us + 10'000'000;
  }
  for (const FaultEvent& event : scenario.events) {
    sum_us += std::max<int64_t>(event.duration_us, 0) + std::max<int64_t>(event.reported_after_us, 0);
  }
  return sum_us + sum_us / 5;
}

}  // namespace

Address Simulation::aggregator_address(int index) {
  return ipv4(255, static_cast<uint8_t>(index), 5152);
}
Address Simulation::worker_address(uint16_t job, int host) {
  return ipv4(static_cast<uint8_t>(job), static_cast<uint8_t>(host),
              static_cast<uint16_t>(40000 + host / 256));
}
Address Simulation::address_of(size_t job, int rank) const {
  const JobPlan& plan = scenario_.jobs[job];
  return worker_address(plan.job, plan.hosts.empty() ? rank : plan.hosts[static_cast<size_t>(rank)]);
}

Simulation::Simulation(const Scenario& scenario)
    : scenario_(scenario),
      network_(&clock_, netsum_mix64(scenario.seed + 1)),
      faulty_aggregator_(netsum_mix64(scenario.seed + 2), scenario.lies),
      flips_(netsum_mix64(scenario.seed + 3)),
      coming_(scenario.events) {
  NETSUM_ASSERT(!scenario_.lies.any() || std::all_of(scenario_.jobs.begin(), scenario_.jobs.end(),
                                                     [](const JobPlan& plan) { return plan.verifies_sums; }));
  NETSUM_ASSERT((!scenario_.switches && !scenario_.rack_switches) ||
                std::all_of(scenario_.jobs.begin(), scenario_.jobs.end(), [](const JobPlan& plan) {
                  return plan.verifies_sums && plan.tag == NETSUM_TAG_COOKIE;
                }));
  orderly_ = std::none_of(scenario_.jobs.begin(), scenario_.jobs.end(),
                          [](const JobPlan& plan) { return plan.ending == Ending::kAny; });
  // Room for all jobs, wherever earlier jobs have left free slots.
  for (const JobPlan& plan : scenario_.jobs) slots_ += plan.data_slots + plan.scale_slots;
  aggregators_.resize(static_cast<size_t>(scenario_.aggregator_count()));
  for (int i = 0; i < scenario_.aggregator_count(); ++i) {
    aggregators_[static_cast<size_t>(i)].address = aggregator_address(i);
    create_aggregator(&aggregators_[static_cast<size_t>(i)]);
  }
  for (int i = 0; i < scenario_.shards; ++i) {
    shards_last_.push_back(std::make_shared<faults::LastContributions>());
    network_.share_links(aggregator_address(scenario_.aggregators - scenario_.shards + i),
                         worker_address(0, i));
  }
  for (size_t j = 0; j < scenario_.jobs.size(); ++j) {
    const JobPlan& plan = scenario_.jobs[j];
    auto job = std::make_unique<JobRun>();
    job->plan = &plan;
    job->workers.resize(static_cast<size_t>(plan.ranks));
    job->overrides.resize(static_cast<size_t>(plan.ranks));
    for (size_t rank = 0; rank < job->workers.size(); ++rank) {
      WorkerNode& worker = job->workers[rank];
      worker.pending = plan.operations.size();
      worker.report.operations.resize(plan.operations.size());
      worker.deadlines_us.resize(plan.operations.size());
      if (!plan.drift_ppm.empty()) {
        const auto offset_us = static_cast<int64_t>(netsum_mix64(scenario_.seed + rank) >> 24);
        worker.clock = LocalClock(offset_us, plan.drift_ppm[rank]);
      }
    }
    for (size_t i = 0; i < plan.operations.size(); ++i) {
      const int data_of = plan.operations[i].data_of;
      const uint64_t place = data_of < 0 ? i : static_cast<uint64_t>(data_of);
      const uint64_t seed =
          netsum_mix64(scenario_.seed ^ netsum_mix64((j << 32) + plan.epoch * 1000u + place));
      job->memories.push_back(std::make_unique<OperationMemory>(
          plan.operations[i], plan.ranks, plan.lane_bits, lane_room(plan), seed, additions(plan)));
    }
    jobs_.push_back(std::move(job));
  }
}

void Simulation::create_aggregator(AggregatorNode* node) {
  const SimulatedAggregator::Options options{.address = node->address,
                                             .slots = slots_,
                                             .payload_bytes = scenario_.payload_bytes,
                                             .flipped_bits = scenario_.lies.flipped_in_slots,
                                             .seed = flips_.next()};
  const bool is_rack = index_of(*node) >= scenario_.aggregators;
  const bool is_switch = is_rack ? scenario_.rack_switches : scenario_.switches;
  report_.events.switches += is_switch ? 1 : 0;
  node->core = is_switch ? make_switch(options) : make_core(options);
  network_.attach(node->address, scenario_.aggregator_up, scenario_.aggregator_down,
                  [this, node](const InPacket& packet) { aggregator_received(node, packet); });
}

void Simulation::override_plan(size_t job, int rank, size_t operation, const OperationPlan& plan) {
  override_plans_.push_back(std::make_unique<OperationPlan>(plan));
  auto& overrides = jobs_[job]->overrides[static_cast<size_t>(rank)];
  overrides.resize(jobs_[job]->plan->operations.size());
  overrides[operation] = override_plans_.back().get();
}

void Simulation::set_program(size_t job, int rank, Program* program) {
  WorkerNode& worker = worker_node(job, rank);
  worker.program = program;
  ++worker.pending;
  has_programs_ = true;
}

Report Simulation::run() {
  const int64_t limit_us = latest_end_us(scenario_) + (has_programs_ ? kProgramTimeoutUs : 0);
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const int64_t at_us = std::max<int64_t>(jobs_[j]->plan->start_at_us, 0);
    clock_.at(at_us, [this, j] {
      jobs_[j]->due = true;
      start_due_jobs();
    });
  }
  // The first violation ends the run, because the rest may never end.
  while (!stopped_ && !clock_.empty() && clock_.next_us() <= limit_us && report_.violations.empty()) {
    clock_.step();
    ++events_done_;
    apply_events();
  }
  finish_report();
  return std::move(report_);
}

bool Simulation::job_is_done(const JobRun& job) const {
  return job.started && std::all_of(job.workers.begin(), job.workers.end(), [](const WorkerNode& worker) {
           return worker.stopped || worker.pending == 0;
         });
}

bool Simulation::may_start(size_t index) const {
  const JobRun& job = *jobs_[index];
  if (job.started || !job.due) return false;
  for (const AggregatorNode& node : aggregators_) {
    if (node.core != nullptr && clock_.now_us() < node.pause.until_us)
      return false;  // cannot install the job
  }
  bool has_aggregator = false;
  for (int stripe = 0; stripe < scenario_.aggregators; ++stripe)
    has_aggregator |= has_stripe(*job.plan, stripe);
  if (!has_aggregator || job.plan->start_at_us != kWhenFree) return has_aggregator;
  return std::all_of(jobs_.begin(), jobs_.begin() + static_cast<ptrdiff_t>(index), [&](const auto& earlier) {
    return earlier->plan->job != job.plan->job || job_is_done(*earlier);
  });
}

void Simulation::start_due_jobs() {
  for (size_t j = 0; j < jobs_.size(); ++j) {
    if (!may_start(j)) continue;
    // Not within the receiver of a worker whose address the job may reuse.
    clock_.at(clock_.now_us(), [this, j] {
      if (may_start(j)) start_job(j);
    });
  }
}

void Simulation::start_job(size_t job_index) {
  JobRun& job = *jobs_[job_index];
  const JobPlan& plan = *job.plan;
  job.started = true;
  job.started_at_event = events_done_;
  ++report_.events.jobs_started;
  if (plan.start_at_us == kWhenFree) ++report_.events.jobs_on_used_hosts;
  note("job " + std::to_string(job_index) + " starts");
  for (int stripe = 0; stripe < scenario_.aggregators; ++stripe) install(plan, stripe);
  for (int rank = 0; rank < plan.ranks; ++rank) start_worker(job_index, rank, worker_options(plan, rank));
  remove_done_jobs();  // if all its workers have stopped already
  start_due_jobs();
}

// True if all aggregators that sum the stripe are running.
bool Simulation::has_stripe(const JobPlan& plan, int stripe) const {
  for (int rack = -1; rack < scenario_.racks_of(plan); ++rack) {
    if (aggregators_[node_index(rack, stripe)].core == nullptr) return false;
  }
  return true;
}

bool Simulation::sums_values(const JobPlan& plan) const {
  return plan.sums_values && !plan.verifies_sums;
}

OperationMemory::Additions Simulation::additions(const JobPlan& plan) const {
  if (!sums_values(plan)) return {};
  const int racks = scenario_.racks_of(plan);
  OperationMemory::Additions additions{
      .groups = {}, .travel_in_float32 = racks > 0, .of_any_size = plan.adds_floats};
  additions.groups.resize(static_cast<size_t>(racks > 0 ? racks : plan.ranks));
  for (int rank = 0; rank < plan.ranks; ++rank)
    additions.groups[static_cast<size_t>(racks > 0 ? scenario_.rack_of(plan, rank) : rank)].push_back(rank);
  return additions;
}

DataplaneJob Simulation::dataplane_job(const JobPlan& plan, int rack) const {
  DataplaneJob job;
  job.job = plan.job;
  job.epoch = plan.epoch;
  job.key = plan.key;
  job.tag = plan.tag;
  if (rack >= 0) job.key.k0 ^= static_cast<uint64_t>(rack) + 1;
  job.data_slots = plan.data_slots;
  job.scale_slots = plan.scale_slots;
  job.payload_bytes = scenario_.payload_bytes;
  job.spec.set_name("job" + std::to_string(plan.job));
  job.spec.set_world_size(static_cast<uint32_t>(plan.ranks));
  job.spec.set_phase_period_us(static_cast<uint64_t>(plan.phase_period_us));
  const int racks = scenario_.racks_of(plan);
  job.sums_values = sums_values(plan);
  job.adds_floats = job.sums_values && plan.adds_floats;
  for (int rank = 0; rank < plan.ranks; ++rank)
    job.members += rack >= 0 && scenario_.rack_of(plan, rank) == rack;
  if (rack < 0) job.members = static_cast<uint16_t>(racks > 0 ? racks : plan.ranks);
  return job;
}

void Simulation::install(const JobPlan& plan, int stripe) {
  if (!has_stripe(plan, stripe)) return;
  for (int rack = -1; rack < scenario_.racks_of(plan); ++rack) {
    AggregatorNode& node = aggregators_[node_index(rack, stripe)];
    DataplaneJob job = dataplane_job(plan, rack);
    if (rack >= 0) {
      const std::vector<Address> above(static_cast<size_t>(stripe) + 1,
                                       aggregators_[node_index(-1, stripe)].address);
      job.parent = DataplaneParent{.stripes = above,
                                   .job = plan.job,
                                   .epoch = plan.epoch,
                                   .key = plan.key,
                                   .member = static_cast<uint16_t>(rack)};
    }
    const int host = stripe - (scenario_.aggregators - scenario_.shards);
    if (host >= 0 && &plan == jobs_[0]->plan) job.last = shards_last_[static_cast<size_t>(host)];
    flush(&node);
    const Status installed = node.core->install(job, static_cast<size_t>(stripe));
    if (!installed.ok()) violate("install: " + installed.to_string());
  }
}

WorkerOptions Simulation::worker_options(const JobPlan& plan, int rank) const {
  WorkerOptions options;
  options.rank = rank;
  options.world_size = plan.ranks;
  options.encoding.lane_bits = plan.lane_bits;
  options.encoding.fixed_floats = (plan.fixed_floats >> rank & 1) != 0;
  options.pace_bytes_per_s = plan.pace_bytes_per_s;
  options.phase_period_us = plan.phase_period_us;
  options.phase_offset_us = plan.phase_offset_us;
  options.balance_period = scenario_.balance_period;
  if (&plan == jobs_[0]->plan && rank < scenario_.shards)
    options.last = shards_last_[static_cast<size_t>(rank)];
  const int rack = scenario_.racks > 0 ? scenario_.rack_of(plan, rank) : -1;
  const DataplaneJob job = dataplane_job(plan, rack);
  for (int i = 0; i < scenario_.aggregators; ++i) {
    if (!has_stripe(plan, i)) continue;
    StripeOptions stripe;
    stripe.address = aggregators_[node_index(rack, i)].address;
    const int host = i - (scenario_.aggregators - scenario_.shards);
    if (host >= 0 && &plan == jobs_[0]->plan) stripe.embedded_in = host;
    stripe.job = job.job;
    stripe.epoch = job.epoch;
    stripe.key = wire::stripe_key(job.key, static_cast<size_t>(i));
    stripe.tag = job.tag;
    stripe.data_slots = job.data_slots;
    stripe.scale_slots = job.scale_slots;
    stripe.payload_bytes = job.payload_bytes;
    stripe.sums_values = job.sums_values && rack < 0;
    stripe.sums_partial_floats = job.sums_values;
    if (job.adds_floats) stripe.floats = rack < 0 ? FloatSums::kAsTheyAre : FloatSums::kInFloat32;
    stripe.takes_empty_packets = plan.takes_empty_packets;
    stripe.takes_no_result = plan.takes_no_result;
    stripe.predicts_scales = (plan.predicts_scales >> rank & 1) != 0;
    if (plan.verifies_sums) stripe.sum_key = verify::sum_key(plan.key, static_cast<size_t>(i));
    uint16_t members = 0;
    for (int other = 0; rack >= 0 && other < plan.ranks; ++other) {
      stripe.member_of_rank.push_back(scenario_.rack_of(plan, other) == rack ? members++ : kMemberElsewhere);
    }
    options.stripes.push_back(stripe);
    if (!scenario_.stripe_weights.empty()) {
      options.stripe_weights.push_back(scenario_.stripe_weights[static_cast<size_t>(i)]);
    }
  }
  // All aggregators of the chunks may be down.
  const auto& weights = options.stripe_weights;
  if (std::count(weights.begin(), weights.end(), 0u) == std::ssize(weights)) options.stripe_weights.clear();
  return options;
}

void Simulation::start_worker(size_t job_index, int rank, const WorkerOptions& options) {
  const JobPlan& plan = *jobs_[job_index]->plan;
  WorkerNode& worker = worker_node(job_index, rank);
  worker.core = std::make_unique<WorkerCore>(options);
  worker.address = address_of(job_index, rank);
  if (worker.stopped) return;
  network_.attach(
      worker.address, scenario_.worker_up, scenario_.worker_down,
      [this, job_index, rank](const InPacket& packet) { worker_received(job_index, rank, packet); });
  drive(job_index, rank);
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    const int64_t at_us = clock_.now_us() + plan.operations[i].submit_at_us[static_cast<size_t>(rank)];
    clock_.at(at_us, [this, job_index, rank, i] { submit(job_index, rank, i); });
  }
}

void Simulation::remove_done_jobs() {
  for (size_t j = 0; j < jobs_.size(); ++j) {
    JobRun& job = *jobs_[j];
    if (job.removal_scheduled || !job_is_done(job)) continue;
    job.removal_scheduled = true;
    for (WorkerNode& worker : job.workers) worker.left = true;
    clock_.at(clock_.now_us() + job.plan->remove_after_us, [this, j] { remove_job(j); });
  }
}

void Simulation::remove_job(size_t job) {
  const JobPlan& plan = *jobs_[job]->plan;
  for (AggregatorNode& node : aggregators_) {
    if (node.core == nullptr) continue;
    if (clock_.now_us() < node.pause.until_us) {
      clock_.at(node.pause.until_us, [this, job] { remove_job(job); });
      continue;
    }
    flush(&node);  // as a core's thread does before it handles commands of the control plane
    node.core->remove(plan.job, plan.epoch);
  }
}

void Simulation::submit(size_t job_index, int rank, size_t i) {
  JobRun& job = *jobs_[job_index];
  WorkerNode& worker = worker_node(job_index, rank);
  if (worker.stopped) return;
  // The program above it is paused, too, and later continues in its order.
  if (clock_.now_us() < worker.pause.until_us || !worker.pause.submissions.empty()) {
    worker.pause.submissions.push_back(i);
    return;
  }
  const OperationPlan* plan = &job.plan->operations[i];
  OperationMemory* memory = job.memories[i].get();
  const auto& overrides = job.overrides[static_cast<size_t>(rank)];
  if (!overrides.empty() && overrides[i] != nullptr) {
    plan = overrides[i];
    worker.own_memories.push_back(std::make_unique<OperationMemory>(
        *plan, job.plan->ranks, job.plan->lane_bits, lane_room(*job.plan), i, additions(*job.plan)));
    memory = worker.own_memories.back().get();
  }
  OperationReport& report = worker.report.operations[i];
  report.submitted = true;
  worker.submitted.push_back(i);
  report.submitted_at_us = clock_.now_us();
  worker.deadlines_us[i] = worker.clock.local_us(clock_.now_us()) + plan->timeout_us;
  OperationSpec spec{.type = plan->type,
                     .op = plan->op,
                     .tensors = memory->views(rank),
                     .role = role_of(*plan, rank),
                     .one_tensor = plan->collective == Collective::kReduceScatter,
                     .deadline_us = worker.deadlines_us[i],
                     .joint = {}};
  if (overrides.empty() && (plan->arrival.ranks >> rank & 1) != 0)
    spec.watermarks = make_watermarks(job_index, rank, i);
  worker.core->submit(i, std::move(spec));
  drive(job_index, rank);
}

std::shared_ptr<Watermarks> Simulation::make_watermarks(size_t job, int rank, size_t i) {
  OperationMemory& memory = *jobs_[job]->memories[i];
  memory.poison(rank);
  Rng rng(netsum_mix64(scenario_.seed ^ netsum_mix64((job << 40) + (i << 8) + static_cast<uint64_t>(rank))));
  const size_t step = rng.below(1 + 2 * memory.bytes());
  auto watermarks = std::make_shared<Watermarks>(step, [this, job, rank, i, &memory](size_t bytes) {
    if (const std::string wrong = memory.check_delivered(rank, bytes); !wrong.empty())
      violate("job " + std::to_string(job) + " operation " + std::to_string(i) + ": " + wrong);
  });
  watermarks->state().begin(
      1, [this, job, rank] { clock_.at(clock_.now_us(), [this, job, rank] { drive(job, rank); }); });
  worker_node(job, rank).watermarks[i] = watermarks;
  arrive(job, rank, i, rng);
  return watermarks;
}

void Simulation::arrive(size_t job, int rank, size_t i, Rng rng) {
  const WorkerNode& worker = worker_node(job, rank);
  if (worker.stopped || worker.report.operations[i].ended) return;
  OperationMemory& memory = *jobs_[job]->memories[i];
  const ArrivalPlan& plan = jobs_[job]->plan->operations[i].arrival;
  Watermarks& watermarks = *worker.watermarks.at(i);
  const size_t before = watermarks.available(), most = std::min(plan.most_bytes, memory.bytes());
  const size_t after = std::min(most, before + rng.below(2 * plan.piece_bytes + 1));
  memory.arrive(rank, before, after);
  watermarks.make_available(after);
  if (after == most) return;
  const auto pause_us = static_cast<int64_t>(1 + rng.below(static_cast<uint64_t>(plan.pause_us) + 1));
  clock_.at(clock_.now_us() + pause_us, [this, job, rank, i, rng] { arrive(job, rank, i, rng); });
}

void Simulation::fail_input(size_t job, int rank, size_t operation, int64_t at_us, const Status& status) {
  at(at_us,
     [this, job, rank, operation, status] { worker_node(job, rank).watermarks.at(operation)->fail(status); });
}

void Simulation::worker_received(size_t job, int rank, const InPacket& packet) {
  WorkerNode& worker = worker_node(job, rank);
  if (keep_if_paused(&worker.pause, packet)) return;
  if (is_checked(job)) {
    judge(job, rank, packet);
  } else {
    worker.core->on_packet(worker.clock.local_us(clock_.now_us()), packet);
  }
  drive(job, rank);
}

void Simulation::drive(size_t job, int rank) {
  WorkerNode& worker = worker_node(job, rank);
  if (worker.stopped || worker.left || clock_.now_us() < worker.pause.until_us) return;
  const int64_t now_us = worker.clock.local_us(clock_.now_us());
  run_program(&worker);
  // A HELLO makes a tick due at once; after it nothing may be due.
  for (int turn = 0; turn < 3; ++turn) {
    if (worker.core->next_tick_us() <= now_us) worker.core->on_tick(now_us);
    for (auto burst = worker.core->collect(now_us); !burst.empty(); burst = worker.core->collect(now_us)) {
      for (const OutPacket& packet : burst) {
        if (is_checked(job)) observe(job, rank, packet);
        send(worker.address, packet);
      }
    }
    if (worker.core->next_tick_us() > now_us) break;
  }
  if (worker.core->next_tick_us() <= now_us) violate("a worker's timer would spin");
  worker.core->report_delivered();
  take_completions(job, rank);
  if (!worker.left && run_program(&worker)) return drive(job, rank);
  schedule_tick(job, rank);
}

// Submits what can begin now. Returns whether it is anything.
bool Simulation::run_program(WorkerNode* worker) {
  if (worker->program == nullptr) return false;
  const uint64_t before = worker->program_operations;
  while (auto spec = worker->program->next()) {
    spec->deadline_us = worker->clock.local_us(clock_.now_us()) + kProgramTimeoutUs;
    worker->core->submit(kProgramId + worker->program_operations++, std::move(*spec));
  }
  if (worker->program->done()) {
    worker->program = nullptr;
    --worker->pending;
    remove_done_jobs();
    start_due_jobs();
  }
  return worker->program_operations > before;
}

void Simulation::schedule_tick(size_t job, int rank) {
  WorkerNode& worker = worker_node(job, rank);
  if (worker.core->next_tick_us() == INT64_MAX) return;
  const int64_t at_us = worker.clock.true_us(worker.core->next_tick_us());
  if (at_us >= worker.tick_at_us) return;
  worker.tick_at_us = at_us;
  clock_.at(at_us, [this, job, rank, at_us, core = worker.core.get()] {
    WorkerNode& node = worker_node(job, rank);
    if (node.tick_at_us != at_us || node.core.get() != core) return;  // an earlier tick has replaced it
    node.tick_at_us = INT64_MAX;
    drive(job, rank);
  });
}

void Simulation::take_completions(size_t job_index, int rank) {
  WorkerNode& worker = worker_node(job_index, rank);
  std::vector<WorkerCore::Completion> completions;
  worker.core->take_completions(&completions);
  for (const WorkerCore::Completion& completion : completions) {
    if (completion.id >= kProgramId) {
      worker.program->ended(completion.id - kProgramId, completion.status);
      report_.ended_at_us = clock_.now_us();
      continue;
    }
    OperationReport& report = worker.report.operations[completion.id];
    if (report.ended) {
      violate("job " + std::to_string(job_index) + " operation " + std::to_string(completion.id) +
              " ended twice on rank " + std::to_string(rank));
    }
    report.ended = true;
    report.status = completion.status;
    report.ended_at_us = report_.ended_at_us = clock_.now_us();
    check_watermarks(job_index, rank, completion.id);
    check_completion(job_index, rank, completion.id);
    if (!has_programs_) check_everywhere(job_index, completion.everywhere);
    --worker.pending;
  }
  if (completions.empty()) return;
  if (const Status& status = worker.core->status(); status.code() == ErrorCode::kWrongSum)
    clock_.at(clock_.now_us(), [this, job_index, status] { tell(job_index, status); });
  remove_done_jobs();
  start_due_jobs();
}

void Simulation::aggregator_received(AggregatorNode* node, const InPacket& packet) {
  if (keep_if_paused(&node->pause, packet)) return;
  netsum_fields fields;
  if (scenario_.lies.injected() && netsum_parse(packet.data, packet.size, &fields) == NETSUM_DROP_NONE &&
      fields.type == NETSUM_TYPE_CONTRIBUTION)
    faulty_aggregator_.observe(FaultyAggregator::round_of(index_of(*node), fields), fields,
                               packet.data + NETSUM_HEADER_BYTES);
  node->core->on_packet(clock_.now_us(), packet);
  if (++node->gathered == AggregatorCore::kMaxBurst) flush(node);
  if (node->flush_scheduled) return;
  node->flush_scheduled = true;
  clock_.at(clock_.now_us() + scenario_.gather_us, [this, node] {
    node->flush_scheduled = false;
    flush(node);
  });
}

void Simulation::flush(AggregatorNode* node) {
  if (node->core == nullptr || clock_.now_us() < node->pause.until_us) return;
  for (OutPacket packet : node->core->outbox()) {
    if (addressee_) packet.to = addressee_(node->address, packet);
    check_addressee(*node, packet);
    netsum_fields fields;
    netsum_parse(packet.data, packet.size, &fields);
    if (fields.type == NETSUM_TYPE_RESULT || fields.type == NETSUM_TYPE_CONTRIBUTION) {
      send_sum(*node, packet, fields);
    } else {
      send(node->address, packet);
    }
  }
  node->core->clear();
  node->gathered = 0;
}

void Simulation::send(const Address& from, const OutPacket& packet) {
  if (packet.size > NETSUM_HEADER_BYTES + scenario_.payload_bytes) violate("a packet is too long");
  network_.send(from, packet);
}

}  // namespace netsum::emulate
