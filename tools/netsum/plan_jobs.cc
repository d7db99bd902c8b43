#include "tools/netsum/plan_jobs.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "src/base/text.h"
#include "src/plan/interleave.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostJobsBytes = 1 << 20;

// "250us", "40ms", "1.5s"; not 0.
std::optional<int64_t> parse_us(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double us = number * (unit == "us" ? 1 : unit == "ms" ? 1e3 : unit == "s" ? 1e6 : 0);
  const bool whole = error == std::errc() && us >= 1 && us <= 1e12 && us == std::floor(us);
  return whole ? std::optional(static_cast<int64_t>(us)) : std::nullopt;
}

struct SharedLinks {
  std::vector<plan::PeriodicJob> jobs;
  std::vector<std::string> links;
  std::vector<int64_t> rates;  // 1 if the file has none: then all jobs use the whole link
};

class JobsReader : PlanYaml {
 public:
  explicit JobsReader(const std::string& file) : PlanYaml(file) {}

  SharedLinks read(const YAML::Node& root) {
    check_keys(root, "a file of jobs", {"jobs", "links"});
    for (const YAML::Node& node : list(root, "links")) {
      check_keys(node, "a link", {"name", "rate"});
      const std::string own = name(node);
      claim(node, own);
      if (!node["rate"]) fail(node, "link '" + own + "' has no 'rate:'; give one, such as 25G");
      add_link(own, std::llround(rate(node["rate"], "rate")));
    }
    declared_ = all_.links.size();
    if (!root["jobs"]) fail(root, "'jobs:' is missing: list the jobs that share links");
    for (const YAML::Node& node : list(root, "jobs")) all_.jobs.push_back(job(node));
    return std::move(all_);
  }

 private:
  size_t add_link(const std::string& own, int64_t rate) {
    const auto [known, fresh] = links_.emplace(own, all_.links.size());
    if (fresh) {
      all_.links.push_back(own);
      all_.rates.push_back(rate);
    }
    return known->second;
  }

  int64_t time(const YAML::Node& parent, const char* key, const std::string& job) const {
    if (!parent[key]) fail(parent, "job '" + job + "' has no '" + key + ":'; give a time, such as 40ms");
    const std::string text = scalar(parent[key], key);
    if (const std::optional<int64_t> us = parse_us(text)) return *us;
    fail(parent[key], "'" + std::string(key) + ": " + text +
                          "' is no time; give a whole number of microseconds with us, ms or s, such as 40ms");
  }

  plan::PeriodicJob job(const YAML::Node& node) {
    check_keys(node, "a job", {"name", "period", "busy", "links", "rate", "work"});
    plan::PeriodicJob found;
    found.name = name(node);
    claim(node, found.name);
    found.line = node.Mark().line + 1;
    found.period = time(node, "period", found.name);
    found.busy = time(node, "busy", found.name);
    if (node["rate"]) found.rate = std::llround(rate(node["rate"], "rate"));
    const std::vector<YAML::Node> links = list(node, "links");
    if (links.empty())
      fail(node, "job '" + found.name + "' has no 'links:'; name those that it shares with others");
    for (const YAML::Node& each : links) {
      const std::string own = scalar(each, "links");
      const size_t link = add_link(own, 1);
      if (std::count(found.links.begin(), found.links.end(), link) > 0)
        fail(each, "job '" + found.name + "' names link '" + own + "' twice; leave out one");
      if (node["rate"] && link >= declared_)
        fail(each, "job '" + found.name + "' has a rate, and link '" + own + "' none; add it under 'links:'");
      found.links.push_back(link);
    }
    if (node["work"]) {
      found.work = plan::Fraction(std::llround(positive(node["work"], "work") * 1e6), 1'000'000);
    } else {
      found.work = found.period - found.busy;
    }
    if (std::exchange(has_work_, static_cast<int>(bool(node["work"]))) == static_cast<int>(!node["work"]))
      fail(node, "'work:' is given for some jobs only; give it for all or for none");
    return found;
  }

  SharedLinks all_;
  std::unordered_map<std::string, size_t> links_;
  size_t declared_ = 0;
  int has_work_ = -1;
};

std::string text_of_us(int64_t us) {
  return us % 1000 == 0 ? fmt::format("{}ms", us / 1000) : fmt::format("{}us", us);
}

std::vector<size_t> jobs_of(const SharedLinks& shared, size_t link) {
  std::vector<size_t> found;
  for (size_t job = 0; job < shared.jobs.size(); ++job) {
    const auto& links = shared.jobs[job].links;
    if (std::count(links.begin(), links.end(), link) > 0) found.push_back(job);
  }
  return found;
}

bool pays(const plan::Interleaving::Score& score) {
  return score.after - score.before > plan::kOffsetsPay;
}

