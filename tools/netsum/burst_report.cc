#include "tools/netsum/burst_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "src/bursts/bins.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostPrinted = 8;            // streams
constexpr size_t kCorrelationBins = 1 << 14;  // products grow with their square
constexpr double kPeriodCorrelation = 0.3;    // below, it is chance
constexpr double kMultiples[] = {1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr std::pair<const char*, double> kQuantiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};

std::string time_text(int64_t ns) {
  if (ns < 1'000'000) return fmt::format("{:.4g} us", static_cast<double>(ns) * 1e-3);
  if (ns < 1'000'000'000) return fmt::format("{:.4g} ms", static_cast<double>(ns) * 1e-6);
  return fmt::format("{:.4g} s", static_cast<double>(ns) * 1e-9);
}

std::string stream_rate_text(double bytes_per_s) {
  const double bits = 8 * bytes_per_s;
  return bits >= 1e9 ? fmt::format("{:.4g} Gbit/s", bits * 1e-9) : fmt::format("{:.4g} Mbit/s", bits * 1e-6);
}

// The lag of the highest correlation after the correlation has first been negative: before, it falls from that of lag 0.
void find_period(BurstReport::Stream* stream, int64_t least_bin_ns) {
  const bursts::Log log = stream->of.log;
  const int64_t width = std::max(least_bin_ns, stream->span_ns / static_cast<int64_t>(kCorrelationBins) + 1);
  const Result<std::vector<uint64_t>> bins = bursts::bins_of(log, width, log.front().at_ns);
  if (!bins.ok()) return;
  const std::vector<double> correlation = bursts::autocorrelation(*bins, bins->size() / 2);
  const auto negative =
      std::find_if(correlation.begin(), correlation.end(), [](double each) { return each < 0; });
  const auto best = std::max_element(negative, correlation.end());
  if (best == correlation.end() || *best < kPeriodCorrelation) return;
  stream->period_ns = (best - correlation.begin()) * width;
  stream->period_correlation = *best;
}

BurstReport::Stream stream_report(BurstStream of, const BurstOptions& options) {
  BurstReport::Stream stream;
  stream.of = std::move(of);
  const bursts::Log log = stream.of.log;
  stream.bytes = bursts::total_bytes(log);
  stream.span_ns = bursts::span_ns(log);
  stream.mean = bursts::mean_rate(log, stream.span_ns);
  for (const int64_t tau : bursts::geometric_grid()) {
    if (tau > stream.span_ns) break;
    BurstReport::Window window{tau, bursts::envelope(log, tau), {}};
    if (stream.bytes > 0) window.peak_to_mean = bursts::peak_to_mean(window.bytes, tau, *stream.mean);
    stream.windows.push_back(window);
  }
  const bursts::BacklogCurve curve(log);
  const auto serve = [&](double rate) {
    const auto whole = static_cast<uint64_t>(std::llround(rate));
    stream.servers.push_back({whole, curve.at(whole)});
  };
  if (options.bits_per_s > 0) {
    for (int k = 1; k <= 16; ++k) serve(static_cast<double>(options.bits_per_s) / 8 * k / 16);
  } else if (stream.mean) {
    for (const double multiple : kMultiples) serve(multiple * *stream.mean);
  }
  for (const bursts::Burst& burst : bursts::bursts_of(log, options.gap_ns)) {
    stream.bursts.push_back(burst.bytes);
    stream.lengths.push_back(burst.to_ns - burst.from_ns);
  }
  std::sort(stream.bursts.begin(), stream.bursts.end());
  std::sort(stream.lengths.begin(), stream.lengths.end());
  stream.gaps = bursts::idle_gaps(log);
  find_period(&stream, options.bin_ns);
  return stream;
}

void find_synchronised(BurstReport* report) {
  if (report->options.bits_per_s == 0 || report->streams.size() < 2) return;
  report->from_ns = INT64_MAX;
  for (const auto& stream : report->streams)
    report->from_ns = std::min(report->from_ns, stream.of.log[0].at_ns);
  std::vector<bursts::PortBins> ports;
  const double full = static_cast<double>(report->options.bits_per_s) / 8 *
                      static_cast<double>(report->options.bin_ns) * 1e-9;
  for (const auto& stream : report->streams) {
    Result<std::vector<uint64_t>> bins =
        bursts::bins_of(stream.of.log, report->options.bin_ns, report->from_ns);
    if (!bins.ok()) throw UsageError("--bin-us: " + bins.status().message());
    report->bins = std::max(report->bins, bins->size());
    ports.push_back({std::move(bins).value(), full});
  }
  report->synchronised = bursts::synchronised_bins(ports);
}

template <typename T, typename Text>
std::string quantiles_text(const std::vector<T>& sorted, Text text) {
  std::string line;
  for (const auto& [name, q] : kQuantiles)
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, text(bursts::quantile(sorted, q)));
  return line;
}

template <typename T>
nlohmann::ordered_json quantiles_json(const std::vector<T>& sorted) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, q] : kQuantiles) {
    if (!sorted.empty()) json[name] = bursts::quantile(sorted, q);
  }
  return json;
}

