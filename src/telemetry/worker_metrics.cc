#include "src/telemetry/worker_metrics.h"

#include <algorithm>
#include <map>

namespace netsum {

namespace {

// Places without wrong sums have their series, too, so that its first increase is seen.
void add_wrong_sums(const WorkerView& worker, const MetricsPage::Labels& labels, MetricsPage* page) {
  std::map<std::string, uint64_t> results;
  for (const std::string& place : worker.places) results[place];
  for (const CommunicatorStats::WrongSums& wrong : worker.stats.wrong_sums)
    results[wrong.aggregator] += wrong.results;
  for (const auto& [place, count] : results) {
    MetricsPage::Labels more = labels;
    more.emplace_back("aggregator", place);
    page->counter("netsum_worker_sums_refused_total", "Results with wrong sums, which were not taken", more,
                  static_cast<double>(count));
  }
}

}  // namespace

void add_worker_metrics(const WorkerView& worker, MetricsPage* page) {
  const CommunicatorStats& stats = worker.stats;
  const MetricsPage::Labels labels = {{"job_name", worker.job}, {"rank", std::to_string(worker.rank)}};
  const auto with = [&](const char* label, const std::string& value) {
    MetricsPage::Labels more = labels;
    more.emplace_back(label, value);
    return more;
  };
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    page->counter(name, help, labels, static_cast<double>(value));
  };
  page->gauge("netsum_worker_info", "Always 1; what protects the sums: packet, both or sum",
              with("verify", worker.verify), 1);
  page->gauge("netsum_worker_ready", "1 when every rank has joined and nothing has failed", labels,
              worker.ready ? 1 : 0);
  page->gauge("netsum_worker_world_size", "Ranks of the job", labels, worker.world_size);
  counter("netsum_worker_operations_submitted_total", "All-reduces submitted", stats.operations_submitted);
  page->counter("netsum_worker_operations_total", "All-reduces that have ended", with("outcome", "ok"),
                static_cast<double>(stats.operations));
  page->counter("netsum_worker_operations_total", "All-reduces that have ended", with("outcome", "failed"),
                static_cast<double>(stats.operations_failed));
  counter("netsum_worker_gradient_bytes_total", "Bytes of tensors submitted", stats.gradient_bytes);
  counter("netsum_worker_bytes_sent_total", "Bytes sent, with UDP, IP and Ethernet headers",
          stats.bytes_sent);
  counter("netsum_worker_bytes_received_total", "Bytes received, with UDP, IP and Ethernet headers",
          stats.bytes_received);
  counter("netsum_worker_packets_sent_total", "Packets sent", stats.packets_sent);
  counter("netsum_worker_packets_received_total", "Packets received", stats.packets_received);
  counter("netsum_worker_retransmissions_total", "Contributions retransmitted", stats.retransmissions);
  counter("netsum_worker_probes_total", "Probes sent because a result was overdue", stats.probes);
  counter("netsum_worker_share_changes_total", "Corrections of the stripes' shares of the chunks",
          stats.share_changes);
  counter("netsum_worker_zero_chunks_total",
          "Chunks for which no data was sent, because they were zero on all ranks", stats.zero_chunks);
  counter("netsum_worker_scales_predicted_total", "Chunks whose data was sent with predicted scales",
          stats.scales_predicted);
  counter("netsum_worker_scales_mispredicted_total",
          "Chunks that were sent again because their scales were predicted wrong", stats.scales_mispredicted);
  counter("netsum_worker_sums_verified_total", "Results whose sums have been verified", stats.sums_verified);
  add_wrong_sums(worker, labels, page);
  for (const CommunicatorStats::Drop& drop : stats.drops) {
    page->counter("netsum_worker_packets_dropped_total", "Packets dropped, by the rule that they broke",
                  with("reason", drop.reason), static_cast<double>(drop.packets));
  }
  page->gauge("netsum_worker_smoothed_round_trip_seconds",
              "The estimate of the protocol's timers, of the slowest stripe", labels, stats.srtt_us * 1e-6);
  page->histogram("netsum_worker_round_trip_seconds",
                  "From contribution to result, if no packet was lost and no rank was late", labels,
                  stats.round_trip);
  page->histogram("netsum_worker_operation_seconds", "From the submission of a collective to its end",
                  with("outcome", "ok"), stats.completed);
  page->histogram("netsum_worker_operation_seconds", "From the submission of a collective to its end",
                  with("outcome", "failed"), stats.failed);
  for (int peer = 0; peer < worker.world_size; ++peer) {
    const bool waits =
        std::find(stats.waiting_for.begin(), stats.waiting_for.end(), peer) != stats.waiting_for.end();
    page->gauge("netsum_worker_waiting_for",
                "1 for a rank that has not joined, or that the oldest round waits for",
                with("peer", std::to_string(peer)), waits ? 1 : 0);
  }
  counter("netsum_worker_shard_bytes_received_total", "Bytes received by this rank's embedded shard",
          stats.shard_bytes_received);
  counter("netsum_worker_shard_bytes_sent_total", "Bytes sent by this rank's embedded shard",
          stats.shard_bytes_sent);
}

}  // namespace netsum
