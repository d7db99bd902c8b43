// A rack of namespaces whose aggregator is the XDP program, with a liar on its links, or bits that flip in its memory. The
// aggregator and each rank are processes, because gRPC opens sockets on threads of its own, in whatever namespace these are.
#ifndef NETSUM_TESTS_ATTACK_LIES_RACK_H_
#define NETSUM_TESTS_ATTACK_LIES_RACK_H_

#include <array>
#include <cstdint>
#include <string>

#include "netsum/options.h"
#include "netsum/status.h"
#include "tests/attack/path_liar.h"

namespace netsum::attack {

inline constexpr int kRackRanks = 3;
// With a parent, one more rank joins that.
inline constexpr int kMostRanks = kRackRanks + 1;

struct RackOptions {
  int jobs = 1;         // one after another
  int operations = 10;  // of each job, unless it fails
  Verify verify = Verify::kBoth;
  bool failover = false;    // to the hosts
  PathLiar::Options liar;   // not with a parent
  bool flips_bits = false;  // in the sums of the program's slots
  bool has_parent = false;  // the rack is a member of a daemon's jobs
};

// What one rank has seen in all jobs.
struct RankReport {
  uint64_t sums_verified = 0;
  uint64_t sums_refused = 0;   // of aggregators, also before a failover
  uint64_t hosts_refused = 0;  // of embedded shards
  uint64_t wrong_results = 0;  // operations without an error whose result was wrong
  uint64_t operations = 0;     // without an error
  int jobs_whole = 0;          // all operations were without an error
  int jobs_wrong_sum = 0;      // ended with kWrongSum, by an aggregator with an address of the rack
  uint64_t failovers = 0;
  std::array<char, 400> trouble{};  // the first other error
};

struct RackReport {
  std::array<RankReport, kMostRanks> ranks;
  PathLiar::Report path;
  uint64_t flips = 0;
  uint64_t frames_lost = 0;  // by the path

  uint64_t sum(uint64_t RankReport::*count) const;
};

// Errors: kPermissionDenied (a test may skip then), and any of the aggregator. Forks, so the calling process must not have
// threads.
Result<RackReport> run_rack(const RackOptions& options);

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_LIES_RACK_H_
