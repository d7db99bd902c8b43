// Requests from outside: read from their messages, and refused where no aggregator could take them.
#ifndef NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_
#define NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_

#include <vector>

#include "aggregator/control/job_table.h"
#include "netsum/status.h"
#include "src/control/control.pb.h"
#include "src/net/address.h"

namespace netsum {

MemberRequest to_member_request(const control::JoinRequest& request, const Address& peer);
MemberClaim to_member_claim(const control::MemberRequest& member);

// Names the first rule that a request for a job whose specification is right breaks.
Status check_member(const MemberRequest& request);
// A data endpoint on a wildcard is reached at the address that the member's call came to, so by the same version of IP:
// refuses a member that came by the other one.
Status check_family(const MemberRequest& request, const std::vector<Address>& endpoints);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_