// Of pairs that collide at times whatever their offsets, because of their periods.
std::string hints(const SharedLinks& shared) {
  std::string text;
  for (size_t link = 0; link < shared.links.size(); ++link) {
    const std::vector<size_t> members = jobs_of(shared, link);
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t j = i + 1; j < members.size(); ++j) {
        const plan::PeriodicJob& a = shared.jobs[members[i]];
        const plan::PeriodicJob& b = shared.jobs[members[j]];
        if (a.period == b.period || a.rate != plan::kUnlimited || b.rate != plan::kUnlimited ||
            can_avoid(a, b))
          continue;
        text += fmt::format(
            "{} and {} meet on {} with all offsets: their busy times exceed the common divisor "
            "of their periods\n",
            a.name, b.name, shared.links[link]);
      }
    }
  }
  return text;
}

std::string report_text(const SharedLinks& shared, const plan::Interleaving& found, bool worth) {
  size_t width = 4;
  for (const auto& job : shared.jobs) width = std::max(width, job.name.size());
  for (const auto& link : shared.links) width = std::max(width, link.size());
  std::string text =
      fmt::format("{:<{}}  {:>5}  {:>8}  {:>8}\n", "LINK", width, "JOBS", "TOGETHER", "OFFSETS");
  for (size_t link = 0; link < shared.links.size(); ++link) {
    const size_t count = jobs_of(shared, link).size();
    if (count < 2) continue;
    const auto& score = found.scores[link];
    text += fmt::format("{:<{}}  {:>5}  {:>8.3f}  {:>8.3f}  {}\n", shared.links[link], width, count,
                        score.before.to_double(), score.after.to_double(),
                        score.exact ? "no offsets give more" : "found by search; others may give more");
  }
  const std::vector<size_t> order = plan::by_intensity(shared.jobs);
  text += fmt::format("\n{:<{}}  {:>9}  {:>9}  {:>8}  {:>10}  {}\n", "JOB", width, "PERIOD", "BUSY",
                      "PRIORITY", "INTENSITY", worth ? "OFFSET" : "");
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const plan::PeriodicJob& job = shared.jobs[order[rank]];
    text += fmt::format("{:<{}}  {:>9}  {:>9}  {:>8}  {:>10.4g}  {}\n", job.name, width,
                        text_of_us(job.period), text_of_us(job.busy), rank + 1, intensity(job).to_double(),
                        worth ? fmt::format("NETSUM_PHASE={},{}", text_of_us(job.period),
                                            text_of_us(found.offsets[order[rank]]))
                              : "");
  }
  const std::string of_pairs = hints(shared);
  text += "\n" + of_pairs;
  text += worth ? "Give all ranks of a job its NETSUM_PHASE.\n"
                : "Offsets do not pay: no score grows by more than 0.05.\n";
  return text;
}

nlohmann::json report_json(const SharedLinks& shared, const plan::Interleaving& found, bool worth) {
  nlohmann::json report = {{"offsets_pay", worth}, {"links", nlohmann::json::array()}};
  for (size_t link = 0; link < shared.links.size(); ++link) {
    const auto& score = found.scores[link];
    report["links"].push_back({{"name", shared.links[link]},
                               {"jobs", jobs_of(shared, link).size()},
                               {"before", score.before.to_double()},
                               {"before_exact", score.before.text()},
                               {"after", score.after.to_double()},
                               {"after_exact", score.after.text()},
                               {"optimal", score.exact}});
  }
  const std::vector<size_t> order = plan::by_intensity(shared.jobs);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const plan::PeriodicJob& job = shared.jobs[order[rank]];
    const std::string phase = text_of_us(job.period) + "," + text_of_us(found.offsets[order[rank]]);
    report["jobs"].push_back({{"name", job.name},
                              {"period_us", job.period},
                              {"busy_us", job.busy},
                              {"offset_us", found.offsets[order[rank]]},
                              {"phase", phase},
                              {"priority", rank + 1},
                              {"intensity", intensity(job).to_double()}});
  }
  return report;
}

SharedLinks load_jobs(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostJobsBytes + 1, '\0');
  if (!stream) throw UsageError(printable(file) + ": cannot be opened; give the path of a file of jobs");
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostJobsBytes)
    throw UsageError(printable(file) + ": is larger than 1 MiB; leave out jobs");
  return with_yaml(text, file, [&](const YAML::Node& root) { return JobsReader(file).read(root); });
}

}  // namespace

int plan_jobs(const std::string& file, bool json) {
  const SharedLinks shared = load_jobs(file);
  const Result<plan::Interleaving> found = plan::interleave(shared.jobs, shared.rates);
  if (!found.ok()) {
    // "line 7: ..." becomes "file:7: ...".
    const std::string& why = found.status().message();
    const bool at_line = why.starts_with("line ");
    throw UsageError(printable(file) + ":" + (at_line ? why.substr(5) : " " + why));
  }
  const bool worth = std::any_of(found->scores.begin(), found->scores.end(), pays);
  if (json) {
    std::printf("%s\n", report_json(shared, *found, worth)
                            .dump(2, ' ', true, nlohmann::json::error_handler_t::replace)
                            .c_str());
  } else {
    std::printf("%s", report_text(shared, *found, worth).c_str());
  }
  return kExitOk;
}

}  // namespace netsum::tool
