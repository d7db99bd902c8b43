#include "emulate/random_scenario.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "emulate/aggregator.h"
#include "src/base/rng.h"

namespace netsum::emulate {
namespace {

template <typename T, size_t kCount>
T pick(Rng* rng, const T (&choices)[kCount]) {
  return choices[rng->below(kCount)];
}

// Sizes at boundaries: zero, one, around a packet, around one and several scale groups.
size_t random_count(Rng* rng, DataType type, uint32_t payload_bytes, int stripes) {
  const size_t chunk = payload_bytes / size_of(type);
  const size_t group = chunk * (payload_bytes / 2) * static_cast<size_t>(stripes);
  switch (rng->below(8)) {
    case 0:
      return rng->below(4);
    case 1:
      return chunk - 1 + rng->below(3);
    case 2:
      return chunk * (1 + rng->below(4)) + rng->below(3);
    case 3:
      return group > 6000 ? rng->below(2000) : group - 1 + rng->below(3);
    case 4:
      return rng->below(group > 6000 ? 3000 : 3 * group);
    default:
      return rng->below(20 * chunk);
  }
}

OperationPlan random_operation(Rng* rng, const Scenario& scenario) {
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16,
                                 DataType::kInt32, DataType::kInt64};
  constexpr Content kContents[] = {Content::kPlain,     Content::kPlain,   Content::kZeros,
                                   Content::kWideRange, Content::kSpecial, Content::kExtremes};
  OperationPlan plan;
  plan.type = pick(rng, kTypes);
  plan.op = is_floating(plan.type) && rng->chance(0.4) ? ReduceOp::kAvg : ReduceOp::kSum;
  plan.content = pick(rng, kContents);
  const uint64_t tensors = rng->chance(0.6) ? 1 : rng->below(7);
  for (uint64_t i = 0; i < tensors; ++i) {
    TensorPlan tensor;
    tensor.count = random_count(rng, plan.type, scenario.payload_bytes, scenario.aggregators);
    if (tensors > 1) tensor.count = rng->chance(0.2) ? 0 : tensor.count / 3;
    tensor.in_place = rng->chance(0.5);
    plan.tensors.push_back(tensor);
  }
  return plan;
}

LinkOptions random_link(Rng* rng) {
  LinkOptions link;
  link.delay_us = static_cast<int64_t>(pick(rng, {1, 10, 50, 500, 5000}));
  link.jitter_us = link.delay_us * static_cast<int64_t>(pick(rng, {0, 0, 1, 4})) / 2;
  return link;
}

void random_faults(Rng* rng, LinkOptions* link) {
  link->loss = pick(rng, {0.0, 0.0, 0.001, 0.01, 0.05, 0.2});
  link->duplicate = pick(rng, {0.0, 0.0, 0.01, 0.1});
  link->corrupt = pick(rng, {0.0, 0.0, 0.01});
  link->truncate = pick(rng, {0.0, 0.0, 0.01});
  link->late = pick(rng, {0.0, 0.01, 0.05});
  link->late_us = 80 * (link->delay_us + link->jitter_us);  // 20 round trips of two links each way
  if (rng->chance(0.15)) {
    link->bytes_per_us = pick(rng, {1.0, 10.0, 100.0});
    link->queue_bytes = static_cast<uint32_t>(pick(rng, {10'000, 20'000, 50'000}));
  }
}

void random_submissions(Rng* rng, JobPlan* job) {
  const int64_t pause_us = static_cast<int64_t>(pick(rng, {0, 0, 100, 3000}));
  std::vector<int64_t> times(static_cast<size_t>(job->ranks), 0);
  // One rank may always be late.
  const size_t slow = rng->below(times.size());
  const int64_t slow_us = static_cast<int64_t>(pick(rng, {0, 0, 2000, 300'000}));
  for (OperationPlan& operation : job->operations) {
    for (size_t rank = 0; rank < times.size(); ++rank) {
      times[rank] += static_cast<int64_t>(rng->below(static_cast<uint64_t>(pause_us) + 1));
      if (rank == slow && rng->chance(0.5)) times[rank] += slow_us;
    }
    operation.submit_at_us = times;
  }
}

// Roughly how many contributions the ranks will send.
size_t cost_of(const JobPlan& job, uint32_t payload_bytes) {
  size_t bytes = 0;
  for (const OperationPlan& operation : job.operations) {
    for (const TensorPlan& tensor : operation.tensors) {
      bytes += tensor.count * (operation.type == DataType::kInt64 ? 8 : 4);
    }
  }
  return bytes / payload_bytes * static_cast<size_t>(job.ranks);
}

JobPlan random_job(Rng* rng, const Scenario& scenario, uint16_t index) {
  JobPlan job;
  job.job = index;
  job.epoch = static_cast<uint16_t>(1 + rng->below(65535));
  job.key = {rng->next(), rng->next()};
  job.sums_values = job.key.k0 % 4 != 0;
  job.adds_floats = job.sums_values && job.key.k0 / 8 % 4 != 0;
  job.takes_empty_packets = job.key.k1 % 8 != 0;
  job.takes_no_result = job.key.k1 / 8 % 8 != 0;
  // From 17 ranks on, 16-bit types use 32-bit lanes.
  job.ranks = static_cast<int>(rng->chance(0.03) ? pick(rng, {16, 17}) : pick(rng, {1, 2, 2, 3, 4, 5, 8}));
  job.lane_bits = static_cast<int>(pick(rng, {0, 0, 32, 8}));
  for (int rank = 0; rank < job.ranks; ++rank) job.hosts.push_back(rank);
  job.data_slots = static_cast<uint32_t>(pick(rng, {1, 2, 4, 8, 16, 64}));
  job.scale_slots = static_cast<uint32_t>(pick(rng, {1, 2, 4}));
  if (job.key.k0 / 4 % 2 == 0) job.scale_slots *= 8;  // enough to divide them (slot_layout.h)
  job.remove_after_us = static_cast<int64_t>(pick(rng, {0, 0, 100, 20'000}));
  for (uint64_t n = 1 + rng->below(6); n > 0; --n) job.operations.push_back(random_operation(rng, scenario));
  // Many short runs find more than few long ones, but some are long.
  const size_t most = rng->chance(0.05) ? 5'000 : 200;
  while (job.operations.size() > 1 && cost_of(job, scenario.payload_bytes) > most) job.operations.pop_back();
  random_submissions(rng, &job);
  return job;
}

// A restart or a change of membership: the index is reused by a job of the same hosts, or of hosts that left, joined or
// changed their ranks, while packets of the old job may be in flight.
JobPlan random_successor(Rng* rng, const Scenario& scenario, const JobPlan& before) {
  JobPlan next = random_job(rng, scenario, before.job);
  next.epoch = static_cast<uint16_t>(before.epoch + 1);
  if (rng->chance(0.3)) next.key = before.key;
  next.start_at_us = kWhenFree;
  next.hosts = before.hosts;
  if (rng->chance(0.4) && next.hosts.size() > 1) {
    next.hosts.erase(next.hosts.begin() + static_cast<ptrdiff_t>(rng->below(next.hosts.size())));
  }
  if (rng->chance(0.3)) {
    const int newcomer = *std::max_element(next.hosts.begin(), next.hosts.end()) + 1;
    next.hosts.insert(next.hosts.begin() + static_cast<ptrdiff_t>(rng->below(next.hosts.size() + 1)),
                      newcomer);
  }
  next.ranks = static_cast<int>(next.hosts.size());
  random_submissions(rng, &next);
  return next;
}

void random_jobs(Rng* rng, Scenario* scenario) {
  const uint64_t jobs = rng->chance(0.75) ? 1 : 2 + rng->below(2);
  for (uint64_t j = 0; j < jobs; ++j) {
    JobPlan job = random_job(rng, *scenario, static_cast<uint16_t>(j));
    if (j > 0 && rng->chance(0.3)) job.start_at_us = static_cast<int64_t>(rng->below(20'000));
    scenario->jobs.push_back(job);
  }
  const uint64_t successors = rng->chance(0.7) ? 0 : 1 + rng->below(2);
  for (uint64_t n = 0; n < successors; ++n) {
    const auto same_index = [&](const JobPlan& job) { return job.job == n % jobs; };
    const auto latest = std::find_if(scenario->jobs.rbegin(), scenario->jobs.rend(), same_index);
    scenario->jobs.push_back(random_successor(rng, *scenario, JobPlan(*latest)));
  }
}

void random_clocks(Rng* rng, Scenario* scenario) {
  if (!rng->chance(0.3)) return;
  const int32_t most_ppm = pick(rng, {0, 100, 1'000, 100'000});
  for (JobPlan& job : scenario->jobs) {
    for (int rank = 0; rank < job.ranks; ++rank) {
      job.drift_ppm.push_back(static_cast<int32_t>(rng->below(2 * static_cast<uint64_t>(most_ppm) + 1)) -
                              most_ppm);
    }
  }
}

void random_node(Rng* rng, const Scenario& scenario, FaultEvent* event) {
  if (rng->chance(0.4)) {
    event->rank = kNoRank;
    event->aggregator = static_cast<int>(rng->below(static_cast<uint64_t>(scenario.aggregator_count())));
    return;
  }
  event->job = rng->below(scenario.jobs.size());
  event->rank = static_cast<int>(rng->below(static_cast<uint64_t>(scenario.jobs[event->job].ranks)));
}

FaultEvent random_event(Rng* rng, const Scenario& scenario) {
  using Kind = FaultEvent::Kind;
  FaultEvent event;
  event.kind = pick(rng, {Kind::kPartition, Kind::kPartition, Kind::kSlowLink, Kind::kPause, Kind::kPause,
                          Kind::kCrash, Kind::kCrash});
  event.at_event = rng->below(1ull << (2 + rng->below(11)));
  random_node(rng, scenario, &event);
  const uint64_t sides = rng->below(4);
  switch (event.kind) {
    case Kind::kPartition:
      event.duration_us = static_cast<int64_t>(pick(rng, {1'000, 20'000, 300'000, 3'000'000}));
      event.outbound = sides != 0;
      event.inbound = sides != 1;
      break;
    case Kind::kSlowLink:
      event.duration_us = static_cast<int64_t>(pick(rng, {20'000, 300'000}));
      event.bytes_per_us = pick(rng, {0.1, 1.0, 10.0});
      break;
    case Kind::kPause:
      event.duration_us = static_cast<int64_t>(pick(rng, {1'000, 30'000, 500'000, 3'000'000}));
      break;
    case Kind::kCrash:
      event.duration_us = static_cast<int64_t>(pick(rng, {-1, 0, 1'000, 100'000, 1'000'000}));
      event.reported_after_us = static_cast<int64_t>(pick(rng, {-1, 0, 100, 20'000, 300'000}));
      break;
  }
  return event;
}

Faults fault_of(const FaultEvent& event) {
  switch (event.kind) {
    case FaultEvent::Kind::kPartition:
      return kPartition;
    case FaultEvent::Kind::kSlowLink:
      return kBandwidth;
    case FaultEvent::Kind::kPause:
      return kPause;
    case FaultEvent::Kind::kCrash:
      return kCrash;
  }
  return 0;
}

void limit_link(Faults faults, LinkOptions* link) {
  if (!(faults & kLoss)) link->loss = 0;
  if (!(faults & kDuplicate)) link->duplicate = 0;
  if (!(faults & kReorder)) link->jitter_us = 0;
  if (!(faults & kLate)) link->late = 0;
  if (!(faults & kDamage)) link->corrupt = link->truncate = 0;
  if (!(faults & kBandwidth)) link->bytes_per_us = 0;
}

void limit_job(const ScenarioLimits& limits, JobPlan* job) {
  job->ranks = std::min(job->ranks, limits.ranks);
  job->hosts.resize(static_cast<size_t>(job->ranks));
  if (!(limits.faults & kDrift)) job->drift_ppm.clear();
  if (!job->drift_ppm.empty()) job->drift_ppm.resize(static_cast<size_t>(job->ranks));
  if (static_cast<size_t>(limits.operations) < job->operations.size()) {
    job->operations.resize(static_cast<size_t>(limits.operations));
  }
  for (OperationPlan& operation : job->operations) {
    operation.submit_at_us.resize(static_cast<size_t>(job->ranks));
    if (!(limits.faults & kStraggler)) operation.arrival = {};
    if (!(limits.faults & kStraggler))
      std::fill(operation.submit_at_us.begin(), operation.submit_at_us.end(), 0);
    if (has_parts(operation.collective)) operation.tensors.resize(static_cast<size_t>(job->ranks));
    operation.root = std::min(operation.root, job->ranks - 1);
    for (TensorPlan& tensor : operation.tensors) {
      tensor.count = std::min(tensor.count, static_cast<size_t>(limits.elements));
    }
  }
}

bool job_stays(const ScenarioLimits& limits, const JobPlan& job) {
  if (job.start_at_us == kWhenFree && !(limits.faults & kMembership)) return false;
  return job.job == 0 || (job.job < limits.jobs && (limits.faults & kJobs));
}

void apply_limits(const ScenarioLimits& limits, Scenario* scenario) {
  for (LinkOptions* link :
       {&scenario->worker_up, &scenario->worker_down, &scenario->aggregator_up, &scenario->aggregator_down}) {
    limit_link(limits.faults, link);
  }
  scenario->aggregators = std::min(scenario->aggregators, limits.aggregators);
  if (scenario->stripe_weights.size() > static_cast<size_t>(scenario->aggregators)) {
    scenario->stripe_weights.resize(static_cast<size_t>(scenario->aggregators));
  }
  if (!(limits.faults & kHierarchy)) {
    scenario->racks = 0;
    scenario->rack_switches = false;
    scenario->lies.probability = std::max(scenario->lies.probability, scenario->lies.upwards);
    scenario->lies.upwards = 0;
  }
  if (!(limits.faults & kSwitches)) scenario->switches = scenario->rack_switches = false;
  if (!(limits.faults & kLies)) scenario->lies = {};
  std::vector<size_t> place(scenario->jobs.size());  // of the jobs that stay
  std::vector<JobPlan> jobs;
  for (size_t j = 0; j < scenario->jobs.size(); ++j) {
    place[j] = jobs.size();
    if (job_stays(limits, scenario->jobs[j])) jobs.push_back(scenario->jobs[j]);
  }
  std::erase_if(scenario->events, [&](const FaultEvent& event) {
    if (!(limits.faults & fault_of(event))) return true;
    if (event.rank == kNoRank) return event.aggregator >= scenario->aggregator_count();
    return event.rank >= limits.ranks || !job_stays(limits, scenario->jobs[event.job]);
  });
  for (FaultEvent& event : scenario->events) event.job = place[event.job];
  if (static_cast<size_t>(limits.events) < scenario->events.size()) {
    scenario->events.resize(static_cast<size_t>(limits.events));
  }
  scenario->jobs = std::move(jobs);
  for (JobPlan& job : scenario->jobs) limit_job(limits, &job);
}

// A job that is affected by a crash or a lie, or has a short deadline, may fail, but only in these ways. All others must succeed,
// whatever happens to their packets and to other jobs.
void set_endings(Rng* rng, Faults faults, Scenario* scenario) {
  for (size_t j = 0; j < scenario->jobs.size(); ++j) {
    JobPlan& job = scenario->jobs[j];
    const bool crash =
        std::any_of(scenario->events.begin(), scenario->events.end(), [&](const FaultEvent& event) {
          return event.kind == FaultEvent::Kind::kCrash && (event.rank == kNoRank || event.job == j);
        });
    const bool hurry = rng->chance(0.1) && (faults & kDeadline);
    const int64_t timeout_us = static_cast<int64_t>(pick(rng, {100'000, 500'000, 2'000'000}));
    job.ending = crash || hurry || scenario->lies.any() ? Ending::kSuccessOrLoss : Ending::kSuccess;
    // The slowest successes (one slot, a fifth of the packets lost on each of four hops) take ten minutes;
    // much longer than that is a hang.
    constexpr int64_t kHangUs = 3'600'000'000;
    for (OperationPlan& operation : job.operations) {
      operation.timeout_us = crash || hurry ? timeout_us : kHangUs;
    }
  }
}

// In two of five runs with several stripes; some stripes may get nothing.
std::vector<uint32_t> random_weights(uint64_t seed, int stripes) {
  Rng rng(seed ^ 0x6E657473756D0002ull);
  std::vector<uint32_t> weights;
  if (stripes == 1 || rng.chance(0.6)) return weights;
  for (int i = 0; i < stripes; ++i) weights.push_back(static_cast<uint32_t>(pick(&rng, {0, 1, 2, 3, 1000})));
  weights[rng.below(weights.size())] = 2;
  return weights;
}

// In some runs, the ranks correct the weights, more often than real ones do.
void random_balance(uint64_t seed, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0004ull);
  if (scenario->aggregators == 1 || rng.chance(0.6)) return;
  scenario->balance_period = pick(&rng, {1, 1, 4, 30});
  scenario->stripe_weights.resize(static_cast<size_t>(scenario->aggregators));
  for (uint32_t& weight : scenario->stripe_weights) weight = std::max(weight, 1u);
}

void random_collective(Rng* rng, const Scenario& scenario, const JobPlan& job, OperationPlan* operation) {
  operation->collective = pick(rng, {Collective::kBroadcast, Collective::kAllGather, Collective::kGather,
                                     Collective::kScatter, Collective::kReduce, Collective::kReduceScatter});
  operation->root = static_cast<int>(rng->below(static_cast<uint64_t>(job.ranks)));
  if (moves_bytes(operation->collective)) {
    operation->type = DataType::kByte;
    operation->op = ReduceOp::kSum;
  }
  if (!has_parts(operation->collective)) return;
  operation->tensors.resize(static_cast<size_t>(job.ranks));
  for (TensorPlan& part : operation->tensors) {
    const size_t count = random_count(rng, operation->type, scenario.payload_bytes, scenario.aggregators);
    part.count = rng->chance(0.2) ? 0 : count / operation->tensors.size();
    part.in_place = rng->chance(0.5);
  }
}

// In one of four jobs, operations have one receiver; of those of floats, some ranks contribute nothing. (Integers may only
// have a sum that fits if all contribute.) In half of the others, every other operation is another collective.
void random_roles(uint64_t seed, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0003ull);
  for (JobPlan& job : scenario->jobs) {
    if (rng.chance(0.75)) {
      if (rng.chance(0.5)) continue;
      for (OperationPlan& operation : job.operations)
        if (rng.chance(0.5)) random_collective(&rng, *scenario, job, &operation);
      continue;
    }
    for (OperationPlan& operation : job.operations) {
      operation.receivers = uint64_t{1} << rng.below(static_cast<uint64_t>(job.ranks));
      if (is_floating(operation.type) && rng.chance(0.5)) operation.contributors = rng.next();
    }
  }
}

// In one of three jobs, the input of some ranks arrives piece by piece.
void random_arrival(uint64_t seed, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0008ull);
  for (JobPlan& job : scenario->jobs) {
    if (rng.chance(0.67)) continue;
    for (OperationPlan& operation : job.operations) {
      if (rng.chance(0.3)) continue;
      size_t bytes = 0;
      for (const TensorPlan& tensor : operation.tensors) bytes += tensor.count * size_of(operation.type);
      operation.arrival.ranks = rng.next();
      operation.arrival.piece_bytes = std::max<size_t>(
          bytes / 40, pick(&rng, {1u, 3u, scenario->payload_bytes, 10 * scenario->payload_bytes}));
      operation.arrival.pause_us = static_cast<int64_t>(pick(&rng, {0, 10, 300, 3000}));
    }
  }
}

// In one of eight jobs, steps wait for their phase.
void random_phases(uint64_t seed, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0009ull);
  for (JobPlan& job : scenario->jobs) {
    if (rng.chance(0.875)) continue;
    job.phase_period_us = static_cast<int64_t>(pick(&rng, {1, 100, 5'000, 50'000}));
    job.phase_offset_us = static_cast<int64_t>(rng.below(100'000));
  }
}

// Three of four jobs predict scales. In most of these, operations recur, usually with the same data.
void random_recurrence(uint64_t seed, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0006ull);
  for (JobPlan& job : scenario->jobs) {
    job.predicts_scales = rng.chance(0.75) ? UINT64_MAX : 0;
    if (job.predicts_scales == 0 || rng.chance(0.3)) continue;
    const size_t once = job.operations.size(), times = 2 + rng.below(7);
    for (size_t i = once; i < times * once && cost_of(job, scenario->payload_bytes) < 600; ++i) {
      OperationPlan next = job.operations[i - once];
      if (next.data_of < 0) next.data_of = static_cast<int>(i - once);
      if (rng.chance(0.1)) next.data_of = -1;
      if (next.data_of < 0 && rng.chance(0.5))
        next.content = pick(&rng, {Content::kPlain, Content::kZeros, Content::kWideRange, Content::kSpecial});
      job.operations.push_back(next);
    }
    random_submissions(&rng, &job);
  }
}

// A network without checksums would alter contributions, and packets without tags do not show it.
void without_tags(Scenario* scenario) {
  for (JobPlan& job : scenario->jobs) job.tag = NETSUM_TAG_COOKIE;
  for (LinkOptions* link :
       {&scenario->worker_up, &scenario->worker_down, &scenario->aggregator_up, &scenario->aggregator_down})
    link->corrupt = link->truncate = 0;
}

// In a hierarchy, aggregators lie in their results, racks to their parents, or both.
void random_lies_of_racks(Rng* rng, Lies* lies) {
  const uint64_t where = rng->below(3);
  if (where > 0) lies->upwards = pick(rng, {0.003, 0.03, 0.3});
  if (where == 1) lies->probability = 0;
}

// In one of three runs, all jobs verify their sums; in half of these, aggregators lie or bits of memory flip, and in half,
// packets have no tags.
void random_lies(uint64_t seed, bool always, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0005ull);
  if (rng.chance(0.67) && !always) return;
  for (JobPlan& job : scenario->jobs) {
    job.verifies_sums = true;
    if (job.lane_bits == 8) job.lane_bits = 0;  // which cannot be verified
  }
  if (rng.chance(0.5) || always) scenario->lies.probability = pick(&rng, {0.003, 0.03, 0.3});
  if (rng.chance(0.5)) without_tags(scenario);
  if (scenario->lies.probability == 0) return;
  if (scenario->racks > 0) random_lies_of_racks(&rng, &scenario->lies);
  if (rng.chance(0.5)) return;
  scenario->lies.flipped_in_slots = pick(&rng, {0.0, 0.001, 0.02});
  scenario->lies.flipped_in_ranks = pick(&rng, {0.0, 0.001, 0.02});
  if (rng.chance(0.5)) scenario->lies.probability = scenario->lies.upwards = 0;
}

// In half of the runs in which they can be, and so in racks.
void random_switches(uint64_t seed, Scenario* scenario) {
  Rng rng(seed ^ 0x6E657473756D0007ull);
  const bool possible = scenario->payload_bytes <= switch_payload_bytes() &&
                        std::all_of(scenario->jobs.begin(), scenario->jobs.end(), [](const JobPlan& job) {
                          return job.verifies_sums && job.tag == NETSUM_TAG_COOKIE;
                        });
  scenario->switches = possible && rng.chance(0.5);
  scenario->rack_switches = possible && scenario->racks > 0 && rng.chance(0.5);
}

constexpr std::pair<Faults, std::string_view> kFaultNames[] = {
    {kLoss, "loss"},        {kDuplicate, "duplicate"},   {kReorder, "reorder"},     {kLate, "late"},
    {kDamage, "damage"},    {kBandwidth, "bandwidth"},   {kPartition, "partition"}, {kPause, "pause"},
    {kCrash, "crash"},      {kDrift, "drift"},           {kDeadline, "deadline"},   {kStraggler, "straggler"},
    {kJobs, "jobs"},        {kMembership, "membership"}, {kHierarchy, "hierarchy"}, {kLies, "lies"},
    {kSwitches, "switches"}};

}  // namespace

Result<Faults> parse_faults(std::string_view text) {
  if (text == "all") return kAllFaults;
  if (text == "none") return Faults{0};
  Faults faults = 0;
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto known = std::find_if(std::begin(kFaultNames), std::end(kFaultNames),
                                    [&](const auto& entry) { return entry.second == name; });
    if (known == std::end(kFaultNames)) {
      return Status(ErrorCode::kInvalidArgument, "there is no fault '" + std::string(name) +
                                                     "'; there are all, none, or a list of " +
                                                     fault_names(kAllFaults));
    }
    faults |= known->first;
  }
  return faults;
}

std::string fault_names(Faults faults) {
  std::string text;
  for (const auto& [fault, name] : kFaultNames) {
    if (!(faults & fault)) continue;
    if (!text.empty()) text += ",";
    text += name;
  }
  return text.empty() ? "none" : text;
}

Scenario random_scenario(uint64_t seed, const ScenarioLimits& limits) {
  Rng rng(seed ^ 0x6E657473756D0001ull);
  Scenario scenario;
  scenario.seed = seed;
  scenario.payload_bytes = static_cast<uint32_t>(pick(&rng, {64, 64, 64, 96, 128, 256, 1440}));
  scenario.aggregators = static_cast<int>(pick(&rng, {1, 1, 2, 3}));
  scenario.racks = static_cast<int>(pick(&rng, {0, 0, 1, 2, 3}));
  scenario.gather_us = static_cast<int64_t>(pick(&rng, {0, 1, 5, 50}));
  const LinkOptions link = random_link(&rng);
  scenario.worker_up = scenario.worker_down = scenario.aggregator_up = scenario.aggregator_down = link;
  if (!rng.chance(0.15)) {  // else no faults: then a late rank must not cause retransmissions
    random_faults(&rng, &scenario.worker_up);
    random_faults(&rng, &scenario.worker_down);
    if (scenario.racks > 0) {  // members must detect losses between aggregators
      random_faults(&rng, &scenario.aggregator_up);
      random_faults(&rng, &scenario.aggregator_down);
    }
  }
  random_jobs(&rng, &scenario);
  random_clocks(&rng, &scenario);
  for (uint64_t n = pick(&rng, {0, 0, 1, 1, 2, 4}); n > 0; --n) {
    scenario.events.push_back(random_event(&rng, scenario));
  }
  scenario.stripe_weights = random_weights(seed, scenario.aggregators);
  random_balance(seed, &scenario);
  random_roles(seed, &scenario);
  random_recurrence(seed, &scenario);
  random_arrival(seed, &scenario);
  random_phases(seed, &scenario);
  random_lies(seed, limits.lying, &scenario);
  random_switches(seed, &scenario);
  apply_limits(limits, &scenario);
  set_endings(&rng, limits.faults, &scenario);
  return scenario;
}

}  // namespace netsum::emulate
