#include "src/worker/role.h"

namespace netsum {

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduce:
      return "reduce";
    case Collective::kShares:
      return "agreement on shares";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kBarrier:
      return "barrier";
  }
  return "?";
}

bool moves_bytes(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kAllGather ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kReduce;
}

bool has_parts(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kReduceScatter;
}

Role make_role(Collective collective, int root, int rank) {
  Role role{.collective = collective, .rank = rank, .chunk_map = nullptr};
  if (has_root(collective)) role.parameter = static_cast<uint32_t>(root);
  if (collective == Collective::kBroadcast || collective == Collective::kScatter)
    role.contributors = Ranks::one(root);
  if (collective == Collective::kGather || collective == Collective::kReduce)
    role.receivers = Ranks::one(root);
  if (collective == Collective::kAllGather || collective == Collective::kGather)
    role.contributors = Ranks::owners();
  if (collective == Collective::kScatter || collective == Collective::kReduceScatter)
    role.receivers = Ranks::owners();
  if (collective == Collective::kBarrier) role.contributors = role.receivers = Ranks::none();
  return role;
}

}  // namespace netsum