std::string stream_text(const BurstReport::Stream& stream, const BurstOptions& options) {
  std::string text = fmt::format("\n{}: {} packets, {} bytes in {}{}\n", stream_name(stream),
                                 stream.of.packets, stream.bytes, time_text(stream.span_ns),
                                 stream.mean ? ", mean " + stream_rate_text(*stream.mean) : "");
  if (!stream.windows.empty())
    text += fmt::format("  {:>10}  {:>14}  {:>12}  rate\n", "window", "most bytes", "peak/mean");
  for (size_t i = 0; i < stream.windows.size(); i += 8) {
    const BurstReport::Window& window = stream.windows[i];
    text += fmt::format(
        "  {:>10}  {:>14}  {:>12}  {}\n", time_text(window.tau_ns), window.bytes,
        window.peak_to_mean ? fmt::format("{:.4g}", *window.peak_to_mean) : "-",
        stream_rate_text(static_cast<double>(window.bytes) / (static_cast<double>(window.tau_ns) * 1e-9)));
  }
  if (!stream.servers.empty()) text += fmt::format("  {:>14}  {:>18}\n", "served at", "backlog in bytes");
  for (const BurstReport::Server& server : stream.servers)
    text += fmt::format("  {:>14}  {:>18.0f}\n", stream_rate_text(static_cast<double>(server.bytes_per_s)),
                        std::ceil(server.backlog));
  text +=
      fmt::format("  bursts, apart by more than {}: {}\n", time_text(options.gap_ns), stream.bursts.size());
  text += "    bytes   " +
          quantiles_text(stream.bursts, [](uint64_t bytes) { return std::to_string(bytes); }) + "\n";
  text += "    length  " + quantiles_text(stream.lengths, time_text) + "\n";
  if (!stream.gaps.empty()) text += "  gaps      " + quantiles_text(stream.gaps, time_text) + "\n";
  if (stream.period_ns)
    text += fmt::format("  period    {} (correlation {:.2f})\n", time_text(*stream.period_ns),
                        stream.period_correlation);
  return text;
}

}  // namespace

std::string stream_name(const BurstReport::Stream& stream) {
  const BurstStream& of = stream.of;
  if (of.port.empty() && of.direction.empty()) return "all packets";
  return of.port + (of.port.empty() || of.direction.empty() ? "" : " ") + of.direction;
}

BurstReport burst_report(std::string file, BurstLog log, const BurstOptions& options) {
  BurstReport report;
  report.file = std::move(file);
  report.options = options;
  report.warnings = std::move(log.warnings);
  report.wall_offset_ns = log.wall_offset_ns;
  for (BurstStream& stream : log.streams) report.streams.push_back(stream_report(std::move(stream), options));
  find_synchronised(&report);
  return report;
}

std::string bursts_text(const BurstReport& report) {
  std::string text = fmt::format("{}: {} stream{}\n", report.file, report.streams.size(),
                                 report.streams.size() == 1 ? "" : "s, one for each port and direction");
  for (const std::string& warning : report.warnings) text += "warning: " + warning + "\n";
  for (size_t i = 0; i < std::min(report.streams.size(), kMostPrinted); ++i)
    text += stream_text(report.streams[i], report.options);
  if (report.streams.size() > kMostPrinted)
    text += fmt::format("\n{} further streams: see --json\n", report.streams.size() - kMostPrinted);
  if (report.synchronised)
    text += fmt::format(
        "\nsynchronised: {} of {} bins of {}, in which more than half of the streams have more than half "
        "of their link\n",
        report.synchronised->size(), report.bins, time_text(report.options.bin_ns));
  return text;
}

nlohmann::ordered_json bursts_json(const BurstReport& report) {
  Json streams = Json::array();
  for (const BurstReport::Stream& stream : report.streams) {
    Json windows = Json::array(), servers = Json::array();
    for (const BurstReport::Window& window : stream.windows)
      windows.push_back({{"tau_ns", window.tau_ns},
                         {"bytes", window.bytes},
                         {"peak_to_mean", window.peak_to_mean ? Json(*window.peak_to_mean) : Json()}});
    for (const BurstReport::Server& server : stream.servers)
      servers.push_back({{"bytes_per_s", server.bytes_per_s}, {"backlog_bytes", server.backlog}});
    streams.push_back({{"port", stream.of.port},
                       {"direction", stream.of.direction},
                       {"packets", stream.of.packets},
                       {"bytes", stream.bytes},
                       {"span_ns", stream.span_ns},
                       {"mean_bytes_per_s", stream.mean ? Json(*stream.mean) : Json()},
                       {"envelope", windows},
                       {"backlog", servers},
                       {"bursts", stream.bursts.size()},
                       {"burst_bytes", quantiles_json(stream.bursts)},
                       {"burst_ns", quantiles_json(stream.lengths)},
                       {"gap_ns", quantiles_json(stream.gaps)},
                       {"period_ns", stream.period_ns ? Json(*stream.period_ns) : Json()},
                       {"period_correlation", stream.period_ns ? Json(stream.period_correlation) : Json()}});
  }
  Json synchronised;
  if (report.synchronised)
    synchronised = {{"bin_ns", report.options.bin_ns},
                    {"from_ns", report.from_ns},
                    {"of", report.bins},
                    {"bins", *report.synchronised}};
  return {{"file", report.file},
          {"warnings", report.warnings},
          {"streams", streams},
          {"synchronised", synchronised}};
}

}  // namespace netsum::tool
