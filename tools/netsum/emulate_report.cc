#include "tools/netsum/emulate_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "tools/netsum/html.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;

// Ghosts are late by milliseconds in such a share of their operations.
constexpr double kMuchStolen = 0.005;

// Ascending values; `share` in [0, 1].
template <typename T>
T quantile(std::vector<T> values, double share) {
  if (values.empty()) return T{};
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(
                                       std::floor(share * static_cast<double>(values.size() - 1) + 0.5));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

int64_t dilated(int64_t time, double dilate) {
  return dilate == 1 ? time : std::llround(static_cast<double>(time) / dilate);
}

std::vector<int64_t> times_of(const Json& json, double dilate) {
  std::vector<int64_t> times;
  for (const Json& one : json) times.push_back(one.is_null() ? 0 : dilated(one.get<int64_t>(), dilate));
  return times;
}

// Values as a curve from left to right, from 0 up.
std::string curve(const std::string& title, const std::string& x_name, const std::vector<double>& values) {
  constexpr double kWidth = 640, kHeight = 240, kLeft = 70, kTop = 12, kBottom = 30;
  const double most = *std::max_element(values.begin(), values.end());
  std::string points;
  for (size_t i = 0; i < values.size(); ++i)
    points +=
        fmt::format("{:.1f},{:.1f} ",
                    kLeft + kWidth * (static_cast<double>(i) + 0.5) / static_cast<double>(values.size()),
                    kTop + kHeight * (1 - values[i] / most));
  return fmt::format(
      "<h2>{}</h2>\n<svg width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888888\"/>\n"
      "<polyline points=\"{}\" fill=\"none\" stroke=\"#4878a8\" stroke-width=\"2\"/>\n"
      "<text x=\"4\" y=\"{}\">{}</text><text x=\"4\" y=\"{}\">0</text><text x=\"{}\" "
      "y=\"{}\">{}</text>\n</svg>\n",
      title, kLeft + kWidth + 10, kTop + kHeight + kBottom, kLeft, kTop, kWidth, kHeight, points, kTop + 10,
      seconds_text(most), kTop + kHeight, kLeft, kTop + kHeight + 20, x_name);
}

}  // namespace

Status EmulateReport::add_result(const std::string& path) {
  std::ifstream in(path);
  try {
    const Json json = Json::parse(in);
    const bool is_real = json.at("is_real");
    (is_real ? real_cpu_seconds_ : ghost_cpu_seconds_) += json.at("cpu_seconds").get<double>();
    (is_real ? real_peak_bytes_ : ghost_peak_bytes_) += json.at("peak_bytes").get<uint64_t>();
    for (const Json& one : json.at("ranks")) {
      const uint64_t begin = one.at("in_first_step");
      const std::vector<int64_t> submitted_us = times_of(one.at("submitted_us"), plan_.dilate);
      Rank& rank = ranks_[one.at("rank")];
      rank.done_us = times_of(one.at("done_us"), plan_.dilate);
      for (const uint64_t id : one.at("of_all")) {
        if (id < submitted_us.size()) rank.submitted_us.push_back(submitted_us[id]);
        rank.set_up += id < begin ? 1 : 0;
      }
      ++(is_real ? real_ : ghosts_);
      if (is_real) continue;
      for (size_t id = begin; id < one.at("lateness_ns").size(); ++id)
        lateness_ns_.push_back(dilated(one.at("lateness_ns")[id], plan_.dilate));
      bytes_sent_ += one.at("bytes_sent").get<uint64_t>();
      bytes_received_ += one.at("bytes_received").get<uint64_t>();
    }
  } catch (const Json::exception& error) {
    return {ErrorCode::kInvalidArgument, path + ": " + error.what()};
  }
  return {};
}

