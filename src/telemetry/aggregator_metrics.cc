#include "src/telemetry/aggregator_metrics.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace netsum {
namespace {

// Of a job that is not running: ranks without a member that have a series.
constexpr size_t kMostMissingRanks = 8;

constexpr std::string_view kDropPrefix = "drop_", kFailedPrefix = "jobs_failed_";

struct Known {
  std::string_view counter;  // its name in dataplanes
  const char* metric;
  const char* help;
};
constexpr Known kCounters[] = {
    {"packets_received", "netsum_aggregator_packets_received_total", "Packets received"},
    {"bytes_received", "netsum_aggregator_bytes_received_total",
     "Bytes of datagrams received, without UDP, IP and Ethernet headers"},
    {"packets_sent", "netsum_aggregator_packets_sent_total", "Packets sent"},
    {"bytes_sent", "netsum_aggregator_bytes_sent_total",
     "Bytes of datagrams sent, without UDP, IP and Ethernet headers"},
    {"sends_refused", "netsum_aggregator_sends_refused_total",
     "Packets that the aggregator's host did not send: no buffer, no route, or above the MTU"},
    {"multicast_packets_sent", "netsum_aggregator_multicast_packets_sent_total",
     "Packets sent to multicast groups"},
    {"contributions", "netsum_aggregator_contributions_total", "Contributions added to a sum"},
    {"bytes_summed", "netsum_aggregator_bytes_summed_total", "Payload bytes of these contributions"},
    {"rounds_completed", "netsum_aggregator_sums_total", "Rounds completed"},
    {"results_repeated", "netsum_aggregator_results_repeated_total", "Results retransmitted"},
    {"statuses", "netsum_aggregator_statuses_total", "STATUS packets sent in reply to probes"},
    {"mismatches", "netsum_aggregator_mismatches_total", "Rounds that failed because members disagreed"},
    {"overflows", "netsum_aggregator_overflows_total", "Rounds with a lane overflow"},
    {"hellos", "netsum_aggregator_hellos_total", "HELLOs answered"},
    {"other_traffic_passed", "netsum_aggregator_other_packets_total",
     "Packets of other protocols, passed to the host (XDP)"},
};

void add_counters(const AggregatorStatus& status, MetricsPage* page) {
  for (const AggregatorCounter& counter : status.counters) {
    const auto value = static_cast<double>(counter.value);
    if (counter.name.starts_with(kDropPrefix)) {
      page->counter("netsum_aggregator_packets_dropped_total", "Packets dropped, by the rule that they broke",
                    {{"reason", counter.name.substr(kDropPrefix.size())}}, value);
      continue;
    }
    if (counter.name.starts_with(kFailedPrefix)) {
      page->counter("netsum_aggregator_jobs_failed_total", "Jobs that have failed, by error code",
                    {{"code", counter.name.substr(kFailedPrefix.size())}}, value);
      continue;
    }
    const auto* known = std::find_if(std::begin(kCounters), std::end(kCounters),
                                     [&](const Known& one) { return one.counter == counter.name; });
    if (known != std::end(kCounters)) page->counter(known->metric, known->help, {}, value);
  }
}

void add_port(const AggregatorPortStatus& port, MetricsPage* page) {
  const LabelledMetrics metrics(page, {{"port", port.address}});
  metrics.gauge(
      "netsum_aggregator_port_link_rate_bits_per_second",
      "Rate of the port's link in each direction, declared or reported by its interface; 0: unknown",
      port.link_rate_bps);
  metrics.counter("netsum_aggregator_port_packets_received_total", "Packets received at the port",
                  port.packets_received);
  metrics.counter("netsum_aggregator_port_bytes_received_total", "Bytes of datagrams received at the port",
                  port.bytes_received);
  metrics.counter("netsum_aggregator_port_packets_sent_total", "Packets sent by the port", port.packets_sent);
  metrics.counter("netsum_aggregator_port_bytes_sent_total", "Bytes of datagrams sent by the port",
                  port.bytes_sent);
  add_bursts("netsum_aggregator_port_", port.received, metrics.with("direction", "in"));
  add_bursts("netsum_aggregator_port_", port.sent, metrics.with("direction", "out"));
}

void add_job(const AggregatorJobStatus& job, MetricsPage* page) {
  const MetricsPage::Labels labels = {{"job_name", job.name}, {"job_id", job.id}};
  const auto with = [&](const char* label, const std::string& value) {
    MetricsPage::Labels more = labels;
    more.emplace_back(label, value);
    return more;
  };
  page->gauge("netsum_aggregator_job_info", "Always 1; what protects the job's sums: packet, both or sum",
              with("verify", job.verify), 1);
  page->gauge("netsum_aggregator_job_members", "Members that have joined", labels,
              static_cast<double>(job.joined.size()));
  page->gauge("netsum_aggregator_job_world_size", "Members of the complete job", labels, job.world_size);
  page->gauge("netsum_aggregator_job_running", "1 when every member has joined", labels,
              job.state == "running" ? 1 : 0);
  page->gauge("netsum_aggregator_job_age_seconds", "Age of the job", labels,
              static_cast<double>(job.age_ms) * 1e-3);
  page->gauge("netsum_aggregator_job_slots", "Slots of the job per core", labels, job.slots);
  page->gauge("netsum_aggregator_job_open_slots", "Slots of the job with an open round, on all cores", labels,
              job.open_slots);
  page->counter("netsum_aggregator_job_sums_total", "Rounds that the job has completed", labels,
                static_cast<double>(job.sums));
  const bool running = job.state == "running";
  size_t missing_ranks = 0;
  const auto has_fault = [&](int rank, const std::string& kind) {
    return std::any_of(job.faults.begin(), job.faults.end(), [&](const AggregatorJobStatus::Fault& fault) {
      return fault.kind == kind &&
             std::find(fault.ranks.begin(), fault.ranks.end(), rank) != fault.ranks.end();
    });
  };
  for (int rank = 0; rank < job.world_size; ++rank) {
    const bool missing =
        std::find(job.waiting_for.begin(), job.waiting_for.end(), rank) != job.waiting_for.end();
    // A job of which only one rank has joined must not make hundreds of series.
    const bool joined = std::find(job.joined.begin(), job.joined.end(), rank) != job.joined.end();
    if (!running && !joined && (!missing || ++missing_ranks > kMostMissingRanks)) continue;
    const MetricsPage::Labels of_rank = with("rank", std::to_string(rank));
    page->gauge("netsum_aggregator_job_waiting_seconds",
                "How long the job has been waiting for this rank, to join or in its oldest round", of_rank,
                missing ? static_cast<double>(job.waiting_ms) * 1e-3 : 0);
    const auto index = static_cast<size_t>(rank);
    page->counter("netsum_aggregator_job_waited_seconds_total",
                  "Estimated time for which rounds have waited for this rank", of_rank,
                  index < job.waited_ms.size() ? static_cast<double>(job.waited_ms[index]) * 1e-3 : 0);
    if (!running) continue;
    for (const char* direction : {"to_aggregator", "from_aggregator"}) {
      MetricsPage::Labels of_link = of_rank;
      of_link.emplace_back("direction", direction);
      page->gauge("netsum_aggregator_job_lossy_link",
                  "1 for a link that loses far more packets than those of the other members", of_link,
                  has_fault(rank, std::string("loss_") + direction) ? 1 : 0);
    }
    page->gauge("netsum_aggregator_job_slow_rank", "1 for a rank that is late all through operations",
                of_rank, has_fault(rank, "slow") ? 1 : 0);
  }
}

}  // namespace

void add_aggregator_metrics(const AggregatorStatus& status, MetricsPage* page) {
  page->gauge("netsum_aggregator_info", "Always 1; version and dataplane",
              {{"version", status.version}, {"dataplane", status.dataplane}}, 1);
  page->gauge("netsum_aggregator_draining", "1 while the aggregator refuses new jobs", {},
              status.draining ? 1 : 0);
  page->gauge("netsum_aggregator_jobs", "Jobs joining, running or failed", {},
              static_cast<double>(status.jobs.size()));
  page->gauge("netsum_aggregator_slots", "Slots per core", {}, status.slots_per_core);
  page->gauge("netsum_aggregator_slots_in_use", "Slots in use, on the core that has the most", {},
              static_cast<double>(status.slots_per_core) - status.slots_free);
  add_counters(status, page);
  for (const AggregatorPortStatus& port : status.ports) add_port(port, page);
  // A failed job may have the same name and token as its successor until its members have left, but a series has one value.
  std::set<std::pair<std::string, std::string>> seen;
  for (auto job = status.jobs.rbegin(); job != status.jobs.rend(); ++job) {
    if (seen.emplace(job->name, job->id).second) add_job(*job, page);
  }
}

}  // namespace netsum
