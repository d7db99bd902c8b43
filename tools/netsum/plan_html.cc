// The picture of netsum plan: one HTML file without scripts, styles or images from elsewhere. Names in a topology have
// no characters that HTML treats specially (plan_file.cc).
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "tools/netsum/plan_cases.h"

namespace netsum::tool {
namespace {

constexpr int kRow = 24;
constexpr int kLabel = 250;
constexpr int kBar = 420;

struct Bar {
  std::string label;
  double length = 0;  // 1 is the longest
  std::string value;
  const char* colour = "#4878a8";
};

std::string bars(const std::vector<Bar>& rows) {
  std::string svg =
      fmt::format("<svg width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"13\">\n",
                  kLabel + kBar + 340, kRow * rows.size() + 4);
  int y = 0;
  for (const Bar& row : rows) {
    const double width = std::max(1.0, kBar * row.length);
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>"
        "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{}\">{}</text>\n",
        kLabel - 8, y + 17, row.label, kLabel, y + 4, width, kRow - 6, row.colour, kLabel + width + 6, y + 17,
        row.value);
    y += kRow;
  }
  return svg + "</svg>\n";
}

std::string placements(const std::vector<PlanCase>& cases) {
  const double ring = cases.back().plan.ring_s_per_byte;
  double longest = ring;
  for (const PlanCase& each : cases) longest = std::max(longest, each.plan.s_per_byte);
  if (longest == 0) longest = 1;
  std::vector<Bar> rows = {{"ring", ring / longest, fmt::format("{:.4g} s", ring * kGigabyte), "#999999"}};
  for (const PlanCase& each : cases) {
    rows.push_back({each.name, each.plan.s_per_byte / longest,
                    fmt::format("{:.4g} s, {:.2f} x: {}", each.plan.s_per_byte * kGigabyte,
                                each.plan.speed_up, bottleneck_text(each.plan)),
                    &each == &cases.back() ? "#2e8b57" : "#4878a8"});
  }
  return bars(rows);
}

std::string links(const plan::Plan& plan) {
  std::vector<Bar> rows;
  for (const plan::LinkLoad& link : plan.links) {
    const double use = plan.s_per_byte > 0 ? link.s_per_byte / plan.s_per_byte : 0;
    rows.push_back({link.name, use, fmt::format("{:.4g} bytes, {:.0f} %", link.load * kGigabyte, 100 * use),
                    use >= 0.99 ? "#b85450" : "#4878a8"});
  }
  return bars(rows);
}

}  // namespace

std::string plan_html(const std::vector<PlanCase>& cases) {
  const std::string warning = plan_warning(cases.back());
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>netsum "
         "plan</title></head>\n"
         "<body style=\"font-family: sans-serif\">\n<h1>Where to put an aggregator</h1>\n"
         "<p>Computed from the rates of the links, without headers, latency and processor time.</p>\n" +
         (warning.empty() ? "" : "<p><b>Warning:</b> " + warning + "</p>\n") +
         "<h2>Time for a gigabyte of gradient</h2>\n" + placements(cases) +
         "<h2>Links of the best mix: bytes for a gigabyte of gradient, and how long the link is busy</h2>\n" +
         links(cases.back().plan) + "</body></html>\n";
}

}  // namespace netsum::tool