// The first operation of a job connects its ranks, so that of a program has number 1.
Status EmulateReport::add_trace(int rank, const std::string& path, const std::vector<uint64_t>& operations,
                                bool is_of_all) {
  std::ifstream in(path);
  try {
    Rank& times = ranks_[rank];
    const Json trace = Json::parse(in);
    for (const Json& event : trace.at("traceEvents")) {
      if (!event.contains("id2") || event.at("name").get<std::string>().find('#') == std::string::npos)
        continue;
      const uint64_t number =
          std::strtoull(event.at("id2").at("local").get<std::string>().c_str(), nullptr, 10);
      if (number == 0 || number > operations.size()) continue;
      const bool begins = event.at("ph") == "b";
      if (begins && !is_of_all) continue;
      std::vector<int64_t>& of = begins ? times.submitted_us : times.done_us;
      const size_t at = begins ? number - 1 : operations[number - 1];
      if (of.size() <= at) of.resize(at + 1);
      of[at] = event.at("ts");
    }
    const uint64_t begin = first_ids_.size() > 1 ? first_ids_[1] : 0;
    if (is_of_all)
      times.set_up = static_cast<size_t>(
          std::count_if(operations.begin(), operations.end(), [begin](uint64_t id) { return id < begin; }));
  } catch (const Json::exception& error) {
    return {ErrorCode::kInvalidArgument, path + ": " + error.what()};
  }
  if (is_of_all) ++real_;
  return {};
}

std::vector<double> EmulateReport::step_seconds() const {
  const std::vector<int64_t>& done_us = ranks_.begin()->second.done_us;
  std::vector<double> seconds;
  int64_t before_us = 0;
  int steps = 1;  // since then
  for (size_t step = 0; step < first_ids_.size(); ++step) {
    const uint64_t end = step + 1 < first_ids_.size() ? first_ids_[step + 1] : done_us.size();
    int64_t last_us = 0;
    bool all = end <= done_us.size();
    // When a step without operations ends is not known: it and the next one count as equally long.
    if (all && first_ids_[step] == end) {
      ++steps;
      continue;
    }
    for (uint64_t id = first_ids_[step]; all && id < end; ++id) {
      all = done_us[id] != 0;
      last_us = std::max(last_us, done_us[id]);
    }
    if (!all) break;
    if (before_us != 0)
      seconds.insert(seconds.end(), static_cast<size_t>(steps),
                     static_cast<double>(last_us - before_us) * 1e-6 / steps);
    before_us = last_us;
    steps = 1;
  }
  return seconds;
}

// Of each rank: in how many operations it was the last to submit, and how much later than the one before it.
Json EmulateReport::waited_for() const {
  struct Last {
    uint64_t operations = 0;
    int64_t ahead_us = 0;
  };
  std::map<int, Last> last;
  uint64_t operations = 0;
  for (uint64_t id = ranks_.begin()->second.set_up;; ++id) {
    int rank = -1;
    int64_t latest = 0, second = 0;
    for (const auto& [of, times] : ranks_) {
      if (id >= times.submitted_us.size() || times.submitted_us[id] == 0) {
        rank = -1;
        break;
      }
      const int64_t at = times.submitted_us[id];
      if (at > latest) {
        second = latest;
        latest = at;
        rank = of;
      } else {
        second = std::max(second, at);
      }
    }
    if (rank < 0) break;
    ++operations;
    ++last[rank].operations;
    last[rank].ahead_us += second == 0 ? 0 : latest - second;
  }
  Json json = Json::array();
  for (const auto& [rank, of] : last)
    json.push_back({{"rank", rank},
                    {"real", rank < plan_.real},
                    {"operations", of.operations},
                    {"share", static_cast<double>(of.operations) / static_cast<double>(operations)},
                    {"seconds", static_cast<double>(of.ahead_us) * 1e-6}});
  std::sort(json.begin(), json.end(),
            [](const Json& a, const Json& b) { return a["seconds"] > b["seconds"]; });
  return json;
}

