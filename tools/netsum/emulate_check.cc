#include "tools/netsum/emulate_check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "src/base/rng.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;

// As a share of a step: what ghosts may differ by, and what real ranks may.
constexpr double kMostDifference = 0.01, kMostNoise = 0.005;
constexpr int kResamples = 2'000;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double step_of(const Json& report) {
  return report.at("step_seconds").at("median");
}

// Of all processes that netsum has started for the ranks.
double cost_of(const Json& report, const char* what) {
  double cost = 0;
  for (const char* kind : {"ghosts", "real_processes"})
    if (report.contains(kind)) cost += report[kind].at(what).get<double>();
  return cost;
}

Json json_of(const MedianInterval& interval) {
  return {{"median", interval.median}, {"low", interval.low}, {"high", interval.high}};
}

}  // namespace

MedianInterval median_interval(const std::vector<double>& values, uint64_t seed) {
  Rng rng(seed);
  std::vector<double> medians, sample(values.size());
  for (int i = 0; i < kResamples; ++i) {
    for (double& one : sample) one = values[rng.below(values.size())];
    medians.push_back(median_of(sample));
  }
  std::sort(medians.begin(), medians.end());
  const auto at = [&](double share) {
    return medians[static_cast<size_t>(std::floor(share * static_cast<double>(kResamples - 1)))];
  };
  return {median_of(values), at(0.025), at(0.975)};
}

Json check_report(const std::vector<CheckRound>& rounds) {
  std::vector<double> differences, noise, lateness, of_ghost;
  // With ghosts, and of real ranks.
  std::vector<double> cpu[2], memory[2];
  Json steps = Json::array();
  for (const CheckRound& round : rounds) {
    const double real = step_of(round.real), ghosts = step_of(round.ghosts),
                 again = step_of(round.real_again);
    differences.push_back(ghosts / (round.replays_real ? real : (real + again) / 2) - 1);
    noise.push_back(again / real - 1);
    for (const bool of_real : {false, true}) {
      cpu[of_real].push_back(cost_of(of_real ? round.real : round.ghosts, "cpu_seconds"));
      memory[of_real].push_back(cost_of(of_real ? round.real : round.ghosts, "peak_bytes"));
    }
    const Json& all = round.ghosts.at("ghosts");
    lateness.push_back(all.at("lateness_share"));
    of_ghost.push_back(all.at("peak_bytes").get<double>() / 1048576 /
                       std::max(1, all.at("count").get<int>()));
    steps.push_back({{"real", real},
                     {"ghosts", ghosts},
                     {"real_again", again},
                     {"follows_rank_0", round.ghosts.value("follows_rank_0", false)}});
  }
  const MedianInterval difference = median_interval(differences), among_real = median_interval(noise);
  const bool can_tell = std::abs(among_real.median) < kMostNoise && difference.half_width() < kMostDifference;
  return {{"rounds", rounds.size()},
          {"steps", steps},
          {"difference", json_of(difference)},
          {"among_real", json_of(among_real)},
          {"cpu_seconds", {{"ghosts", median_of(cpu[0])}, {"real", median_of(cpu[1])}}},
          {"memory_bytes", {{"ghosts", median_of(memory[0])}, {"real", median_of(memory[1])}}},
          {"cpu_share", median_of(cpu[0]) / median_of(cpu[1])},
          {"memory_share", median_of(memory[0]) / median_of(memory[1])},
          {"ghost_mib", median_of(of_ghost)},
          {"lateness_share", median_of(lateness)},
          {"verdict", !can_tell                                       ? "unknown"
                      : std::abs(difference.median) < kMostDifference ? "same"
                                                                      : "different"}};
}

std::string check_text(const Json& report) {
  const auto percent = [&](const char* name) {
    const Json& of = report.at(name);
    return fmt::format("{:+.2f} % ({:+.2f} % to {:+.2f} %)", 100 * of.at("median").get<double>(),
                       100 * of.at("low").get<double>(), 100 * of.at("high").get<double>());
  };
  const std::string verdict = report.at("verdict");
  return fmt::format(
      "with ghosts  {} of a step of real ranks, in {} rounds\n"
      "among real   {} from one run to the next\n"
      "cost         {:.2f} CPU s of {:.2f} ({:.0f} %) and {:.0f} MiB of {:.0f} ({:.0f} %) of real ranks; a "
      "ghost "
      "has {:.1f} MiB\n"
      "lateness     p99 {:.3f} % of a step\n"
      "verdict      {}\n",
      percent("difference"), report.at("rounds").get<size_t>(), percent("among_real"),
      report.at("cpu_seconds").at("ghosts").get<double>(), report.at("cpu_seconds").at("real").get<double>(),
      100 * report.at("cpu_share").get<double>(),
      report.at("memory_bytes").at("ghosts").get<double>() / 1048576,
      report.at("memory_bytes").at("real").get<double>() / 1048576,
      100 * report.at("memory_share").get<double>(), report.at("ghost_mib").get<double>(),
      100 * report.at("lateness_share").get<double>(),
      verdict == "same" ? "a job with ghosts takes as long as one of real ranks, to 1 %"
      : verdict == "different"
          ? "a job with ghosts does not take as long as one of real ranks"
          : "this machine cannot tell: its real runs differ by more than 0.5 %, or the interval is too "
            "wide. Take more rounds, longer steps, or an idle machine");
}

}  // namespace netsum::tool
