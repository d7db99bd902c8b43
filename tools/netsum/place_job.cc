#include "tools/netsum/place_job.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <unordered_map>

#include "src/base/text.h"
#include "tools/netsum/hostlist.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostJobBytes = 8 << 20;
constexpr size_t kMostIterations = 1'000'000'000'000;

class JobReader : PlanYaml {
 public:
  explicit JobReader(const std::string& file) : PlanYaml(file) {}

  PlaceJob read(const YAML::Node& root) {
    check_keys(root, "a job",
               {"ranks", "gradient", "compute", "iterations", "overlap", "aggregators", "sums", "exclude",
                "rates", "most_per_rack", "within", "required", "shards"});
    PlaceJob found;
    plan::PlacementJob& job = found.job;
    job.gradient_bits = static_cast<int64_t>(8 * kDefaultGradient);
    if (root["ranks"]) job.ranks = whole(root["ranks"], "ranks", plan::kMostHosts);
    if (root["gradient"]) job.gradient_bits = static_cast<int64_t>(8 * bytes(root["gradient"], "gradient"));
    if (root["compute"]) {
      const auto time = parse_duration_or_zero(scalar(root["compute"], "compute"));
      if (!time.ok()) fail(root["compute"], "'compute:' " + time.status().message());
      job.compute_s = plan::Fraction(time->count(), 1000);
    }
    if (root["iterations"])
      job.iterations = static_cast<int64_t>(whole(root["iterations"], "iterations", kMostIterations));
    if (root["overlap"]) job.overlap = yes_or_no(root["overlap"], "overlap");
    if (root["aggregators"]) job.aggregators = whole(root["aggregators"], "aggregators", plan::kMostHosts);
    if (root["sums"]) found.sums = hostlist(root["sums"], "sums");
    if (root["exclude"]) found.exclude = hostlist(root["exclude"], "exclude");
    if (root["most_per_rack"])
      job.most_per_rack = whole(root["most_per_rack"], "most_per_rack", plan::kMostHosts);
    if (root["within"]) job.tier = whole(root["within"], "within", 64);
    if (root["required"]) job.required = yes_or_no(root["required"], "required");
    for (const YAML::Node& each : list(root, "rates"))
      found.rates.push_back(std::llround(rate(each, "rates")));
    for (const YAML::Node& each : list(root, "shards")) {
      check_keys(each, "a shard", {"name", "bytes", "at"});
      for (const char* key : {"bytes", "at"}) {
        if (!each[key]) fail(each, std::string("the shard has no '") + key + ":'");
      }
      const std::string own = name(each);
      claim(each, own);
      job.shards.push_back(
          {.name = own, .bytes = bytes(each["bytes"], "bytes"), .line = each.Mark().line + 1});
      found.replicas.push_back(hostlist(each["at"], "at"));
    }
    return found;
  }

 private:
  uint64_t bytes(const YAML::Node& node, const char* what) const {
    const Result<uint64_t> found = parse_bytes(scalar(node, what));
    if (!found.ok()) fail(node, std::string("'") + what + ":' " + found.status().message());
    if (*found == 0) fail(node, std::string("'") + what + ": 0': give a size above 0");
    return *found;
  }

  std::vector<std::string> hostlist(const YAML::Node& node, const char* what) const {
    Result<std::vector<std::string>> found = parse_hostlist(scalar(node, what));
    if (!found.ok()) fail(node, std::string("'") + what + ":' " + found.status().message());
    return std::move(found).value();
  }
};

}  // namespace

Result<std::vector<int64_t>> parse_rates(const std::string& text) {
  std::vector<int64_t> rates;
  std::istringstream stream(text + ",");
  for (std::string each; std::getline(stream, each, ',');) {
    const Result<double> rate = parse_link_rate(each);
    if (!rate.ok()) return rate.status();
    rates.push_back(std::llround(*rate));
  }
  return rates;
}

PlaceJob load_place_job(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostJobBytes + 1, '\0');
  if (!stream) throw UsageError(file + ": cannot be opened; give the path of a job's file");
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostJobBytes)
    throw UsageError(file + ": is larger than 8 MiB; join shards that lie together");
  return with_yaml(text, file, [&](const YAML::Node& root) { return JobReader(file).read(root); });
}

void apply(PlaceJob* job, const std::string& file, plan::Cluster* cluster) {
  std::unordered_map<std::string, size_t> hosts, switches;
  for (size_t i = 0; i < cluster->hosts.size(); ++i) hosts[cluster->hosts[i].name] = i;
  for (size_t i = 0; i < cluster->switches.size(); ++i) switches[cluster->switches[i].name] = i;
  const auto fail = [&](int line, const std::string& message) {
    const std::string where = file.empty() ? "" : file + (line > 0 ? ":" + std::to_string(line) : "") + ": ";
    return UsageError(where + printable(message));
  };
  for (const std::string& name : job->exclude) {
    const auto known = hosts.find(name);
    if (known == hosts.end()) throw fail(0, "exclude: the cluster has no host '" + name + "'");
    cluster->hosts[known->second].free = false;
  }
  for (const std::string& name : job->sums) {
    const auto known = switches.find(name);
    if (known == switches.end()) throw fail(0, "sums: the cluster has no switch '" + name + "'");
    cluster->switches[known->second].sums = true;
  }
  for (size_t i = 0; i < job->replicas.size(); ++i) {
    plan::DataShard& shard = job->job.shards[i];
    for (const std::string& name : job->replicas[i]) {
      const auto host = hosts.find(name);
      const auto at = switches.find(name);
      if (host == hosts.end() && at == switches.end())
        throw fail(shard.line,
                   "shard '" + shard.name + "': the cluster has neither a host nor a switch '" + name + "'");
      shard.replicas.push_back({name, host == hosts.end() ? at->second : cluster->hosts[host->second].at});
    }
  }
}

}  // namespace netsum::tool
