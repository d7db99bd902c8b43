// `netsum doctor --rates`: measures the rates of hosts' links, for `netsum plan`.
#ifndef NETSUM_TOOLS_NETSUM_DOCTOR_RATES_H_
#define NETSUM_TOOLS_NETSUM_DOCTOR_RATES_H_

#include <chrono>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/plan/topology.h"
#include "tools/netsum/log.h"

namespace netsum::tool {

inline constexpr size_t kMaxRateHosts = 64;

struct RatesCheck {
  std::vector<std::string> hosts;   // addresses of agents (--serve-rates), on the hosts of ranks ...
  std::vector<std::string> spares;  // ... and on spare hosts
  std::string token;
  int mtu = 1500;
  std::chrono::milliseconds time{1'000};        // of each measurement
  std::chrono::milliseconds deadline{600'000};  // of all of them
  std::chrono::milliseconds timeout{5'000};     // of each answer

  size_t count() const { return hosts.size() + spares.size(); }
  size_t steps() const;
};

// All rates are of UDP payload, in bits per second. Hosts are numbered as in RatesCheck, spare hosts last.
struct RateSurvey {
  std::vector<std::string> names;  // as in a topology file
  size_t spares = 0;
  // [from][to], while every host sends to one other host and receives from one.
  std::vector<std::vector<double>> pairs;
  std::vector<std::vector<double>> lost;  // the same: share of the packets sent
  // All others send to this host, and this host to all others. Empty for two hosts.
  std::vector<double> fan_in, fan_out;

  explicit RateSurvey(const RatesCheck& check);
  // The most that the host was seen to receive and to send.
  plan::Link link(size_t host) const;
  // A topology file for `netsum plan`, with the measurements under "measured".
  Json json() const;
  std::string text() const;
};

// What is wrong with the lists and limits, before anything is sent: kInvalidArgument.
Status check_rates_request(const RatesCheck& check);

// Blocks. Errors name the host: kUnreachable, kPermissionDenied, kResourceExhausted (takes part in another
// measurement), kPeerLost (its agent has ended), kTimeout.
Result<RateSurvey> measure_rates(const RatesCheck& check);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_DOCTOR_RATES_H_
