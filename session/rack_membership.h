// Joining a job for several ranks that are one member of it (src/control/rack_client.h).
#ifndef NETSUM_SESSION_RACK_MEMBERSHIP_H_
#define NETSUM_SESSION_RACK_MEMBERSHIP_H_

#include <chrono>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "session/job_membership.h"

namespace netsum {

// As join_job(), for `ranks` ranks from member.rank on, which join with the name `rack`. (*memberships)[i]: of the rank i after that
// one. They offer no shards, and tell nothing for a plan.
Status join_job_for_rack(const JobMember& member, int ranks, const std::string& rack,
                         const CommunicatorOptions& options, std::chrono::steady_clock::time_point deadline,
                         std::vector<Memberships>* memberships);

}  // namespace netsum

#endif  // NETSUM_SESSION_RACK_MEMBERSHIP_H_
