// Joining a job for several ranks that are one member of it, as those below an aggregator are.
#ifndef NETSUM_SRC_CONTROL_RACK_CLIENT_H_
#define NETSUM_SRC_CONTROL_RACK_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/control/client.h"

namespace netsum {

// As ControlClient::join, for `ranks` ranks from `parameters.rank` on, by one connection. All that join with the name `rack` are
// one member, whose contributions are the sums of theirs. `stripes`: over which it sums, equal for all racks of the job.
// `parameters.shard` is what it can sum; the other fields of shards and `sharing` are not set. Only the first rank sends heartbeats.
std::vector<Result<std::unique_ptr<ControlClient>>> join_for_rack(
    const JoinParameters& parameters, int ranks, const std::string& rack, uint32_t stripes,
    const std::function<void(const Status&)>& on_failure);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_RACK_CLIENT_H_
