// Which collective an operation is, and what this rank does in it. The engine sums contributions and returns the sums; a
// role says which ranks contribute to which tensor, and which ranks receive it.
#ifndef NETSUM_SRC_WORKER_ROLE_H_
#define NETSUM_SRC_WORKER_ROLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/worker/chunk_map.h"

namespace netsum {

// Ranks compare it as a part of the operation's signature. Do not change or reuse the numbers.
enum class Collective : uint8_t {
  kAllReduce = 0,
  kReduce = 1,
  kShares =
      2,  // the worker's own: the ranks add up what they have measured of the stripes (share_balancer.h)
  kBroadcast = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kBarrier = 8,
};

const char* collective_name(Collective collective);
bool moves_bytes(Collective collective);  // otherwise it sums
bool has_root(Collective collective);
bool has_parts(Collective collective);  // one tensor for each rank

// For each tensor of an operation: every rank, one rank, or none.
class Ranks {
 public:
  static constexpr int kEvery = -1, kNobody = -2;

  static constexpr Ranks every() { return Ranks(kEvery, false); }
  static constexpr Ranks none() { return Ranks(kNobody, false); }
  static constexpr Ranks one(int rank) { return Ranks(rank, false); }
  // Rank i for tensor i: its part.
  static constexpr Ranks owners() { return Ranks(0, true); }

  // A rank, kEvery or kNobody.
  constexpr int of(size_t tensor) const { return owners_ ? static_cast<int>(tensor) : rank_; }
  constexpr bool have(int rank, size_t tensor) const { return of(tensor) == kEvery || of(tensor) == rank; }

 private:
  constexpr Ranks(int rank, bool owners) : rank_(rank), owners_(owners) {}

  int rank_;
  bool owners_;
};

struct Role {
  Collective collective = Collective::kAllReduce;
  // What else all ranks must agree on, such as the root. Ranks compare it, too.
  uint32_t parameter = 0;
  uint32_t tag = 0;  // CollectiveOptions::tag or ReduceOptions::tag; ranks compare it as well
  // Which ranks contribute their inputs. Those of the others count as zeros, and may be null.
  Ranks contributors = Ranks::every();
  // Which ranks get the result in their outputs. The others acknowledge and discard it, and their outputs may be null;
  // such a rank is not told that a sum does not fit its type.
  Ranks receivers = Ranks::every();
  int rank = 0;  // this one
  // Which stripes sum which chunks, equal on all ranks. Null: the map of the worker.
  std::shared_ptr<const ChunkMap> chunk_map;

  bool contributes(size_t tensor) const { return contributors.have(rank, tensor); }
  bool receives(size_t tensor) const { return receivers.have(rank, tensor); }
};

// The role of `rank`. `root` counts if the collective has one.
Role make_role(Collective collective, int root, int rank);

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_ROLE_H_