std::vector<std::string> EmulateReport::not_claimed() const {
  std::vector<std::string> texts;
  if (plan_.contributions == ghost::Contributions::kRecorded)
    texts.emplace_back("losses of a script that is not the recorded one: ghosts send what was recorded");
  else
    texts.push_back("losses of a job with " + std::to_string(plan_.ranks) +
                    " different batches: ghosts hold copies of the real gradients");
  if (plan_.contributions == ghost::Contributions::kZeros)
    texts.emplace_back(
        "the round trips of predicted scales, which depend on the data of all ranks (fixed point only)");
  if (plan_.contributions == ghost::Contributions::kScales)
    texts.push_back("recorded scales where aggregators add floats, which have none: ghosts send zeros there");
  if (plan_.contributions == ghost::Contributions::kNoise)
    texts.push_back("losses, which mean nothing beside noise");
  if (plan_.real > 0)
    texts.push_back("the real ranks' computing beside others on their machine: here they have it alone");
  if (plan_.dilate != 1)
    texts.push_back("what depends on times of the protocol, such as its timeouts, which are not dilated");
  if (plan_.rack_size > 1) texts.push_back("the links within racks of ghosts: they take no time");
  if (plan_.real > 0 && correlation_ > ghost::kMuchCorrelated && plan_.times_path.empty())
    texts.push_back(
        fmt::format("steps in which all ranks compute longer: the recorded ones do (correlation {:.2f}), but "
                    "not together with the real ones, so steps are too long by up to the share by which "
                    "computing varies",
                    correlation_));
  if (plan_.other_size)
    texts.push_back(
        "steps whose computing depends on the number of ranks: the profile is of a job of another size");
  return texts;
}

Result<Json> EmulateReport::to_json() const {
  if (ranks_.empty()) return Status(ErrorCode::kInvalidArgument, "no process has told its times");
  const std::vector<double> steps = step_seconds();
  const double median = quantile(steps, 0.5);
  const double mean =
      steps.empty() ? 0
                    : std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
  const double p99 = static_cast<double>(quantile(lateness_ns_, 0.99)) * 1e-9;
  const double share = median > 0 ? p99 / median : 0;
  const bool is_valid = !steps.empty() && share <= kMostLateness;
  Json json = {{"ranks", plan_.ranks},
               {"real", plan_.real},
               {"profile", plan_.profile},
               {"step_seconds",
                {{"median", median},
                 {"mean", mean},
                 {"p5", quantile(steps, 0.05)},
                 {"p95", quantile(steps, 0.95)},
                 {"least", quantile(steps, 0)},
                 {"most", quantile(steps, 1)}}},
               {"steps", steps},
               {"waited_for", waited_for()},
               {"ghosts",
                {{"count", ghosts_},
                 {"bytes_sent", bytes_sent_},
                 {"bytes_received", bytes_received_},
                 {"cpu_seconds", ghost_cpu_seconds_},
                 {"peak_bytes", ghost_peak_bytes_},
                 {"lateness_seconds",
                  {{"median", static_cast<double>(quantile(lateness_ns_, 0.5)) * 1e-9},
                   {"p99", p99},
                   {"most", static_cast<double>(quantile(lateness_ns_, 1)) * 1e-9}}},
                 {"lateness_share", share}}},
               {"dilate", plan_.dilate},
               {"correlation", correlation_},
               {"follows_rank_0", !plan_.times_path.empty()},
               {"stolen_share", stolen_share_},
               {"verdict", is_valid ? "valid" : "void"},
               {"not_claimed", not_claimed()}};
  if (real_cpu_seconds_ > 0)
    json["real_processes"] = {
        {"count", real_}, {"cpu_seconds", real_cpu_seconds_}, {"peak_bytes", real_peak_bytes_}};
  if (!is_valid)
    json["why_void"] =
        steps.empty()
            ? "no step after the first one has ended"
            : fmt::format(
                  "the ghosts were late: 99 of 100 operations by up to {} = {:.2f} % of a step, "
                  "and {:.1f} % is the most. Use fewer ghosts, a lower rate, or an idle machine{}",
                  seconds_text(p99), 100 * share, 100 * kMostLateness,
                  stolen_share_ > kMuchStolen
                      ? fmt::format(": its hypervisor gave {:.1f} % of the time of its processors to others",
                                    100 * stolen_share_)
                      : "");
  return json;
}

