#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "netsum/version.h"
#include "tools/netsum/doctor_rates.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostColumns = 12;  // of the table of pairs

// As a topology file takes it.
std::string topology_rate_text(double bps) {
  if (bps >= 1e9) return fmt::format("{:.4g}Gbit/s", bps / 1e9);
  if (bps >= 1e6) return fmt::format("{:.4g}Mbit/s", bps / 1e6);
  return fmt::format("{:.4g}kbit/s", bps / 1e3);
}

}  // namespace

plan::Link RateSurvey::link(size_t host) const {
  plan::Link link;
  for (size_t other = 0; other < names.size(); ++other) {
    link.in_bps = std::max(link.in_bps, pairs[other][host]);
    link.out_bps = std::max(link.out_bps, pairs[host][other]);
  }
  if (!fan_in.empty()) {
    link.in_bps = std::max(link.in_bps, fan_in[host]);
    link.out_bps = std::max(link.out_bps, fan_out[host]);
  }
  return link;
}

Json RateSurvey::json() const {
  Json hosts = Json::array(), places = Json::array(), pair_list = Json::array(), fans = Json::array();
  for (size_t host = 0; host < names.size(); ++host) {
    const plan::Link found = link(host);
    (host < names.size() - spares ? hosts : places)
        .push_back(
            {{"name", names[host]},
             {"link",
              {{"in", topology_rate_text(found.in_bps)}, {"out", topology_rate_text(found.out_bps)}}}});
    for (size_t to = 0; to < names.size(); ++to) {
      if (to == host) continue;
      pair_list.push_back({{"from", names[host]},
                           {"to", names[to]},
                           {"bits_per_second", pairs[host][to]},
                           {"lost", lost[host][to]}});
    }
    if (!fan_in.empty())
      fans.push_back({{"host", names[host]}, {"fan_in", fan_in[host]}, {"fan_out", fan_out[host]}});
  }
  return {{"hosts", hosts},
          {"places", places},
          {"measured", {{"version", NETSUM_VERSION_STRING}, {"pairs", pair_list}, {"fans", fans}}}};
}

std::string RateSurvey::text() const {
  size_t width = 4;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text = fmt::format("{:<{}}  {:>12}  {:>12}  {}\n", "HOST", width, "IN", "OUT", "ROLE");
  for (size_t host = 0; host < names.size(); ++host) {
    const plan::Link found = link(host);
    text +=
        fmt::format("{:<{}}  {:>12}  {:>12}  {}\n", names[host], width, topology_rate_text(found.in_bps),
                    topology_rate_text(found.out_bps), host < names.size() - spares ? "rank" : "spare host");
  }
  if (names.size() > kMostColumns) return text + "\nThe rates of all pairs are in the output of --json.\n";
  text += fmt::format("\n{:<{}}", "FROM, TO", std::max<size_t>(width, 8));
  for (size_t to = 0; to < names.size(); ++to) text += fmt::format("  {:>12}", names[to].substr(0, 12));
  for (size_t from = 0; from < names.size(); ++from) {
    text += fmt::format("\n{:<{}}", names[from], std::max<size_t>(width, 8));
    for (size_t to = 0; to < names.size(); ++to)
      text += fmt::format("  {:>12}", from == to ? "-" : topology_rate_text(pairs[from][to]));
  }
  return text + "\n";
}

}  // namespace netsum::tool
