// What a simulated run does: aggregators, jobs, ranks, operations, and the network between them.
#ifndef NETSUM_EMULATE_SCENARIO_H_
#define NETSUM_EMULATE_SCENARIO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulate/faulty_aggregator.h"
#include "emulate/network.h"
#include "netsum/status.h"
#include "netsum/types.h"
#include "src/worker/role.h"
#include "wire/packet.h"

namespace netsum::emulate {

// What the tensors of an operation hold.
enum class Content : uint8_t {
  kPlain,      // floating point: around 1; integers: small
  kZeros,      // only zeros, of both signs
  kWideRange,  // magnitudes over many powers of two, subnormals included
  kSpecial,    // kPlain with a few NaN and infinities: some chunks travel in wide lanes
  kExtremes,   // integers whose sums fit though partial sums pass the range; floats near the largest
};

struct TensorPlan {
  size_t count = 0;
  bool in_place = false;
};

// How the input of some ranks arrives, which until then is poison: piece by piece (netsum/watermarks.h).
struct ArrivalPlan {
  uint64_t ranks = 0;            // bits of the ranks
  size_t piece_bytes = 1;        // twice as much at most
  int64_t pause_us = 0;          // between two pieces, at most
  size_t most_bytes = SIZE_MAX;  // that ever arrive
};

struct OperationPlan {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Content content = Content::kPlain;
  std::vector<TensorPlan> tensors;
  int data_of =
      -1;  // the index of an operation of equal tensors and content that has the same data; -1: none
  Collective collective = Collective::kAllReduce;  // with parts: `tensors` has one for each rank
  int root = 0;
  // Of an all-reduce: bits of the ranks that contribute and that receive. Not all of both: it becomes a reduce of these.
  uint64_t contributors = UINT64_MAX;
  uint64_t receivers = UINT64_MAX;
  ArrivalPlan arrival;
  std::vector<int64_t> submit_at_us;   // by rank, from the start of the job
  int64_t timeout_us = 3'600'000'000;  // only a run that hangs takes so long in virtual time
};

// JobPlan::start_at_us: as soon as earlier jobs of the same index are done.
inline constexpr int64_t kWhenFree = -1;
// FaultEvent: a crashed aggregator stays away; the control plane tells nobody.
inline constexpr int64_t kNever = -1;

// How the operations of a job may end; anything else is a violation.
enum class Ending : uint8_t {
  kAny,
  kSuccess,
  kSuccessOrLoss,  // or with the error of somebody gone: timeout, peer lost, aggregator lost; or of one who lies: wrong sum
};

Role role_of(const OperationPlan& plan, int rank);

struct JobPlan {
  uint16_t job = 0;
  uint16_t epoch = 1;
  netsum_key key{};
  int ranks = 2;
  uint32_t data_slots = 8;
  uint32_t scale_slots = 4;
  bool sums_values = false;         // aggregators take values; in racks, sums of float32 alone
  bool adds_floats = false;         // and floats in data slots, too; only with sums_values
  uint64_t fixed_floats = 0;        // EncodingOptions::fixed_floats: bits of the ranks that have it
  bool takes_empty_packets = true;  // aggregators take contributions without lanes ...
  bool takes_no_result = true;      // ... and leave out those of results
  uint64_t predicts_scales =
      0;  // as in StripeOptions: bits of the ranks that do. All or none, or they do not match
  bool verifies_sums = false;       // as StripeOptions::sum_key; then none of the five above counts
  uint32_t tag = NETSUM_TAG_KEYED;  // as StripeOptions::tag
  int lane_bits = 0;                // as in CommunicatorOptions
  uint64_t pace_bytes_per_s = 0;    // as in WorkerOptions
  int64_t phase_period_us = 0, phase_offset_us = 0;  // as in WorkerOptions
  int64_t start_at_us = 0;         // when it is installed on the aggregators and its workers say HELLO
  int64_t remove_after_us = 0;     // from its end until the aggregators forget it
  std::vector<int> hosts;          // [rank]; empty: rank r is at host r. Jobs of one index share their hosts
  std::vector<int32_t> drift_ppm;  // [rank]: how much faster than true its clock runs; empty: not at all
  Ending ending = Ending::kAny;
  std::vector<OperationPlan> operations;
};

// A fault at one moment of a run, in addition to those of the links. It affects one node: rank `rank` of job `job` (an
// index in Scenario::jobs) while that job runs or, if rank is kNoRank, an aggregator.
struct FaultEvent {
  enum class Kind : uint8_t {
    kPartition,  // nothing passes from and/or to the node for duration_us
    kSlowLink,   // its links, both ways, carry bytes_per_us for duration_us
    kPause,      // it is stopped for duration_us; meanwhile packets gather in its socket, as far as they fit
    kCrash,  // it is gone with all it knew; an aggregator comes back, empty, after duration_us (or kNever)
  };
  Kind kind = Kind::kPartition;
  // After that many events (each packet's hop, each timer is one) since the job, or for an aggregator the
  // run, has started: any point of the protocol.
  uint64_t at_event = 0;
  int64_t duration_us = 0;
  int64_t reported_after_us = kNever;  // kCrash: until the control plane tells those who depend on it
  size_t job = 0;
  int rank = 0;
  int aggregator = 0;
  bool outbound = true;  // kPartition: what the node sends is lost ...
  bool inbound = true;   // ... and what is sent to it
  double bytes_per_us = 0;
};

struct Scenario {
  uint64_t seed = 0;
  uint32_t payload_bytes = 64;
  int aggregators = 1;                   // stripes
  std::vector<uint32_t> stripe_weights;  // as in WorkerOptions; empty: all equal
  uint64_t balance_period = 0;           // as in WorkerOptions
  // So many of the last aggregators are embedded in hosts 0, 1, ... of job number 0, whose links they share.
  int shards = 0;
  // Hierarchy: so many aggregators per stripe between the ranks and the stripe's own; 0: none. In a run,
  // those of rack r are numbered aggregators * (1 + r) + stripe.
  int racks = 0;
  // The stripes' own aggregators, or those of the racks, are P4 switches. Only if all jobs verify their sums, and their packets
  // have no tags.
  bool switches = false;
  bool rack_switches = false;
  int64_t gather_us = 0;  // an aggregator answers what came in this time in one burst
  LinkOptions worker_up;
  LinkOptions worker_down;
  LinkOptions aggregator_up;
  LinkOptions aggregator_down;
  Lies lies;  // of all aggregators. Only if all jobs verify their sums
  std::vector<JobPlan> jobs;
  std::vector<FaultEvent> events;

  // What an aggregator sums is not what the ranks have sent.
  bool alters_contributions(const JobPlan& job) const {
    return job.tag == NETSUM_TAG_COOKIE && (worker_up.corrupt > 0 || aggregator_up.corrupt > 0);
  }
  int aggregator_count() const { return aggregators * (1 + racks); }
  // Neighbours share a rack; racks without ranks have no part in the job.
  int racks_of(const JobPlan& job) const { return racks < job.ranks ? racks : job.ranks; }
  int rack_of(const JobPlan& job, int rank) const { return rank * racks_of(job) / job.ranks; }
};

// `operations` equal ones of one tensor each, all submitted at time 0, on a quiet network with a round trip
// of 100 us: what the named tests start from.
Scenario quiet_scenario(int ranks, DataType type, size_t count, int operations = 1);

std::string describe(const Scenario& scenario);

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_SCENARIO_H_
