// What dataplanes can do, compared with what jobs need: the rules of Capabilities in job.proto.
#ifndef NETSUM_SRC_JOB_CAPABILITIES_H_
#define NETSUM_SRC_JOB_CAPABILITIES_H_

#include <cstdint>
#include <string>

#include "netsum/status.h"
#include "src/job/job.pb.h"

namespace netsum {

// Of a dataplane that can do all of protocol version 2 and nothing more, but multicast.
Capabilities standard_capabilities(uint32_t payload_bytes);
// Of a dataplane that besides takes element values.
void add_values(Capabilities* can);
// Whether all formats of values are among its formats.
bool sums_values(const Capabilities& can);
// Of a dataplane that passes its sums on to a parent: without values, whose sum the parent could not go on with.
Capabilities without_values(Capabilities can);
// The most members of a job.
uint32_t most_members_of(const Capabilities& who);
// What both can do. Fields of later releases are left out.
Capabilities common(const Capabilities& a, const Capabilities& b);
// That `can` is enough for the job. `who` can: "the dataplane 'xdp' of this aggregator". kUnsupported: names the first
// capability that is missing, who lacks it, and what to do.
Status check_needs(const JobSpec& job, const Capabilities& can, const std::string& who);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_CAPABILITIES_H_
