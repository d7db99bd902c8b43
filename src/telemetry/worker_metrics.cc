#include "src/telemetry/worker_metrics.h"

#include <algorithm>
#include <map>

namespace netsum {

namespace {

// Places without wrong sums have their series, too, so that its first increase is seen.
void add_wrong_sums(const WorkerView& worker, const LabelledMetrics& metrics) {
  std::map<std::string, uint64_t> results;
  for (const std::string& place : worker.places) results[place];
  for (const CommunicatorStats::WrongSums& wrong : worker.stats.wrong_sums)
    results[wrong.aggregator] += wrong.results;
  for (const auto& [place, count] : results) {
    metrics.with("aggregator", place)
        .counter("netsum_worker_sums_refused_total", "Results with wrong sums, which were not taken", count);
  }
}

}  // namespace

void add_worker_metrics(const WorkerView& worker, MetricsPage* page) {
  const CommunicatorStats& stats = worker.stats;
  const LabelledMetrics metrics(page, {{"job_name", worker.job}, {"rank", std::to_string(worker.rank)}});
  metrics.with("verify", worker.verify)
      .gauge("netsum_worker_info", "Always 1; what protects the sums: packet, both or sum", 1);
  metrics.gauge("netsum_worker_ready", "1 when every rank has joined and nothing has failed",
                worker.ready ? 1 : 0);
  metrics.gauge("netsum_worker_world_size", "Ranks of the job", worker.world_size);
  metrics.counter("netsum_worker_operations_submitted_total", "All-reduces submitted",
                  stats.operations_submitted);
  metrics.with("outcome", "ok")
      .counter("netsum_worker_operations_total", "All-reduces that have ended", stats.operations);
  metrics.with("outcome", "failed")
      .counter("netsum_worker_operations_total", "All-reduces that have ended", stats.operations_failed);
  metrics.counter("netsum_worker_gradient_bytes_total", "Bytes of tensors submitted", stats.gradient_bytes);
  metrics.counter("netsum_worker_bytes_sent_total", "Bytes sent, with UDP, IP and Ethernet headers",
                  stats.bytes_sent);
  metrics.counter("netsum_worker_bytes_received_total", "Bytes received, with UDP, IP and Ethernet headers",
                  stats.bytes_received);
  metrics.counter("netsum_worker_packets_sent_total", "Packets sent", stats.packets_sent);
  metrics.counter("netsum_worker_packets_received_total", "Packets received", stats.packets_received);
  metrics.counter("netsum_worker_retransmissions_total", "Contributions retransmitted",
                  stats.retransmissions);
  metrics.counter("netsum_worker_sends_refused_total", "Packets that this host's kernel did not take",
                  stats.sends_refused);
  metrics.counter("netsum_worker_probes_total", "Probes sent because a result was overdue", stats.probes);
  metrics.counter("netsum_worker_share_changes_total", "Corrections of the stripes' shares of the chunks",
                  stats.share_changes);
  metrics.counter("netsum_worker_zero_chunks_total",
                  "Chunks for which no data was sent, because they were zero on all ranks",
                  stats.zero_chunks);
  metrics.counter("netsum_worker_scales_predicted_total", "Chunks whose data was sent with predicted scales",
                  stats.scales_predicted);
  metrics.counter("netsum_worker_scales_mispredicted_total",
                  "Chunks that were sent again because their scales were predicted wrong",
                  stats.scales_mispredicted);
  metrics.counter("netsum_worker_sums_verified_total", "Results whose sums have been verified",
                  stats.sums_verified);
  add_wrong_sums(worker, metrics);
  for (const CommunicatorStats::Drop& drop : stats.drops) {
    metrics.with("reason", drop.reason)
        .counter("netsum_worker_packets_dropped_total", "Packets dropped, by the rule that they broke",
                 drop.packets);
  }
  metrics.gauge("netsum_worker_smoothed_round_trip_seconds",
                "The estimate of the protocol's timers, of the slowest stripe", stats.srtt_us * 1e-6);
  metrics.histogram("netsum_worker_round_trip_seconds",
                    "From contribution to result, if no packet was lost and no rank was late",
                    stats.round_trip);
  metrics.with("outcome", "ok")
      .histogram("netsum_worker_operation_seconds", "From the submission of a collective to its end",
                 stats.completed);
  metrics.with("outcome", "failed")
      .histogram("netsum_worker_operation_seconds", "From the submission of a collective to its end",
                 stats.failed);
  for (int peer = 0; peer < worker.world_size; ++peer) {
    const bool waits =
        std::find(stats.waiting_for.begin(), stats.waiting_for.end(), peer) != stats.waiting_for.end();
    metrics.with("peer", std::to_string(peer))
        .gauge("netsum_worker_waiting_for",
               "1 for a rank that has not joined, or that the oldest round waits for", waits ? 1 : 0);
  }
  add_bursts("netsum_worker_", stats.received, metrics.with("direction", "in"));
  add_bursts("netsum_worker_", stats.sent, metrics.with("direction", "out"));
  metrics.counter("netsum_worker_shard_bytes_received_total", "Bytes received by this rank's embedded shard",
                  stats.shard_bytes_received);
  metrics.counter("netsum_worker_shard_bytes_sent_total", "Bytes sent by this rank's embedded shard",
                  stats.shard_bytes_sent);
}

}  // namespace netsum
