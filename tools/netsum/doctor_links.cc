// netsum doctor --faults: the links of the jobs of an aggregator.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "src/base/text.h"
#include "src/control/client.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/doctor_paths.h"
#include "tools/netsum/status_view.h"

namespace netsum::tool {
namespace {

std::string host_of_first(const Json& job, const Json& ranks) {
  for (const Json& member : job.at("members"))
    if (member.at("rank") == ranks.at(0)) return printable(member.at("host").get<std::string>());
  return "its host";
}

std::string advice_for(const Json& job, const Json& fault) {
  const std::string host = host_of_first(job, fault.at("ranks"));
  const std::string kind = fault.at("kind");
  const std::string cause = fault.value("cause", "");
  if (cause == "host")
    return fmt::format("on {}: top (are there cores for its ranks? what else runs?)", host);
  if (cause == "link")
    return fmt::format("on {}: ethtool (the link's speed), and what else uses the link", host);
  if (kind == "slow")
    return fmt::format(
        "on {}: top (are there cores for its ranks?), ethtool (the link's speed), and what else uses the "
        "link",
        host);
  if (kind == "loss_to_aggregator")
    return fmt::format(
        "on {}: ip -s link, ethtool -S (errors and drops of sending); then the cable and the input of "
        "its port at the switch",
        host);
  return fmt::format(
      "on {}: nstat -az UdpRcvbufErrors; if it grows, the host is too slow or its buffer too small "
      "(net.core.rmem_max); else ip -s link, ethtool -S, the cable and the output of its port at the "
      "switch",
      host);
}

bool is_loss(const Json& fault) {
  return fault.at("kind") != "slow";
}

std::vector<Finding> link_findings(const std::string& address, const Json& job, bool with_losses = true) {
  const std::string name = printable(job.at("name").get<std::string>());
  std::vector<Finding> findings;
  for (const Json& fault : job.at("faults")) {
    if (is_loss(fault) && !with_losses) continue;
    findings.push_back({Grade::kFail, address + " job " + name, fault_text(fault), advice_for(job, fault)});
  }
  if (findings.empty() && with_losses)
    findings.push_back({Grade::kOk, address + " job " + name,
                        "no link loses more packets than the others, and no rank is slower", ""});
  return findings;
}

Result<RemoteStatus> look_at(const GroupCheck& check) {
  return query_status(check.address, check.aggregator_token, check.tls, check.timeout);
}

Finding no_answer(const std::string& address, const Status& status) {
  return {Grade::kFail, address, printable(status.to_string()), tool::advice_for(status)};
}

// What was counted since an earlier look. A path that has begun anew has counted all of it since.
void subtract(const Json& before, Json* job) {
  for (Json& path : job->at("paths")) {
    for (const Json& old : before) {
      if (old.at("ranks") != path.at("ranks") || old.at("shard") != path.at("shard")) continue;
      const auto counted = {"kept_to", "lost_to", "kept_from", "lost_from"};
      if (std::any_of(counted.begin(), counted.end(), [&](auto key) { return path.at(key) < old.at(key); }))
        continue;
      for (const char* key : counted) path[key] = path.at(key).get<uint64_t>() - old.at(key).get<uint64_t>();
    }
  }
}

}  // namespace

std::vector<Finding> check_paths(GroupCheck check, const std::vector<std::string>& addresses,
                                 const plan::Graph& graph, std::chrono::milliseconds over) {
  std::vector<Finding> findings;
  std::map<std::string, std::vector<std::pair<std::string, Json>>> before, jobs;  // by name
  const auto look = [&](auto* by_name) {
    for (const std::string& address : addresses) {
      check.address = address;
      const Result<RemoteStatus> found = look_at(check);
      if (!found.ok()) {
        findings.push_back(no_answer(address, found.status()));
        continue;
      }
      Json report = status_report(address, *found, *found, 0);
      for (Json& job : report.at("jobs"))
        if (job.at("state") == "running") (*by_name)[job.at("name")].emplace_back(address, std::move(job));
    }
  };
  if (over.count() > 0) {
    look(&before);
    if (!findings.empty()) return findings;
    std::this_thread::sleep_for(over);
  }
  look(&jobs);
  for (auto& [name, reports] : jobs) {
    for (auto& [address, job] : reports) {
      for (const auto& [old_address, old] : before[name])
        if (old_address == address) subtract(old.at("paths"), &job);
      for (Finding& finding : link_findings(address, job, false)) findings.push_back(std::move(finding));
    }
    for (Finding& finding : blame_links(reports, graph)) findings.push_back(std::move(finding));
  }
  if (findings.empty()) findings.push_back({Grade::kOk, addresses.front(), "no running jobs", ""});
  return findings;
}

std::vector<Finding> check_links(const GroupCheck& check) {
  const Result<RemoteStatus> found = look_at(check);
  if (!found.ok()) return {no_answer(check.address, found.status())};
  if (found->dataplane != "user-space" && found->dataplane != "embedded")
    return {{Grade::kWarn, check.address,
             "its dataplane, " + printable(found->dataplane) + ", does not watch the links of members", ""}};
  std::vector<Finding> findings;
  const Json report = status_report(check.address, *found, *found, 0);
  for (const Json& job : report.at("jobs"))
    for (Finding& finding : link_findings(check.address, job)) findings.push_back(std::move(finding));
  if (findings.empty()) findings.push_back({Grade::kOk, check.address, "no jobs", ""});
  return findings;
}

}  // namespace netsum::tool
