#include "netsum/compression_metrics.h"

#include <mutex>
#include <utility>

#include "src/telemetry/metrics_endpoint.h"
#include "src/telemetry/metrics_page.h"

namespace netsum {
namespace {

void add_to(const LabelledMetrics& metrics, const CompressionSnapshot& now) {
  for (const CompressionSnapshot::Level& level : now.levels) {
    const LabelledMetrics of_level = metrics.with("level", level.name);
    of_level.gauge("netsum_worker_compression_buckets", "Buckets of gradients, by their present level",
                   static_cast<double>(level.buckets));
    of_level.counter("netsum_worker_compression_bucket_steps_total",
                     "Buckets sent, by the level that they had", level.bucket_steps);
  }
  metrics.counter("netsum_worker_compression_steps_total", "Steps that the controller has decided on",
                  now.steps);
  metrics.counter("netsum_worker_compression_changes_total", "Changes of levels", now.changes);
  metrics.counter("netsum_worker_compression_gradient_bytes_total",
                  "Bytes of the buckets without compression", now.gradient_bytes);
  metrics.counter("netsum_worker_compression_sent_bytes_total",
                  "Bytes of the buckets as they have travelled, without headers", now.sent_bytes);
  metrics.gauge("netsum_worker_compression_predicted_step_seconds",
                "The step as predicted with the present levels", now.predicted_step_s);
  metrics.gauge("netsum_worker_compression_uncompressed_step_seconds",
                "The step as predicted without compression", now.uncompressed_step_s);
  metrics.gauge("netsum_worker_compression_measured_step_seconds", "The last step", now.measured_step_s);
  metrics.gauge("netsum_worker_compression_network_bits_per_second",
                "The network's rate as the controller knows it", now.bits_per_second);
}

class Metrics : public CompressionMetrics {
 public:
  Metrics(std::string job, int rank, int controller)
      : labels_{{"job_name", std::move(job)},
                {"rank", std::to_string(rank)},
                {"controller", std::to_string(controller)}} {}

  Status serve(const std::string& address) {
    auto source = MetricsSource::open(address, {[this](MetricsPage* page) {
                                                  const std::lock_guard lock(mutex_);
                                                  add_to({page, labels_}, now_);
                                                },
                                                [] { return std::string(); }});
    if (!source.ok()) return source.status();
    source_ = std::move(source).value();
    return {};
  }

  void publish(const CompressionSnapshot& snapshot) override {
    CompressionSnapshot next = snapshot;
    const std::lock_guard lock(mutex_);
    std::swap(now_, next);
  }

 private:
  const MetricsPage::Labels labels_;
  std::mutex mutex_;  // guards now_
  CompressionSnapshot now_;
  std::unique_ptr<MetricsSource> source_;  // uses the members above
};

}  // namespace

Result<std::unique_ptr<CompressionMetrics>> CompressionMetrics::open(const std::string& address,
                                                                     const std::string& job, int rank,
                                                                     int controller) {
  auto metrics = std::make_unique<Metrics>(job, rank, controller);
  if (Status status = metrics->serve(address); !status.ok()) return status;
  return std::unique_ptr<CompressionMetrics>(std::move(metrics));
}

}  // namespace netsum
