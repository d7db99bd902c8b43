#include "aggregator/control/job_plans.h"

#include <algorithm>
#include <iterator>

#include "src/job/place_path.h"
#include "src/job/ranks.h"

namespace netsum {
namespace {

// Adds the rank to the trees of the aggregators that it names. False: they are not those of the other ranks.
bool add_to_all(const std::vector<PlaceInfo>& paths, std::vector<PlaceInfo>* trees) {
  return std::equal(paths.begin(), paths.end(), trees->begin(), trees->end(),
                    [](const PlaceInfo& path, PlaceInfo& tree) { return add_rank(path, &tree); });
}

size_t count_with_those_below(const PlaceInfo& place) {
  size_t count = 1;
  for (const PlaceInfo& lower : place.below()) count += count_with_those_below(lower);
  return count;
}

Status check_size(const std::vector<PlaceInfo>& trees) {
  size_t count = 0;
  for (const PlaceInfo& tree : trees) count += count_with_those_below(tree);
  if (count <= plan::kMaxAggregators) return {};
  return {ErrorCode::kResourceExhausted, "the ranks name " + std::to_string(count) +
                                             " aggregators or more; a plan has at most " +
                                             std::to_string(plan::kMaxAggregators)};
}

}  // namespace

Result<plan::JobTopology> topology_of(const PlanInput& input) {
  plan::JobTopology topology{.links = {}, .shards = true, .places = {}};
  for (size_t rank = 0; rank < input.ranks.size(); ++rank) {
    control::Sharing sharing;
    const bool parsed = sharing.ParseFromString(*input.ranks[rank].sharing);
    std::vector<PlaceInfo> paths;
    if (input.own_sums) paths.push_back(path_from(input.own, sharing.first_place()));
    paths.insert(paths.end(), sharing.other_places().begin(), sharing.other_places().end());
    if (rank == 0) std::transform(paths.begin(), paths.end(), std::back_inserter(topology.places), top_of);
    if (!parsed || !add_to_all(paths, &topology.places))
      return Status(
          ErrorCode::kInvalidArgument,
          describe_rank(static_cast<int>(rank), input.ranks[rank].host) + " names other aggregators than " +
              describe_rank(0, input.ranks.front().host) +
              ", or in another order, or one was restarted meanwhile: name the same ones on all ranks, or, "
              "below parents, those with the same parents",
          static_cast<int>(rank));
    if (Status status = check_size(topology.places); !status.ok()) return status;
    topology.links.push_back(sharing.link());
    topology.shards &= input.ranks[rank].shard;
  }
  return topology;
}

Result<plan::JobPlan> plan_of(const PlanInput& input) {
  const Result<plan::JobTopology> topology = topology_of(input);
  if (!topology.ok()) return topology.status();
  return plan::plan_job(*topology, input.shares);
}

}  // namespace netsum
