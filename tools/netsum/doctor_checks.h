// What `netsum doctor` looks at. Every check says what it found and, unless all is well, what to change.
#ifndef NETSUM_TOOLS_NETSUM_DOCTOR_CHECKS_H_
#define NETSUM_TOOLS_NETSUM_DOCTOR_CHECKS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/plan/graph.h"

namespace netsum::tool {

enum class Grade { kOk, kWarn, kFail };

struct Finding {
  Grade grade = Grade::kOk;
  std::string subject;  // "kernel", "10.0.0.9:5151 path MTU", ...
  std::string found;
  std::string advice;  // what to change; empty if nothing
};

// Checks of this machine; nothing is sent, nothing is changed.
std::vector<Finding> check_machine();

// What PyTorch, run by this interpreter, sees of accelerators, and how their tensors would be staged. Empty: the interpreter beside the
// command, or else that of PATH.
std::vector<Finding> check_devices(const std::string& python);

struct GroupCheck {
  std::string address;  // control address of an aggregator, or of a `netsum doctor --serve`
  std::string aggregator_token;
  TlsOptions tls;
  int mtu = 1500;
  bool af_xdp = false;           // also open an AF_XDP socket, which attaches an XDP program for a moment
  std::optional<Verify> verify;  // also check sums of a job in this mode
  double pace_bps = 0;           // also measure what this pace gains; 0: not
  std::chrono::milliseconds timeout{5'000};  // of each step
};

// "packet, both".
std::string listed(const std::vector<std::string>& names);
// What to do about an error of connect() or of a status query.
std::string advice_for(const Status& status);

// Checks of the way to one aggregator or peer: control connection, versions, clocks, full-size packets.
std::vector<Finding> check_group(const GroupCheck& check);

// What an aggregator knows of the links of its jobs: which lose packets, and what to look at.
std::vector<Finding> check_links(const GroupCheck& check);

// The same of the links between the switches of a network, from the paths that the aggregators have counted since the jobs' begin,
// or, if not 0, in this time.
std::vector<Finding> check_paths(GroupCheck check, const std::vector<std::string>& addresses,
                                 const plan::Graph& graph, std::chrono::milliseconds over);

// Of a check that sums, in this process.
inline constexpr int kCheckRanks = 2;

// Sums of two ranks in this process, in the mode `check.verify`, which must be set. `can`: the modes that the aggregator has
// announced; empty: unknown.
Finding check_sums(const GroupCheck& check, const std::vector<std::string>& can);

// What the sums of two ranks took in a turn.
struct PaceTrial {
  std::vector<double> ms;  // of each sum
  uint64_t packets = 0;    // sent by both
  uint64_t sent_again = 0;
};
// Recommends the pace only if it has gained, and each turn with it was better than all without.
Finding judge_pace(const std::string& address, double pace_bps, const std::vector<PaceTrial>& without,
                   const std::vector<PaceTrial>& with);
// Sums of two ranks in this process, with `check.pace_bps` and without, in turns, for about 20 s at most. None at a pace at which
// they must take much longer.
Finding check_pace(const GroupCheck& check);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_DOCTOR_CHECKS_H_
