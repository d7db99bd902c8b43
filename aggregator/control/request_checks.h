// Requests from outside: read from their messages, and refused where no aggregator could take them.
#ifndef NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_
#define NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_

#include "aggregator/control/job_table.h"
#include "netsum/status.h"
#include "src/control/control.pb.h"
#include "src/net/address.h"

namespace netsum {

JobRequest to_job_request(const control::JobDescription& job);
MemberRequest to_member_request(const control::JoinRequest& request, const Address& peer);
MemberClaim to_member_claim(const control::MemberRequest& member);

// Each names the first rule that the request breaks. The version comes before anything else: with another one,
// the other fields may mean something else.
Status check_version(const JobRequest& request);
Status check_description(const JobRequest& request);
// Of a job whose description is right.
Status check_member(const MemberRequest& request);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_
