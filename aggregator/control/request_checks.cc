#include "aggregator/control/request_checks.h"

#include <cstdio>
#include <cstring>

#include "src/base/text.h"
#include "src/job/place_path.h"
#include "src/plan/job_plan.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {

static_assert(kMaxMembers == NETSUM_MAX_MEMBERS);

std::string decimal(uint64_t value) {
  return std::to_string(value);
}

Status invalid_request(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

MemberRequest to_member_request(const control::JoinRequest& request, const Address& peer) {
  MemberRequest member;
  member.job = request.job();
  member.rank = request.rank();
  member.deadline_us = request.deadline_ms() * int64_t{1000};
  member.shard_endpoint = request.shard_endpoint();
  member.shard_payload_bytes = request.shard_payload_bytes();
  member.shard_slots = request.shard_slots();
  member.rack = request.rack();
  member.rack_payload_bytes = request.rack_payload_bytes();
  member.rack_slots = request.rack_slots();
  member.rack_stripes = request.rack_stripes();
  if (request.has_rack_rank() && request.rack_rank() < request.job().world_size())
    member.rack_rank = static_cast<int>(request.rack_rank());
  member.dataplane = request.dataplane();
  if (request.has_sharing()) member.sharing = request.sharing();
  member.shard_job = request.shard_job();
  member.origin = request.origin();
  member.multicast = request.multicast();
  member.host = request.host();
  member.completed = request.completed();
  member.liveness_us = request.liveness_ms() * int64_t{1000};
  member.peer = peer;
  return member;
}

MemberClaim to_member_claim(const control::MemberRequest& member) {
  return {member.job(),  member.token(),  member.aggregator_token(),
          member.rank(), member.member(), member.until_all_left()};
}

uint64_t hash_of_token(const netsum_key& key, const std::string& token) {
  netsum_sip hash = netsum_sip_begin(&key);
  const auto word_at = [&](size_t at, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, token.data() + at, bytes);
    return word;
  };
  size_t at = 0;
  for (; at + 8 <= token.size(); at += 8) netsum_sip_word(&hash, word_at(at, 8));
  return netsum_sip_end(&hash, word_at(at, token.size() - at), static_cast<uint32_t>(token.size()));
}

std::string name_of_token(const netsum_key& key, const std::string& token) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(hash_of_token(key, token) >> 32));
  return text;
}

Status check_member(const MemberRequest& request) {
  const std::string who = "rank " + decimal(request.rank);
  if (request.rank >= request.job.world_size())
    return invalid_request(who + " is out of range: job '" + request.job.name() + "' has world size " +
                           decimal(request.job.world_size()) + ", so ranks 0 to " +
                           decimal(request.job.world_size() - 1));
  if (Status status = check_text(who + "'s name of its host", request.host, kMaxHostBytes); !status.ok())
    return status;
  if (Status status = check_text(who + "'s rack", request.rack, kMaxJobNameBytes); !status.ok())
    return status;
  if (request.rack.empty() && !request.origin.empty())
    return invalid_request(who +
                           " gives an origin, which only an aggregator that joins for its ranks may do");
  if (Status status = check_text(who + "'s origin", request.origin, kMaxJobNameBytes); !status.ok())
    return status;
  if (request.liveness_us != 0 && request.liveness_us < kLeastLivenessUs)
    return invalid_request(
        who + "'s liveness timeout is " + decimal(static_cast<uint64_t>(request.liveness_us) / 1000) +
        " ms; it must be at least " + decimal(kLeastLivenessUs / 1000) + " ms, or 0 for never");
  if (Status status = check_lists(request.dataplane, who + "'s dataplane"); !status.ok()) return status;
  return check_sharing(request);
}

Status check_sharing(const MemberRequest& request) {
  if (!request.sharing) return {};
  const std::string who = "rank " + decimal(request.rank);
  if (const size_t bytes = request.sharing->ByteSizeLong(); bytes > kMaxSharingBytes)
    return {ErrorCode::kResourceExhausted, who + " declares links and aggregators in " + decimal(bytes) +
                                               " bytes; at most " + decimal(kMaxSharingBytes) +
                                               " are possible: name fewer aggregators"};
  std::vector<const PlaceInfo*> paths = {&request.sharing->first_place()};
  for (const PlaceInfo& place : request.sharing->other_places()) paths.push_back(&place);
  for (const PlaceInfo* path : paths) {
    if (Status status = check_path(*path, who); !status.ok()) return status;
  }
  return plan::check_declared(request.sharing->link(), paths, who);
}

Status check_family(const MemberRequest& request, const std::vector<Address>& endpoints) {
  if (!request.peer.valid()) return {};
  for (const Address& endpoint : endpoints) {
    if (!endpoint.is_wildcard() || endpoint.family == request.peer.family) continue;
    const std::string data = "IPv" + decimal(endpoint.family);
    return invalid_request("rank " + decimal(request.rank) + " reached this aggregator over IPv" +
                           decimal(request.peer.family) + ", but it takes data over " + data +
                           " only: use its " + data + " address, or start it listening on " +
                           (endpoint.family == 4 ? "[::]" : "0.0.0.0"));
  }
  return {};
}

}  // namespace netsum
