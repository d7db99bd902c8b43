#include "src/telemetry/metrics_page.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

namespace netsum {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric& MetricsPage::add(std::string_view name, std::string_view help, MetricType type,
                               const Labels& labels) {
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&](const MetricFamily& known) { return known.name == name; });
  if (family == families_.end()) {
    family = families_.insert(families_.end(), MetricFamily{std::string(name), std::string(help), type, {}});
  }
  ClientMetric& metric = family->metric.emplace_back();
  for (const auto& [label, value] : labels) metric.label.push_back({label, value});
  return metric;
}

void MetricsPage::counter(std::string_view name, std::string_view help, const Labels& labels, double value) {
  add(name, help, MetricType::Counter, labels).counter.value = value;
}

void MetricsPage::gauge(std::string_view name, std::string_view help, const Labels& labels, double value) {
  add(name, help, MetricType::Gauge, labels).gauge.value = value;
}

void MetricsPage::histogram(std::string_view name, std::string_view help, const Labels& labels,
                            const TimeHistogram& times) {
  ClientMetric::Histogram& histogram = add(name, help, MetricType::Histogram, labels).histogram;
  uint64_t so_far = 0;
  for (const TimeHistogram::Bucket& bucket : times.buckets) {
    so_far += bucket.count;
    const double bound_s = bucket.up_to_us == INT64_MAX ? std::numeric_limits<double>::infinity()
                                                        : static_cast<double>(bucket.up_to_us) * 1e-6;
    histogram.bucket.push_back({so_far, bound_s});
  }
  // Counters change while they are read. The total is the sum of what was read, so that the page is consistent.
  histogram.sample_count = so_far;
  histogram.sample_sum = static_cast<double>(times.sum_us) * 1e-6;
}

std::string MetricsPage::text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

LabelledMetrics LabelledMetrics::with(const char* label, const std::string& value) const {
  LabelledMetrics more = *this;
  more.labels_.emplace_back(label, value);
  return more;
}

}  // namespace netsum
