// Which collective an operation is, and what this rank does in it. The engine sums what ranks contribute and returns the
// sums to all; a role says what a rank's contribution is, and whether it wants the sum.
#ifndef NETSUM_SRC_WORKER_ROLE_H_
#define NETSUM_SRC_WORKER_ROLE_H_

#include <cstdint>
#include <memory>

#include "src/worker/chunk_map.h"

namespace netsum {

// Ranks compare it, as a part of the operation's signature. Numbers stay what they are.
enum class Collective : uint8_t {
  kAllReduce = 0,  // every rank contributes and receives
  kReduce = 1,     // every rank contributes; one receives
};

const char* collective_name(Collective collective);

struct Role {
  Collective collective = Collective::kAllReduce;
  // What else all ranks must agree on, such as the rank that receives. Ranks compare it, too.
  uint32_t parameter = 0;
  // The elements of the inputs; otherwise zeros, and inputs may be null.
  bool contributes = true;
  // The result, into the outputs; otherwise it is acknowledged and discarded, and outputs may be null. A rank that does
  // not receive does not learn that a sum does not fit its type.
  bool receives = true;
  // Which stripes sum which chunks, equal on all ranks. Null: as in all operations of this worker.
  std::shared_ptr<const ChunkMap> chunk_map;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_ROLE_H_
