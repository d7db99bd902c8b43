// What a member of a job is granted.
#ifndef NETSUM_SRC_CONTROL_MEMBERSHIP_H_
#define NETSUM_SRC_CONTROL_MEMBERSHIP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/job/job.pb.h"
#include "src/net/address.h"
#include "wire/packet.h"

namespace netsum {

namespace control {
class Ready;
}

struct StripeInfo {
  std::string endpoint;  // numeric, never a wildcard
  int owner_rank = kNoRank;
  bool embedded = false;
  uint16_t job = 0;  // as the stripe knows it
};

struct Membership {
  uint16_t job = 0;
  uint16_t epoch = 0;
  netsum_key key{};
  netsum_key sum_secret{};  // of the tags of verified sums, the same on all ranks of a hierarchy; 0: none
  uint32_t data_slots = 0;
  uint32_t scale_slots = 0;
  uint32_t payload_bytes = 0;
  std::string dataplane;
  std::vector<StripeInfo> stripes;
  std::vector<std::string> hosts;  // of the ranks, as they named them; empty if no two can share memory
  uint64_t host_meeting = 0;       // random, the same for all ranks
  // Hierarchy: by rank, the number of its member at this aggregator, or NETSUM_MEMBER_ALL. Empty: every rank is the member
  // of the same number.
  std::vector<uint16_t> member_of_rank;
  Address multicast_group;  // of packets to all members; not valid: every member gets its own copy
  // By rank, the one that it joined as; empty: the same.
  std::vector<int> former_ranks;
  uint64_t succession_id = 0;  // identifies this job to its successor
  uint64_t completed = 0;      // the least of the members' JoinParameters::completed
  Capabilities capabilities;   // what all dataplanes that sum for the job can do
  SharePlan plan;              // without weights: all stripes are equal
  JobSpec spec;                // what the members have asked for, without their tokens; by the client
};

// `aggregator`: the numeric address at which the aggregator was reached, for stripes on a wildcard address.
// Errors: kInvalidArgument (an endpoint or multicast group that is not an address), kVersionMismatch (a value out of range).
Result<Membership> to_membership(const control::Ready& ready, const Address& aggregator);

// kVersionMismatch if the ranks of the job verify sums, and `aggregator` has granted no secret for their tags.
Status check_sum_secret(const Membership& membership, const JobSpec& spec, const std::string& aggregator);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_MEMBERSHIP_H_
