// The aggregators of a hierarchy, as the share planner sees them: PlaceInfo::below.
//
// A path is one aggregator below the other, from the topmost one to the one that a member joins. The paths of all ranks
// make the tree of the hierarchy. Without a hierarchy, both are a single aggregator.
#ifndef NETSUM_SRC_JOB_PLACE_PATH_H_
#define NETSUM_SRC_JOB_PLACE_PATH_H_

#include <string>

#include "netsum/status.h"
#include "src/job/job.pb.h"

namespace netsum {

// Whether at most one aggregator is below each, and addresses are printable. `who` begins the message. kInvalidArgument.
Status check_path(const PlaceInfo& path, const std::string& who);

// The aggregator at the end of a path.
PlaceInfo* lowest_of(PlaceInfo* path);

// The path from `own`, the aggregator that got a request, to the member that sent it. `asked` is
// Sharing.first_place of the request.
PlaceInfo path_from(PlaceInfo own, const PlaceInfo& asked);

// The topmost aggregator of a path, as a tree without ranks.
PlaceInfo top_of(const PlaceInfo& path);

// Adds a rank that joins at the end of `path`. False: the topmost aggregators are not the same; `tree` is unchanged.
bool add_rank(const PlaceInfo& path, PlaceInfo* tree);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_PLACE_PATH_H_
