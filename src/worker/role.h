// Which collective an operation is, and what this rank does in it. The engine sums contributions and returns the sums to
// all ranks; a role defines a rank's contribution and whether it keeps the sum.
#ifndef NETSUM_SRC_WORKER_ROLE_H_
#define NETSUM_SRC_WORKER_ROLE_H_

#include <cstdint>
#include <memory>

#include "src/worker/chunk_map.h"

namespace netsum {

// Ranks compare it as a part of the operation's signature. Do not change or reuse the numbers.
enum class Collective : uint8_t {
  kAllReduce = 0,  // every rank contributes and receives
  kReduce = 1,     // every rank contributes; one receives
  kShares =
      2,  // the worker's own: the ranks add up what they have measured of the stripes (share_balancer.h)
};

const char* collective_name(Collective collective);

struct Role {
  Collective collective = Collective::kAllReduce;
  // What else all ranks must agree on, such as the receiving rank. Ranks compare it, too.
  uint32_t parameter = 0;
  // True: the elements of the inputs. False: zeros, and inputs may be null.
  bool contributes = true;
  // True: the result is written to the outputs. False: it is acknowledged and discarded, and outputs may be null; such a
  // rank is not told that a sum does not fit its type.
  bool receives = true;
  // Which stripes sum which chunks, equal on all ranks. Null: the map of the worker.
  std::shared_ptr<const ChunkMap> chunk_map;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_ROLE_H_
