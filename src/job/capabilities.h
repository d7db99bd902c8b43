// Compares the capabilities of dataplanes with the needs of jobs, by the rules of Capabilities in job.proto.
#ifndef NETSUM_SRC_JOB_CAPABILITIES_H_
#define NETSUM_SRC_JOB_CAPABILITIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/job/job.pb.h"

namespace netsum {

// The capabilities of a dataplane that implements protocol version 2, without multicast, words and element values.
Capabilities standard_capabilities(uint32_t payload_bytes);
// Adds the formats of unsigned words: maxima, OR and XOR.
void add_words(Capabilities* can);
// Whether the formats include all formats of words.
bool combines_words(const Capabilities& can);
// Adds what 8-bit lanes need to the needs of a job: their sums, and ORs of marks (src/encoding/fixed_point.h). The standard
// formats that floating-point types then do not need remain, for other types.
void add_lanes8(Capabilities* needs);
// Of a dataplane: adds jobs whose packets have cookies in place of tags.
void add_cookies(Capabilities* can);
// A job that needs it has packets with cookies in place of tags.
void need_cookies(Capabilities* needs);
// What the packets of the job have: NETSUM_TAG_*.
uint32_t packet_tag_of(const JobSpec& job);
// netsum::Verify of the jobs that a dataplane can sum for, by name.
std::vector<std::string> verify_modes_of(const Capabilities& can);
// Adds the formats of element values.
void add_values(Capabilities* can);
// Whether the formats include all formats of values.
bool sums_values(const Capabilities& can);
// Whether the formats include SUM of float32 values: what the dataplanes of a hierarchy add are sums of float32.
bool sums_partial_floats(const Capabilities& can);
// Whether the formats of floats that it has are taken in data slots, too: operations of any size are added as floats.
bool adds_floats(const Capabilities& can);
// Whether the dataplanes of the job then do so: the job has no use for it otherwise.
bool adds_floats(const Capabilities& can, const JobSpec& job);
// The capabilities of a dataplane with a parent: of values only SUM of float32. Means and 16-bit types would be divided and
// rounded at each level.
Capabilities below_parent(Capabilities can);
// The maximum number of members of a job.
uint32_t most_members_of(const Capabilities& who);
// The capabilities that both have, without fields of later releases.
Capabilities common(const Capabilities& a, const Capabilities& b);
// Whether the lists are so short that comparing them takes no time worth mentioning. `what` begins the message.
// kInvalidArgument.
Status check_lists(const Capabilities& who, const std::string& what);
// Whether `can` meets the needs of the job. `who` names the owner of `can`, such as "the dataplane 'xdp' of this
// aggregator". The error names the first missing capability and says what to do. kUnsupported.
Status check_needs(const JobSpec& job, const Capabilities& can, const std::string& who);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_CAPABILITIES_H_
