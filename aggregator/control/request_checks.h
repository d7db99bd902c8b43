// Converts requests from their messages, and refuses those that no aggregator accepts.
#ifndef NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_
#define NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "aggregator/control/job_table.h"
#include "netsum/status.h"
#include "src/control/control.pb.h"
#include "src/net/address.h"

namespace netsum {

// For messages.
std::string decimal(uint64_t value);
// kInvalidArgument.
Status invalid_request(std::string message);

MemberRequest to_member_request(const control::JoinRequest& request, const Address& peer);
MemberClaim to_member_claim(const control::MemberRequest& member);

// Keyed, so that it tells nothing about tokens.
uint64_t hash_of_token(const netsum_key& key, const std::string& token);
// The first half of it, for status reports.
std::string name_of_token(const netsum_key& key, const std::string& token);

// The error names the first rule that the request violates. The job's specification has been checked.
Status check_member(const MemberRequest& request);
// Whether what the member declares for the plan has a place in it, and takes no more memory than needed.
Status check_sharing(const MemberRequest& request);
// Members reach a wildcard endpoint at the address that they used for the control connection, so with the same version
// of IP. Refuses a member that used the other version.
Status check_family(const MemberRequest& request, const std::vector<Address>& endpoints);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_REQUEST_CHECKS_H_
