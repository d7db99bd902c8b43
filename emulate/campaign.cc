#include "emulate/campaign.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <utility>

namespace netsum::emulate {
namespace {

constexpr uint64_t NetworkCounters::*kNetworkCounters[] = {
    &NetworkCounters::sent,    &NetworkCounters::delivered,   &NetworkCounters::lost,
    &NetworkCounters::cut_off, &NetworkCounters::duplicated,  &NetworkCounters::corrupted,
    &NetworkCounters::late,    &NetworkCounters::tail_dropped};
constexpr uint64_t EventCounters::*kEventCounters[] = {
    &EventCounters::partitions,     &EventCounters::slow_links,         &EventCounters::pauses,
    &EventCounters::worker_crashes, &EventCounters::aggregator_crashes, &EventCounters::aggregator_restarts,
    &EventCounters::jobs_started,   &EventCounters::jobs_on_used_hosts};

void add_lies(const LieCounters& more, LieCounters* sum) {
  for (size_t kind = 0; kind < sum->told.size(); ++kind) sum->told[kind] += more.told[kind];
  sum->wrong_refused += more.wrong_refused;
  sum->false_scales += more.false_scales;
}

bool fails(uint64_t seed, const ScenarioLimits& limits) {
  return !run_seed(seed, limits).violations.empty();
}

// The smallest of `candidates` for `limit` with which the run still fails.
void shrink_number(uint64_t seed, int ScenarioLimits::*limit, int most, ScenarioLimits* limits) {
  for (int value = 0; value < most; value = value < 4 ? value + 1 : value * 2) {
    ScenarioLimits smaller = *limits;
    smaller.*limit = value;
    const bool may_be_none = limit != &ScenarioLimits::ranks && limit != &ScenarioLimits::aggregators &&
                             limit != &ScenarioLimits::jobs;
    if (value == 0 && !may_be_none) continue;
    if (fails(seed, smaller)) {
      *limits = smaller;
      return;
    }
  }
}

// The sizes of a scenario that can be reduced.
ScenarioLimits extent_of(const Scenario& scenario) {
  ScenarioLimits extent;
  extent.aggregators = scenario.aggregators;
  extent.events = static_cast<int>(scenario.events.size());
  extent.jobs = extent.ranks = extent.operations = extent.elements = 0;
  for (const JobPlan& job : scenario.jobs) {
    extent.jobs = std::max(extent.jobs, job.job + 1);
    extent.ranks = std::max(extent.ranks, job.ranks);
    extent.operations = std::max(extent.operations, static_cast<int>(job.operations.size()));
    for (const OperationPlan& operation : job.operations) {
      for (const TensorPlan& tensor : operation.tensors) {
        extent.elements = std::max(extent.elements, static_cast<int>(tensor.count));
      }
    }
  }
  return extent;
}

}  // namespace

Report run_seed(uint64_t seed, const ScenarioLimits& limits, bool twice) {
  const Scenario scenario = random_scenario(seed, limits);
  Report report = Simulation(scenario).run();
  if (twice && report.trace_hash != Simulation(scenario).run().trace_hash) {
    report.violations.push_back("a second run from the same seed sent other packets");
  }
  return report;
}

Report trace_seed(uint64_t seed, const ScenarioLimits& limits) {
  Simulation simulation(random_scenario(seed, limits));
  simulation.trace_packets();
  return simulation.run();
}

void Tally::add(const Report& report) {
  ++runs;
  for (const auto counter : kNetworkCounters) network.*counter += report.network.*counter;
  for (const auto counter : kEventCounters) events.*counter += report.events.*counter;
  retransmissions += report.retransmissions();
  add_lies(report.lies, &lies);
  for (const auto& ranks : report.jobs) {
    for (const RankReport& rank : ranks) {
      sums_verified += rank.sums_verified;
      scales_predicted += rank.scales_predicted;
      scales_mispredicted += rank.scales_mispredicted;
      for (const OperationReport& operation : rank.operations) {
        if (!operation.ended) continue;
        if (operation.status.ok()) {
          ++succeeded;
        } else {
          ++failed[operation.status.code()];
        }
      }
    }
  }
}

void Tally::add(const Tally& other) {
  runs += other.runs;
  for (const auto counter : kNetworkCounters) network.*counter += other.network.*counter;
  for (const auto counter : kEventCounters) events.*counter += other.events.*counter;
  retransmissions += other.retransmissions;
  add_lies(other.lies, &lies);
  sums_verified += other.sums_verified;
  scales_predicted += other.scales_predicted;
  scales_mispredicted += other.scales_mispredicted;
  succeeded += other.succeeded;
  for (const auto& [code, count] : other.failed) failed[code] += count;
}

uint64_t Tally::lies_told() const {
  return std::accumulate(lies.told.begin(), lies.told.end(), uint64_t{0});
}

std::string describe(const Tally& tally) {
  const NetworkCounters& n = tally.network;
  const EventCounters& e = tally.events;
  char text[1024];
  std::snprintf(text, sizeof text,
                "packets     %" PRIu64 " sent, %" PRIu64 " lost, %" PRIu64 " cut off, %" PRIu64
                " dropped by queues, %" PRIu64 " duplicated, %" PRIu64 " corrupted, %" PRIu64
                " late by many round trips; %" PRIu64
                " payloads sent again\n"
                "events      %" PRIu64 " partitions, %" PRIu64 " slow links, %" PRIu64 " pauses, %" PRIu64
                " worker crashes, %" PRIu64 " aggregator crashes, %" PRIu64
                " aggregator restarts\n"
                "jobs        %" PRIu64 ", of them %" PRIu64
                " restarts or changes of membership, on the hosts of a former job\n"
                "verified    %" PRIu64 " sums; %" PRIu64 " false results sent, %" PRIu64
                " refused when they arrived, %" PRIu64
                " of false scales noticed when they were confirmed\n"
                "predicted   %" PRIu64 " scales of chunks, %" PRIu64
                " of them wrong\n"
                "operations  %" PRIu64 " summed right",
                n.sent, n.lost, n.cut_off, n.tail_dropped, n.duplicated, n.corrupted, n.late,
                tally.retransmissions, e.partitions, e.slow_links, e.pauses, e.worker_crashes,
                e.aggregator_crashes, e.aggregator_restarts, e.jobs_started, e.jobs_on_used_hosts,
                tally.sums_verified, tally.lies_told(), tally.lies.wrong_refused, tally.lies.false_scales,
                tally.scales_predicted, tally.scales_mispredicted, tally.succeeded);
  std::string result = text;
  for (const auto& [code, count] : tally.failed) {
    result += ", " + std::to_string(count) + " ended with " + std::string(error_name(code));
  }
  return result + "\n";
}

ScenarioLimits shrink(uint64_t seed, const ScenarioLimits& failing) {
  ScenarioLimits limits = failing;
  // Twice, because a part that is needed at first may not be needed after others were removed.
  for (int turn = 0; turn < 2; ++turn) {
    for (Faults fault = 1; fault < kAllFaults; fault <<= 1) {
      ScenarioLimits smaller = limits;
      smaller.faults &= ~fault;
      if (smaller.faults != limits.faults && fails(seed, smaller)) limits = smaller;
    }
    const ScenarioLimits extent = extent_of(random_scenario(seed, limits));
    for (int ScenarioLimits::*limit :
         {&ScenarioLimits::jobs, &ScenarioLimits::aggregators, &ScenarioLimits::operations,
          &ScenarioLimits::ranks, &ScenarioLimits::events, &ScenarioLimits::elements}) {
      shrink_number(seed, limit, extent.*limit, &limits);
    }
  }
  return limits;
}

std::string flags_of(uint64_t seed, const ScenarioLimits& limits) {
  std::string flags = "--seed " + std::to_string(seed);
  if (limits.faults != kAllFaults) flags += " --faults " + fault_names(limits.faults);
  const std::pair<const char*, int> numbers[] = {{"jobs", limits.jobs},
                                                 {"ranks", limits.ranks},
                                                 {"aggregators", limits.aggregators},
                                                 {"operations", limits.operations},
                                                 {"events", limits.events},
                                                 {"elements", limits.elements}};
  for (const auto& [name, value] : numbers) {
    if (value != INT_MAX) flags += std::string(" --max-") + name + " " + std::to_string(value);
  }
  if (limits.lying) flags += " --lying";
  return flags;
}

}  // namespace netsum::emulate
