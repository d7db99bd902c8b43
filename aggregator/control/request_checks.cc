#include "aggregator/control/request_checks.h"

#include <bit>

#include "src/base/text.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

static_assert(kMaxMembers == NETSUM_MAX_MEMBERS);

std::string number(uint64_t value) {
  return std::to_string(value);
}

Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// `what`: whose text it is, for the message.
Status check_text(const std::string& what, const std::string& text, size_t most_bytes) {
  if (text.size() > most_bytes)
    return invalid(what + " has " + number(text.size()) + " bytes; at most " + number(most_bytes) +
                   " are allowed");
  if (!is_printable(text)) return invalid(what + " may hold printable ASCII characters only");
  return {};
}

WhenFull to_when_full(uint32_t value) {
  return value <= static_cast<uint32_t>(WhenFull::kHosts) ? static_cast<WhenFull>(value) : WhenFull::kFail;
}

}  // namespace

JobRequest to_job_request(const control::JobDescription& job) {
  return {job.protocol_version(),
          job.name(),
          job.token(),
          job.aggregator_token(),
          job.world_size(),
          job.mtu(),
          job.slots(),
          job.succeeds(),
          job.min_members(),
          job.gather_ms() * int64_t{1000},
          to_when_full(job.when_full())};
}

MemberRequest to_member_request(const control::JoinRequest& request, const Address& peer) {
  MemberRequest member;
  member.job = to_job_request(request.job());
  member.rank = request.rank();
  member.deadline_us = request.deadline_ms() * int64_t{1000};
  member.shard_endpoint = request.shard_endpoint();
  member.shard_payload_bytes = request.shard_payload_bytes();
  member.shard_slots = request.shard_slots();
  member.rack = request.rack();
  member.rack_payload_bytes = request.rack_payload_bytes();
  member.rack_slots = request.rack_slots();
  member.rack_stripes = request.rack_stripes();
  member.origin = request.origin();
  member.multicast = request.multicast();
  member.host = request.host();
  member.completed = request.completed();
  member.liveness_us = request.liveness_ms() * int64_t{1000};
  member.peer = peer;
  return member;
}

MemberClaim to_member_claim(const control::MemberRequest& member) {
  return {member.job(), member.token(), member.aggregator_token(), member.rank(), member.member()};
}

Status check_version(const JobRequest& request) {
  if (request.protocol_version == NETSUM_VERSION) return {};
  return {ErrorCode::kVersionMismatch, "the worker speaks protocol version " +
                                           number(request.protocol_version) + ", this aggregator version " +
                                           number(NETSUM_VERSION) +
                                           ": install the same release of netsum on both"};
}

Status check_description(const JobRequest& request) {
  if (request.name.empty())
    return invalid("the job name has 0 bytes; 1 to " + number(kMaxJobNameBytes) + " are allowed");
  if (Status status = check_text("the job name", request.name, kMaxJobNameBytes); !status.ok()) return status;
  if (request.token.size() > kMaxTokenBytes)
    return invalid("the token of job '" + request.name + "' has " + number(request.token.size()) +
                   " bytes; at most " + number(kMaxTokenBytes) + " are allowed");
  if (request.world_size < 1 || request.world_size > kMaxRanks)
    return invalid("world size " + number(request.world_size) + " of job '" + request.name +
                   "' is out of range: a job has 1 to " + number(kMaxRanks) + " ranks");
  if (request.mtu < wire::kMinMtu || request.mtu > wire::kMaxMtu)
    return invalid("mtu " + number(request.mtu) + " is out of range: " + number(wire::kMinMtu) + " to " +
                   number(wire::kMaxMtu) + " are possible, 1500 is usual");
  if (request.min_members > request.world_size || (request.min_members > 0 && request.succeeds == 0))
    return invalid("min_members " + number(request.min_members) + " of job '" + request.name +
                   "' is out of range: at most its world size, and only for a job that succeeds another");
  if (!std::has_single_bit(request.slots))
    return invalid("slots must be a power of two, and " + number(request.slots) + " is not; 256 is usual");
  return {};
}

Status check_member(const MemberRequest& request) {
  const std::string who = "rank " + number(request.rank);
  if (request.rank >= request.job.world_size)
    return invalid(who + " is out of range: job '" + request.job.name + "' has world size " +
                   number(request.job.world_size) + ", so ranks 0 to " + number(request.job.world_size - 1));
  if (Status status = check_text(who + "'s name of its host", request.host, kMaxHostBytes); !status.ok())
    return status;
  if (Status status = check_text(who + "'s rack", request.rack, kMaxJobNameBytes); !status.ok())
    return status;
  if (request.rack.empty() && !request.origin.empty())
    return invalid(who + " names an origin, which only an aggregator does that joins for its ranks");
  return check_text(who + "'s origin", request.origin, kMaxJobNameBytes);
}

}  // namespace netsum
