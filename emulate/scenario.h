// What a simulated run does: aggregators, jobs, ranks, operations, and the network between them.
#ifndef NETSUM_EMULATE_SCENARIO_H_
#define NETSUM_EMULATE_SCENARIO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulate/network.h"
#include "netsum/types.h"

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

struct OperationPlan {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Content content = Content::kPlain;
  std::vector<TensorPlan> tensors;
  std::vector<int64_t> submit_at_us;   // by rank, from the start of the job
  int64_t timeout_us = 3'600'000'000;  // virtual time is cheap: only a run that hangs gets there
};

// JobPlan::start_at_us: as soon as earlier jobs of the same index are done.
inline constexpr int64_t kWhenFree = -1;

struct JobPlan {
  uint16_t job = 0;
  uint16_t epoch = 1;
  uint64_t key = 0;
  int ranks = 2;
  uint32_t data_slots = 8;
  uint32_t scale_slots = 4;
  int64_t start_at_us = 0;  // when it is installed on the aggregators and its workers say HELLO
  std::vector<OperationPlan> operations;
};

struct Scenario {
  uint64_t seed = 0;
  uint32_t payload_bytes = 64;
  int aggregators = 1;    // stripes
  int64_t gather_us = 0;  // an aggregator answers what came in this time in one burst
  LinkOptions worker_up;
  LinkOptions worker_down;
  LinkOptions aggregator_up;
  LinkOptions aggregator_down;
  std::vector<JobPlan> jobs;
};

// Any legal run: every operation must end well, whatever the seed.
Scenario random_scenario(uint64_t seed);

// `operations` equal ones of one tensor each, all submitted at time 0, on a quiet network with a round trip
// of 100 us: what the named tests start from.
Scenario quiet_scenario(int ranks, DataType type, size_t count, int operations = 1);

std::string describe(const Scenario& scenario);

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_SCENARIO_H_
