// netsum doctor --faults: the links of the jobs of an aggregator.
#include <fmt/format.h>

#include "src/base/text.h"
#include "src/control/client.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/status_view.h"

namespace netsum::tool {
namespace {

std::string host_of(const Json& job, const Json& ranks) {
  for (const Json& member : job.at("members"))
    if (member.at("rank") == ranks.at(0)) return printable(member.at("host").get<std::string>());
  return "its host";
}

std::string advice_for(const Json& job, const Json& fault) {
  const std::string host = host_of(job, fault.at("ranks"));
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

std::vector<Finding> links_of(const std::string& address, const Json& job) {
  const std::string name = printable(job.at("name").get<std::string>());
  std::vector<Finding> findings;
  for (const Json& fault : job.at("faults"))
    findings.push_back({Grade::kFail, address + " job " + name, fault_text(fault), advice_for(job, fault)});
  if (findings.empty())
    findings.push_back({Grade::kOk, address + " job " + name,
                        "no link loses more packets than the others, and no rank is slower", ""});
  return findings;
}

}  // namespace

std::vector<Finding> check_links(const GroupCheck& check) {
  const Result<RemoteStatus> found =
      query_status(check.address, check.aggregator_token, check.tls, check.timeout);
  if (!found.ok())
    return {{Grade::kFail, check.address, printable(found.status().to_string()), advice_for(found.status())}};
  if (found->dataplane != "user-space")
    return {{Grade::kWarn, check.address,
             "its dataplane, " + printable(found->dataplane) + ", does not watch the links of members", ""}};
  std::vector<Finding> findings;
  const Json report = status_report(check.address, *found, *found, 0);
  for (const Json& job : report.at("jobs"))
    for (Finding& finding : links_of(check.address, job)) findings.push_back(std::move(finding));
  if (findings.empty()) findings.push_back({Grade::kOk, check.address, "no jobs", ""});
  return findings;
}

}  // namespace netsum::tool
