#include "session/job_membership.h"

#include <algorithm>
#include <utility>

#include "aggregator/dataplane/dataplane.h"
#include "netsum/settings.h"
#include "session/rack_membership.h"
#include "src/control/rack_client.h"
#include "src/job/capabilities.h"
#include "src/net/interface_rate.h"
#include "src/net/udp/udp_io.h"
#include "src/verify/verified_sums.h"
#include "wire/ids.h"

namespace netsum {

std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

namespace {

// The one place where a rank's options become the job's specification.
JobSpec job_spec(const JobMember& member, const CommunicatorOptions& options) {
  JobSpec job = new_job_spec();
  job.set_name(member.job);
  job.set_token(options.token);
  job.set_aggregator_token(options.aggregator_token);
  // A negative number becomes a huge one, which the aggregator refuses by name.
  job.set_world_size(static_cast<uint32_t>(member.world_size));
  job.set_mtu(static_cast<uint32_t>(options.mtu));
  job.set_slots(static_cast<uint32_t>(options.slots));
  job.set_when_full(static_cast<uint32_t>(options.when_full));
  job.set_shares(static_cast<uint32_t>(options.shares));
  job.set_verify(static_cast<uint32_t>(options.verify));
  job.set_numerics(static_cast<uint32_t>(options.numerics));
  job.set_phase_period_us(static_cast<uint64_t>(options.phase_period.count()));
  job.set_phase_offset_us(static_cast<uint64_t>(options.phase_offset.count()));
  for (const auto& [name, value] : joined_options(options)) {
    JobOption& option = *job.add_options();
    option.set_name(name);
    option.set_value(value);
  }
  if (options.lane_bits == 8) add_lanes8(job.mutable_needs());
  if (options.verify == Verify::kSum) need_cookies(job.mutable_needs());
  job.set_succeeds(member.succession.succeeds);
  job.set_min_members(static_cast<uint32_t>(member.succession.min_members));
  job.set_gather_ms(to_wire(member.succession.gather));
  return job;
}

// The link by which this rank reaches the others; 0 if its rate is not known.
LinkRate own_link(const CommunicatorOptions& options, const std::string& towards) {
  double bps = options.link_rate_bps;
  if (bps == 0) {
    const Result<Address> remote = Address::resolve(towards);
    const Result<Address> local = remote.ok() ? local_address_towards(*remote) : remote;
    const Result<double> reported = local.ok() ? interface_rate_bps(*local) : local.status();
    if (reported.ok()) bps = *reported;
  }
  LinkRate link;
  link.set_in_bps(bps);
  link.set_out_bps(bps);
  return link;
}

// Of the time for a move, the part in which a further aggregator that lives has answered.
constexpr int kPartForAnswers = 4;

// What the first of the job's `addresses` makes the plan of.
Result<Sharing> sharing(const CommunicatorOptions& options, const std::vector<std::string>& addresses,
                        std::chrono::steady_clock::time_point deadline) {
  Sharing sharing{.link = own_link(options, addresses.front()), .other_places = {}};
  for (size_t i = 1; i < addresses.size(); ++i) {
    Result<PlaceInfo> place =
        query_place(addresses[i], options.aggregator_token, options.tls, time_left(deadline));
    if (!place.ok()) return place.status();
    sharing.other_places.push_back(std::move(place).value());
  }
  return sharing;
}

JoinParameters join_parameters(const JobMember& member, const CommunicatorOptions& options) {
  JoinParameters join;
  join.job = job_spec(member, options);
  join.rank = member.rank;
  join.tls = options.tls;
  join.liveness = options.liveness_timeout;
  join.on_left = member.on_left;
  join.on_missing = member.on_missing;
  join.given_up = member.given_up;
  return join;
}

}  // namespace

Status join_job_for_rack(const JobMember& member, int ranks, const std::string& rack,
                         const CommunicatorOptions& options, std::chrono::steady_clock::time_point deadline,
                         std::vector<Memberships>* memberships) {
  memberships->resize(static_cast<size_t>(ranks));
  JoinParameters join = join_parameters(member, options);
  join.shard = below_parent(user_space_capabilities(NETSUM_MAX_PAYLOAD, /*multicast=*/false));
  for (const std::string& address : options.aggregators) {
    join.address = address;
    const Result<PlaceInfo> parent =
        query_place(address, options.aggregator_token, options.tls, time_left(deadline));
    if (!parent.ok()) return parent.status();
    join.timeout = time_left(deadline);
    auto clients = join_for_rack(join, ranks, rack, parent->stripes(), member.on_failure);
    for (size_t i = 0; i < clients.size(); ++i) {
      if (!clients[i].ok()) return clients[i].status();
      (*memberships)[i].push_back(std::move(clients[i]).value());
    }
  }
  return {};
}

Status join_job(const JobMember& member, const CommunicatorOptions& options, const Shard* shard,
                std::chrono::steady_clock::time_point deadline, Memberships* memberships) {
  JoinParameters join = join_parameters(member, options);
  join.host = member.host;
  join.completed = member.succession.completed;
  std::vector<std::string> addresses = options.aggregators;
  if (addresses.empty()) {
    addresses = {shard->root()};
    join.job.set_aggregator_token(options.token);  // rank 0's service serves this job alone
  }
  const bool moves = member.succession.succeeds != 0 && member.succession.min_members == 0;
  const auto now = std::chrono::steady_clock::now();
  Result<Sharing> shared =
      sharing(options, addresses, moves ? now + (deadline - now) / kPartForAnswers : deadline);
  Status unreachable;
  if (shared.ok()) {
    join.sharing = std::move(shared).value();
  } else if (moves && addresses.size() > 1) {
    // The others may reach it, and would wait for this rank.
    unreachable = {ErrorCode::kAggregatorLost, shared.status().message()};
  } else if (shared.status().code() != ErrorCode::kVersionMismatch || options.shares != Shares::kOff) {
    return shared.status();
  }
  if (shard != nullptr) {
    const DataplaneLimits limits = shard->limits();
    join.shard = limits.capabilities;
    join.shard_endpoint = shard->endpoint().to_string();
    join.shard_payload_bytes = limits.capabilities.payload_bytes();
    join.shard_slots = limits.slots_per_stripe;
    join.shard_job = member.shard_job;
  }
  // Shards send to few, and AF_XDP takes only what is sent to this rank alone.
  join.multicast = !options.aggregators.empty() && options.packet_io == PacketIoKind::kUdp &&
                   options.aggregators.size() <= UdpIoOptions::kMaxGroups;
  for (const std::string& address : addresses) {
    join.address = address;
    join.timeout = time_left(deadline);
    auto client = ControlClient::join(join, member.on_failure);
    if (!client.ok()) return client.status();
    memberships->push_back(std::move(client).value());
    if (!unreachable.ok()) return unreachable;
    join.sharing.reset();
    join.shard_endpoint.clear();
    if (join.job.min_members() == 0) continue;
    const ControlClient& first = *memberships->front();
    join.rank = first.rank();
    join.job.set_world_size(static_cast<uint32_t>(first.world_size()));
    join.job.set_succeeds(first.membership().succession_id);
    join.job.set_min_members(0);
  }
  return Status();
}

std::string who_lacks_words(const Memberships& memberships) {
  for (const auto& control : memberships) {
    const Membership& membership = control->membership();
    if (combines_words(membership.capabilities)) continue;
    return "the aggregator at " + membership.stripes.front().endpoint + ", or one that sums with it,";
  }
  return "";
}

uint32_t lane_room(const CommunicatorOptions& options, const Membership& membership) {
  if (options.verify == Verify::kPacket) return membership.payload_bytes;
  return verify::room_for_lanes(membership.payload_bytes, options.world_size);
}

void report_failure(const Memberships& memberships, const Status& status) {
  for (const auto& control : memberships) control->report_failure(status);
}

}  // namespace netsum
