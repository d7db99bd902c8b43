// A page of metrics in Prometheus' text format, built on request: the counters have no extra cost, and several parts of a
// process can add to the same families.
//
// Not thread-safe.
#ifndef NETSUM_SRC_TELEMETRY_METRICS_PAGE_H_
#define NETSUM_SRC_TELEMETRY_METRICS_PAGE_H_

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/time_histogram.h"

namespace netsum {

class MetricsPage {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Calls with one `name` make one family; `help` of the first counts. Names follow Prometheus' conventions:
  // base units, counters end in _total.
  void counter(std::string_view name, std::string_view help, const Labels& labels, double value);
  void gauge(std::string_view name, std::string_view help, const Labels& labels, double value);
  // In seconds.
  void histogram(std::string_view name, std::string_view help, const Labels& labels,
                 const TimeHistogram& times);
  // Of anything that `sum` adds up: counts[i] values are above the bound before, up to bounds[i]; the last count has no bound.
  void histogram(std::string_view name, std::string_view help, const Labels& labels,
                 const std::vector<double>& bounds, const std::vector<uint64_t>& counts, double sum);

  std::string text() const;

 private:
  prometheus::ClientMetric& add(std::string_view name, std::string_view help, prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
};

// Adds metrics that have labels in common to a page, which must outlive it.
class LabelledMetrics {
 public:
  LabelledMetrics(MetricsPage* page, MetricsPage::Labels labels) : page_(page), labels_(std::move(labels)) {}

  // For metrics with one more label.
  LabelledMetrics with(const char* label, const std::string& value) const;

  void counter(std::string_view name, std::string_view help, uint64_t value) const {
    page_->counter(name, help, labels_, static_cast<double>(value));
  }
  void gauge(std::string_view name, std::string_view help, double value) const {
    page_->gauge(name, help, labels_, value);
  }
  void histogram(std::string_view name, std::string_view help, const TimeHistogram& times) const {
    page_->histogram(name, help, labels_, times);
  }
  void histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                 const std::vector<uint64_t>& counts, double sum) const {
    page_->histogram(name, help, labels_, bounds, counts, sum);
  }

 private:
  MetricsPage* page_;
  MetricsPage::Labels labels_;
};

// Metrics of one direction of a link; `prefix` is that of their names.
void add_bursts(const std::string& prefix, const Bursts& bursts, const LabelledMetrics& metrics);

}  // namespace netsum

#endif  // NETSUM_SRC_TELEMETRY_METRICS_PAGE_H_