std::string report_text(const Json& report) {
  const Json& step = report.at("step_seconds");
  const Json& ghosts = report.at("ghosts");
  const auto seconds = [](const Json& json) { return seconds_text(json.get<double>()); };
  std::string text = fmt::format("step         {} median, {} mean, {} to {} in 9 of 10 of {} steps\n",
                                 seconds(step.at("median")), seconds(step.at("mean")), seconds(step.at("p5")),
                                 seconds(step.at("p95")), report.at("steps").size());
  size_t named = 0;
  for (const Json& one : report.at("waited_for")) {
    if (++named > 4) break;
    text += fmt::format("{}rank {}{} was last in {:.0f} % of the operations, for {} in all\n",
                        named == 1 ? "waited for   " : "             ", one.at("rank").get<int>(),
                        one.at("real").get<bool>() ? " (real)" : "", 100 * one.at("share").get<double>(),
                        seconds(one.at("seconds")));
  }
  const int count = ghosts.at("count");
  const auto of_ghosts = [&](const char* name) { return ghosts.at(name).get<double>(); };
  if (count > 0)
    text += fmt::format(
        "ghosts       {}: each {:.1f} MB sent, {:.1f} MB received, {:.2f} CPU s, {:.1f} MiB\n"
        "lateness     {} median, {} p99 ({:.3f} % of a step), {} most\n",
        count, of_ghosts("bytes_sent") / count / 1e6, of_ghosts("bytes_received") / count / 1e6,
        of_ghosts("cpu_seconds") / count, of_ghosts("peak_bytes") / count / 1048576,
        seconds(ghosts.at("lateness_seconds").at("median")), seconds(ghosts.at("lateness_seconds").at("p99")),
        100 * of_ghosts("lateness_share"), seconds(ghosts.at("lateness_seconds").at("most")));
  if (report.contains("real_processes")) {
    const Json& real = report.at("real_processes");
    const double processes = std::max(1, real.at("count").get<int>());
    text += fmt::format("real         {}: each {:.2f} CPU s, {:.1f} MiB\n", processes,
                        real.at("cpu_seconds").get<double>() / processes,
                        real.at("peak_bytes").get<double>() / processes / 1048576);
  }
  if (report.at("follows_rank_0").get<bool>())
    text += fmt::format("correlation  {:.2f}: ghosts compute longer in steps in which rank 0 does\n",
                        report.at("correlation").get<double>());
  text += "verdict      this run is " + report.at("verdict").get<std::string>();
  if (report.contains("why_void")) text += ": " + report.at("why_void").get<std::string>();
  text += "\nnot claimed  ";
  for (size_t i = 0; i < report.at("not_claimed").size(); ++i)
    text += (i > 0 ? "\n             " : "") + report.at("not_claimed")[i].get<std::string>();
  return text + "\n";
}

std::string report_page(const Json& report) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>netsum "
      "emulate</title></head>\n"
      "<body style=\"font-family: sans-serif\">\n<h1>{} ranks, {} of them real</h1>\n<p>Profile: "
      "{}</p>\n<pre>{}</pre>\n",
      report.at("ranks").get<int>(), report.at("real").get<int>(),
      html_escaped(report.at("profile").get<std::string>()), html_escaped(report_text(report)));
  auto steps = report.at("steps").get<std::vector<double>>();
  if (!steps.empty()) {
    page += curve("Each step", fmt::format("step 1 to {}", steps.size()), steps);
    std::sort(steps.begin(), steps.end());
    page += curve("Distribution", "share of the steps that are as short, from 0 to 100 %", steps);
  }
  return page + "</body></html>\n";
}

}  // namespace netsum::tool
