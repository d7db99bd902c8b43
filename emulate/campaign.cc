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
    &EventCounters::jobs_started,   &EventCounters::jobs_on_used_hosts, &EventCounters::switches};

constexpr uint64_t LieCounters::*kLieCounters[] = {
    &LieCounters::injected_upwards, &LieCounters::false_sent,   &LieCounters::flipped_in_ranks,
    &LieCounters::wrong_refused,    &LieCounters::false_scales, &LieCounters::false_alarms,
    &LieCounters::wrong_delivered};
constexpr uint64_t Tally::*kTallies[] = {&Tally::runs,
                                         &Tally::trace_hash,
                                         &Tally::runs_reached,
                                         &Tally::runs_ended,
                                         &Tally::runs_unbalanced,
                                         &Tally::runs_without,
                                         &Tally::runs_upwards,
                                         &Tally::runs_switches,
                                         &Tally::sums_verified,
                                         &Tally::scales_predicted,
                                         &Tally::scales_mispredicted,
                                         &Tally::retransmissions,
                                         &Tally::succeeded};

void add_lies(const LieCounters& more, LieCounters* sum) {
  for (size_t kind = 0; kind < sum->injected.size(); ++kind) sum->injected[kind] += more.injected[kind];
  for (const auto counter : kLieCounters) sum->*counter += more.*counter;
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
  trace_hash += netsum_mix64(report.trace_hash);
  for (const auto counter : kNetworkCounters) network.*counter += report.network.*counter;
  for (const auto counter : kEventCounters) events.*counter += report.events.*counter;
  retransmissions += report.retransmissions();
  add_lies(report.lies, &lies);
  runs_reached += report.lies.reached ? 1 : 0;
  runs_without += report.lies.reached ? 0 : 1;
  runs_upwards += report.lies.injected_upwards > 0 ? 1 : 0;
  runs_switches += report.events.switches > 0 && report.lies.false_sent > 0 ? 1 : 0;
  runs_ended += report.lies.ended ? 1 : 0;
  runs_unbalanced += report.lies.unbalanced && !report.lies.ended ? 1 : 0;
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
  for (const auto counter : kTallies) this->*counter += other.*counter;
  for (const auto counter : kNetworkCounters) network.*counter += other.network.*counter;
  for (const auto counter : kEventCounters) events.*counter += other.events.*counter;
  add_lies(other.lies, &lies);
  for (const auto& [code, count] : other.failed) failed[code] += count;
}

uint64_t Tally::lies_injected() const {
  return std::accumulate(lies.injected.begin(), lies.injected.end(), uint64_t{0});
}

std::string describe(const Tally& tally) {
  const NetworkCounters& n = tally.network;
  const EventCounters& e = tally.events;
  char text[2048];
  std::snprintf(text, sizeof text,
                "packets     %" PRIu64 " sent, %" PRIu64 " lost, %" PRIu64 " cut off, %" PRIu64
                " dropped by queues, %" PRIu64 " duplicated, %" PRIu64 " corrupted, %" PRIu64
                " late by many round trips; %" PRIu64
                " payloads sent again\n"
                "events      %" PRIu64 " partitions, %" PRIu64 " slow links, %" PRIu64 " pauses, %" PRIu64
                " worker crashes, %" PRIu64 " aggregator crashes, %" PRIu64
                " aggregator restarts\n"
                "jobs        %" PRIu64 ", of them %" PRIu64
                " restarts or changes of membership, on the hosts of a former job; %" PRIu64
                " P4 switches\n"
                "verified    %" PRIu64 " sums; %" PRIu64 " lies told, %" PRIu64
                " of them by racks to their parents, %" PRIu64 " false results sent, %" PRIu64
                " bits flipped in ranks; %" PRIu64 " false results refused when they arrived, %" PRIu64
                " of false scales taken until they were to be confirmed, %" PRIu64
                " right ones refused\n"
                "lies        %" PRIu64 " runs in which one reached a rank in time; in %" PRIu64
                " the job ended before false scales were confirmed, in %" PRIu64
                " before a correction of weights was; in %" PRIu64 " a rack lied to its parent, in %" PRIu64
                " with P4 switches false results were sent\n"
                "predicted   %" PRIu64 " scales of chunks, %" PRIu64
                " of them wrong\n"
                "operations  %" PRIu64 " summed right",
                n.sent, n.lost, n.cut_off, n.tail_dropped, n.duplicated, n.corrupted, n.late,
                tally.retransmissions, e.partitions, e.slow_links, e.pauses, e.worker_crashes,
                e.aggregator_crashes, e.aggregator_restarts, e.jobs_started, e.jobs_on_used_hosts, e.switches,
                tally.sums_verified, tally.lies_injected(), tally.lies.injected_upwards,
                tally.lies.false_sent, tally.lies.flipped_in_ranks, tally.lies.wrong_refused,
                tally.lies.false_scales, tally.lies.false_alarms, tally.runs_reached, tally.runs_ended,
                tally.runs_unbalanced, tally.runs_upwards, tally.runs_switches, tally.scales_predicted,
                tally.scales_mispredicted, tally.succeeded);
  std::string result = text;
  for (const auto& [code, count] : tally.failed) {
    result += ", " + std::to_string(count) + " ended with " + std::string(error_name(code));
  }
  return result + "\n";
}

std::string to_json(const Tally& tally) {
  std::string json = "{\"told\": {";
  for (size_t kind = 0; kind < tally.lies.injected.size(); ++kind)
    json += (kind > 0 ? ", \"" : "\"") + std::string(name_of(static_cast<Lie>(kind))) +
            "\": " + std::to_string(tally.lies.injected[kind]);
  json += "}";
  const std::pair<const char*, uint64_t> numbers[] = {{"runs", tally.runs},
                                                      {"packets", tally.network.sent},
                                                      {"sums_verified", tally.sums_verified},
                                                      {"operations_right", tally.succeeded},
                                                      {"injected_upwards", tally.lies.injected_upwards},
                                                      {"false_sent", tally.lies.false_sent},
                                                      {"flipped_in_ranks", tally.lies.flipped_in_ranks},
                                                      {"refused", tally.lies.wrong_refused},
                                                      {"scales_taken", tally.lies.false_scales},
                                                      {"false_alarms", tally.lies.false_alarms},
                                                      {"wrong_delivered", tally.lies.wrong_delivered},
                                                      {"runs_reached", tally.runs_reached},
                                                      {"runs_without", tally.runs_without},
                                                      {"runs_upwards", tally.runs_upwards},
                                                      {"runs_switches", tally.runs_switches},
                                                      {"runs_ended", tally.runs_ended},
                                                      {"runs_unbalanced", tally.runs_unbalanced}};
  for (const auto& [name, number] : numbers)
    json += ", \"" + std::string(name) + "\": " + std::to_string(number);
  return json + "}";
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
