// The page of netsum bursts: one HTML file without scripts or files from elsewhere.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "src/bursts/bursts.h"
#include "tools/netsum/burst_report.h"
#include "tools/netsum/html.h"

namespace netsum::tool {
namespace {

constexpr const char* kStreamColours[] = {"#4878a8", "#b85450", "#2e8b57", "#9b59b6",
                                          "#e08a1e", "#16808a", "#c0398b", "#6b6b1e"};
constexpr size_t kMostListedBins = 100;  // synchronised bins
constexpr int kShares = 100;             // points of a distribution

using Points = std::vector<std::pair<double, double>>;

// Decades that hold all values above 0.
struct Axis {
  int from = 0, to = 1;

  void include(double value, bool first) {
    const double decade = std::log10(value);
    from =
        first ? static_cast<int>(std::floor(decade)) : std::min(from, static_cast<int>(std::floor(decade)));
    to = std::max(from + 1, first ? static_cast<int>(std::ceil(decade))
                                  : std::max(to, static_cast<int>(std::ceil(decade))));
  }
  double share(double value) const { return (std::log10(value) - from) / (to - from); }
};

// Curves over two logarithmic axes; points at or below 0 are left out.
std::string plot(const std::string& title, const std::string& x_name, const std::string& y_name,
                 const std::vector<Points>& curves) {
  constexpr double kWidth = 560, kHeight = 320, kLeft = 70, kBottom = 40, kTop = 10;
  Axis x, y;
  bool first = true;
  for (const Points& points : curves) {
    for (const auto& [px, py] : points) {
      if (px <= 0 || py <= 0) continue;
      x.include(px, first);
      y.include(py, first);
      first = false;
    }
  }
  std::string page = "<h2>" + title + "</h2>\n";
  if (first) return page + "<p>Nothing to draw.</p>\n";
  const double right = kLeft + kWidth, low = kTop + kHeight;
  const auto x_of = [&](double value) { return kLeft + kWidth * x.share(value); };
  const auto y_of = [&](double value) { return low - kHeight * y.share(value); };
  page +=
      fmt::format("<svg width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n",
                  right + 30, low + kBottom);
  for (int decade = x.from; decade <= x.to; ++decade) {
    const double at = x_of(std::pow(10, decade));
    page += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#dddddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        at, kTop, low, low + 15, std::pow(10, decade));
  }
  for (int decade = y.from; decade <= y.to; ++decade) {
    const double at = y_of(std::pow(10, decade));
    page += fmt::format(
        "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#dddddd\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        kLeft, at, right, kLeft - 4, at + 4, std::pow(10, decade));
  }
  page += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>"
      "<text transform=\"translate(12,{}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      kLeft + kWidth / 2, low + 32, x_name, kTop + kHeight / 2, y_name);
  for (size_t i = 0; i < curves.size(); ++i) {
    std::string points;
    for (const auto& [px, py] : curves[i]) {
      if (px > 0 && py > 0) points += fmt::format("{:.1f},{:.1f} ", x_of(px), y_of(py));
    }
    page += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                        points, kStreamColours[i]);
  }
  return page + "</svg>\n";
}

// The share of values that are larger, by value.
template <typename T>
Points distribution(const std::vector<T>& sorted, double unit) {
  Points points;
  for (int i = 0; i < kShares && !sorted.empty(); ++i) {
    const double share = static_cast<double>(i) / kShares;
    points.emplace_back(static_cast<double>(bursts::quantile(sorted, share)) * unit, 1 - share);
  }
  return points;
}

}  // namespace

std::string bursts_html(const BurstReport& report) {
  const size_t drawn = std::min(report.streams.size(), std::size(kStreamColours));
  std::vector<Points> envelopes(drawn), peaks(drawn), backlogs(drawn), sizes(drawn), gaps(drawn);
  std::string key;
  for (size_t i = 0; i < drawn; ++i) {
    const BurstReport::Stream& stream = report.streams[i];
    for (const BurstReport::Window& window : stream.windows) {
      const double tau_us = static_cast<double>(window.tau_ns) * 1e-3;
      envelopes[i].emplace_back(tau_us, static_cast<double>(window.bytes));
      peaks[i].emplace_back(tau_us, window.peak_to_mean.value_or(0));
    }
    for (const BurstReport::Server& server : stream.servers)
      backlogs[i].emplace_back(static_cast<double>(server.bytes_per_s) * 8e-6, server.backlog);
    sizes[i] = distribution(stream.bursts, 1);
    gaps[i] = distribution(stream.gaps, 1e-3);
    key += fmt::format("<span style=\"color: {}\">&#9632;</span> {} &nbsp; ", kStreamColours[i],
                       html_escaped(stream_name(stream)));
  }
  if (drawn < report.streams.size())
    key += fmt::format("{} further streams are not drawn", report.streams.size() - drawn);
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>netsum bursts</title></head>\n"
      "<body style=\"font-family: sans-serif\">\n<h1>Bursts</h1>\n<p>" +
      key + "</p>\n";
  page += plot("Envelope: the most bytes in any window", "window, us", "bytes", envelopes);
  page += plot("Peak to mean: the same over what the mean rate brings", "window, us", "ratio", peaks);
  page += plot("Backlog of a server", "rate, Mbit/s", "bytes", backlogs);
  page += plot("Sizes of bursts", "bytes", "share that is larger", sizes);
  page += plot("Gaps between packets", "us", "share that is longer", gaps);
  if (report.synchronised) {
    page += fmt::format(
        "<h2>Synchronised bins</h2>\n<p>{} of {} bins of {} us. Milliseconds from the first bin: ",
        report.synchronised->size(), report.bins, report.options.bin_ns / 1000);
    for (size_t i = 0; i < std::min(report.synchronised->size(), kMostListedBins); ++i)
      page += fmt::format(
          "{}{:.1f}", i > 0 ? ", " : "",
          static_cast<double>((*report.synchronised)[i]) * static_cast<double>(report.options.bin_ns) * 1e-6);
    page += report.synchronised->size() > kMostListedBins ? ", ...</p>\n" : "</p>\n";
  }
  return page + "<pre>" + html_escaped(bursts_text(report)) + "</pre>\n</body></html>\n";
}

}  // namespace netsum::tool
