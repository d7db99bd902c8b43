#include "emulate/scenario.h"

#include <algorithm>
#include <cstdio>

#include "src/base/rng.h"

namespace netsum::emulate {
namespace {

template <typename T, size_t kCount>
T pick(Rng* rng, const T (&choices)[kCount]) {
  return choices[rng->below(kCount)];
}

// Sizes at which something changes: nothing, one, around a packet, around a scale group and several of them.
size_t random_count(Rng* rng, DataType type, uint32_t payload_bytes, int stripes) {
  const size_t chunk = payload_bytes / (type == DataType::kInt64 ? 8 : 4);
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
  // One rank may be a straggler throughout.
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

}  // namespace

Scenario random_scenario(uint64_t seed) {
  Rng rng(seed ^ 0x6E657473756D0001ull);
  Scenario scenario;
  scenario.seed = seed;
  scenario.payload_bytes = static_cast<uint32_t>(pick(&rng, {64, 64, 64, 96, 128, 256, 1440}));
  scenario.aggregators = static_cast<int>(pick(&rng, {1, 1, 2, 3}));
  scenario.gather_us = static_cast<int64_t>(pick(&rng, {0, 1, 5, 50}));
  const LinkOptions link = random_link(&rng);
  scenario.worker_up = scenario.worker_down = scenario.aggregator_up = scenario.aggregator_down = link;
  if (!rng.chance(0.15)) {  // else a network without faults, where a straggler must cost no payloads
    random_faults(&rng, &scenario.worker_up);
    random_faults(&rng, &scenario.worker_down);
  }
  const uint64_t jobs = rng.chance(0.75) ? 1 : 2 + rng.below(2);
  for (uint64_t j = 0; j < jobs; ++j) {
    JobPlan job;
    job.job = static_cast<uint16_t>(j);
    job.epoch = static_cast<uint16_t>(1 + rng.below(65535));
    job.key = rng.next();
    job.ranks = static_cast<int>(pick(&rng, {1, 2, 2, 3, 4, 5, 8}));
    job.data_slots = static_cast<uint32_t>(pick(&rng, {1, 2, 4, 8, 16, 64}));
    job.scale_slots = static_cast<uint32_t>(pick(&rng, {1, 2, 4}));
    for (uint64_t n = 1 + rng.below(6); n > 0; --n)
      job.operations.push_back(random_operation(&rng, scenario));
    random_submissions(&rng, &job);
    scenario.jobs.push_back(job);
  }
  if (rng.chance(0.1)) {
    // The index is given to a new job while packets of the old one may still be under way.
    JobPlan next = scenario.jobs[0];
    next.epoch = static_cast<uint16_t>(next.epoch + 1);
    next.key = rng.chance(0.5) ? next.key : rng.next();
    next.start_at_us = kWhenFree;
    random_submissions(&rng, &next);
    scenario.jobs.push_back(next);
  }
  return scenario;
}

Scenario quiet_scenario(int ranks, DataType type, size_t count, int operations) {
  Scenario scenario;
  scenario.seed = 1;
  LinkOptions link;
  link.delay_us = 25;
  scenario.worker_up = scenario.worker_down = scenario.aggregator_up = scenario.aggregator_down = link;
  JobPlan job;
  job.key = 0x1234567890ABCDEF;
  job.ranks = ranks;
  OperationPlan operation;
  operation.type = type;
  operation.tensors.push_back({count, false});
  operation.submit_at_us.assign(static_cast<size_t>(ranks), 0);
  job.operations.assign(static_cast<size_t>(operations), operation);
  scenario.jobs.push_back(job);
  return scenario;
}

std::string describe(const Scenario& scenario) {
  char text[256];
  const LinkOptions& up = scenario.worker_up;
  std::snprintf(
      text, sizeof text,
      "payload %u, %d stripe(s), delay %lld + %lld us, loss %g/%g, duplicates %g, damage %g/%g, late %g",
      scenario.payload_bytes, scenario.aggregators, static_cast<long long>(up.delay_us),
      static_cast<long long>(up.jitter_us), up.loss, scenario.worker_down.loss, up.duplicate, up.corrupt,
      up.truncate, up.late);
  std::string result = text;
  for (const JobPlan& job : scenario.jobs) {
    size_t elements = 0;
    for (const OperationPlan& operation : job.operations) {
      for (const TensorPlan& tensor : operation.tensors) elements += tensor.count;
    }
    std::snprintf(text, sizeof text,
                  "; job %u epoch %u: %d rank(s), slots %u + %u, %zu operation(s), %zu elements", job.job,
                  job.epoch, job.ranks, job.data_slots, job.scale_slots, job.operations.size(), elements);
    result += text;
  }
  return result;
}

}  // namespace netsum::emulate
