#include "src/telemetry/metrics_page.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdio>
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
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
  for (const TimeHistogram::Bucket& bucket : times.buckets) {
    counts.push_back(bucket.count);
    if (bucket.up_to_us != INT64_MAX) bounds.push_back(static_cast<double>(bucket.up_to_us) * 1e-6);
  }
  histogram(name, help, labels, bounds, counts, static_cast<double>(times.sum_us) * 1e-6);
}

void MetricsPage::histogram(std::string_view name, std::string_view help, const Labels& labels,
                            const std::vector<double>& bounds, const std::vector<uint64_t>& counts,
                            double sum) {
  auto& histogram = add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  uint64_t so_far = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    so_far += counts[i];
    histogram.bucket.push_back(
        {so_far, i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
  }
  // Counters change while they are read. The total is the sum of what was read, so that the page is consistent.
  histogram.sample_count = so_far;
  histogram.sample_sum = sum;
}

std::string MetricsPage::text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

LabelledMetrics LabelledMetrics::with(const char* label, const std::string& value) const {
  LabelledMetrics more = *this;
  more.labels_.emplace_back(label, value);
  return more;
}

void add_bursts(const std::string& prefix, const Bursts& bursts, const LabelledMetrics& metrics) {
  const size_t rates = bursts.backlog_bytes.size();
  for (size_t i = 0; i < rates; ++i) {
    char share[16];
    std::snprintf(share, sizeof share, "%g", static_cast<double>(i + 1) / static_cast<double>(rates));
    metrics.with("rate", share)
        .gauge(prefix + "backlog_bytes",
               "Longest queue since start of a server of this share of the link's rate",
               static_cast<double>(bursts.backlog_bytes[i]));
  }
  constexpr const char* kLargest = "Most bytes of frames in a window of this length since start";
  metrics.with("window", "1ms")
      .gauge(prefix + "largest_window_bytes", kLargest, static_cast<double>(bursts.largest_ms_bytes));
  metrics.with("window", "10ms")
      .gauge(prefix + "largest_window_bytes", kLargest, static_cast<double>(bursts.largest_10ms_bytes));
  if (bursts.milliseconds.empty()) return;
  std::vector<double> bounds;
  for (size_t i = 0; i + 1 < bursts.milliseconds.size(); ++i)
    bounds.push_back(static_cast<double>(uint64_t{1024} << i));
  metrics.histogram(prefix + "millisecond_bytes", "Bytes of frames in a millisecond, of those with any",
                    bounds, bursts.milliseconds, static_cast<double>(bursts.bytes));
}

}  // namespace netsum
