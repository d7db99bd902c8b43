#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "netsum/communicator.h"
#include "netsum/version.h"
#include "src/control/client.h"
#include "src/net/af_xdp/af_xdp_io.h"
#include "tools/netsum/doctor_checks.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum::tool {
namespace {

constexpr double kClockLimitMs = 1000;
constexpr int kCalls = 8;  // of which some meet no queue

Finding check_versions(const std::string& address, const RemoteStatus& remote) {
  Finding finding{Grade::kOk, address + " version",
                  remote.status.version + ", protocol " + std::to_string(remote.protocol_version), ""};
  if (remote.protocol_version != NETSUM_VERSION) {
    finding.grade = Grade::kFail;
    finding.advice =
        "this end speaks protocol " + std::to_string(NETSUM_VERSION) + "; install the same netsum on both";
  } else if (remote.status.version != NETSUM_VERSION_STRING) {
    finding.grade = Grade::kWarn;
    finding.advice = "this end is " NETSUM_VERSION_STRING
                     "; the two work together, but one version is easier to reason about";
  }
  return finding;
}

Finding check_clock(const std::string& address, const RemoteStatus& remote) {
  if (remote.least_ahead_us == INT64_MIN)
    return {Grade::kOk, address + " clock", "not known: this one was set meanwhile", ""};
  const double least = static_cast<double>(remote.least_ahead_us) * 1e-3;
  const double most = static_cast<double>(remote.most_ahead_us) * 1e-3;
  const double half = (most - least) / 2, difference = least + half;
  Finding finding{
      Grade::kOk, address + " clock",
      least <= 0 && most >= 0
          ? fmt::format("no difference to this one's, give or take {:.1f} ms", std::max(-least, most))
          : fmt::format("{:+.1f} ms from this one's, give or take {:.1f} ms", difference, half),
      ""};
  if (std::fabs(difference) > kClockLimitMs + half) {
    finding.grade = Grade::kWarn;
    finding.advice =
        "sums do not depend on it, but logs and certificates do; synchronise both clocks (chrony)";
  }
  return finding;
}

// A job of one rank: its handshake sends packets of the full size to every data port and wants them back.
Status try_path(const GroupCheck& check, int mtu) {
  CommunicatorOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.job = "doctor-" + std::to_string(getpid()) + "-" + std::to_string(mtu);
  options.aggregators = {check.address};
  options.aggregator_token = check.aggregator_token;
  options.tls = check.tls;
  options.mtu = mtu;
  options.slots = 1;
  options.connect_timeout = check.timeout;
  options.timeout = check.timeout;
  return Communicator::connect(options).status();
}

Finding check_path(const GroupCheck& check) {
  const std::string subject = check.address + " data path";
  const Status status = try_path(check, check.mtu);
  if (status.ok()) {
    return {Grade::kOk, subject, "packets of " + std::to_string(check.mtu) + " bytes pass both ways", ""};
  }
  if (status.code() != ErrorCode::kUnreachable && status.code() != ErrorCode::kTimeout) {
    return {Grade::kFail, subject, status.to_string(), advice_for(status)};
  }
  for (const int smaller : {4000, 1500, 1450, 1400, 1280, 576}) {
    if (smaller >= check.mtu || !try_path(check, smaller).ok()) continue;
    return {Grade::kFail, subject,
            fmt::format("packets of {} bytes are lost, those of {} pass", check.mtu, smaller),
            fmt::format("use --mtu {} on all ranks, or raise the MTU of every hop", smaller)};
  }
  return {Grade::kFail, subject, status.to_string(),
          "no UDP packet comes back: open the aggregator's data ports (UDP) in firewalls on the way; "
          "`netsum aggregator --data-port` makes them known numbers"};
}

// As a worker would open it. UDP does the same work, so its absence fails nothing.
Finding check_af_xdp_socket(const GroupCheck& check) {
  const std::string subject = check.address + " AF_XDP";
  const Result<Address> remote = Address::resolve(check.address);
  if (!remote.ok()) return {Grade::kFail, subject, remote.status().message(), advice_for(remote.status())};
  const auto packet_bytes = static_cast<uint32_t>(check.mtu - wire::ip_udp_header_bytes(4));
  const auto io = open_af_xdp({.remote = remote.value(), .max_packet = packet_bytes});
  if (io.ok()) return {Grade::kOk, subject, std::string(io.value()->description()), ""};
  return {Grade::kWarn, subject, io.status().message(),
          "packets will go by UDP, which does the same work; what AF_XDP needs: docs/command.md"};
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string advice_for(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kPermissionDenied:
      return "check the token (--token-file, NETSUM_AGGREGATOR_TOKEN) and the certificates (--tls-...)";
    case ErrorCode::kVersionMismatch:
      return "install the same netsum on both ends; this end is " NETSUM_VERSION_STRING;
    case ErrorCode::kUnsupported:
      return "";  // the message says what to do
    case ErrorCode::kResourceExhausted:
      return "wait for a job to end, or start the aggregator with more --max-jobs or --slots";
    default:
      return "check the address, that `netsum aggregator` (or `netsum doctor --serve`) runs there, and that "
             "no "
             "firewall blocks TCP to it";
  }
}

std::vector<Finding> check_group(const GroupCheck& check) {
  const Result<RemoteStatus> asked =
      query_status(check.address, check.aggregator_token, check.tls, check.timeout, kCalls);
  if (!asked.ok()) {
    return {
        {Grade::kFail, check.address + " control", asked.status().to_string(), advice_for(asked.status())}};
  }
  const RemoteStatus& remote = asked.value();
  std::vector<Finding> findings;
  findings.push_back(
      {Grade::kOk, check.address + " control",
       fmt::format("answers in {:.2f} ms; {} dataplane, {} data ports, {} jobs{}",
                   remote.round_trip_us / 1000, remote.dataplane, remote.status.data_addresses.size(),
                   remote.status.jobs.size(), remote.status.draining ? ", draining" : "") +
           (remote.status.verify_modes.empty() ? "" : "; --verify " + listed(remote.status.verify_modes)),
       ""});
  if (remote.status.draining) {
    findings.back().grade = Grade::kWarn;
    findings.back().advice = "it is about to stop and takes no new jobs; use another";
  }
  findings.push_back(check_versions(check.address, remote));
  findings.push_back(check_clock(check.address, remote));
  if (findings[1].grade != Grade::kFail && !remote.status.draining) {
    findings.push_back(check_path(check));
    if (check.verify && findings.back().grade != Grade::kFail)
      findings.push_back(check_sums(check, remote.status.verify_modes));
    if (check.pace_bps > 0 && findings.back().grade != Grade::kFail) findings.push_back(check_pace(check));
  }
  if (check.af_xdp) findings.push_back(check_af_xdp_socket(check));
  return findings;
}

}  // namespace netsum::tool
