#include "src/control/membership.h"

#include "src/control/control.pb.h"

#include <bit>
#include <cstdint>

#include "netsum/options.h"
#include "src/base/text.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

constexpr uint32_t kMostSlots = 65536;
constexpr int kMostStripes = 65536;
constexpr size_t kReadyTextBytes = 256;
constexpr size_t kPlanBytes = 8192;

// The first invalid value, or "". The worker's engine relies on these checks.
std::string impossible_in(const control::Ready& ready) {
  const auto has = [](const char* what, uint64_t value) { return what + (" " + std::to_string(value)); };
  if (ready.job() > UINT16_MAX) return has("job", ready.job());
  if (ready.epoch() > UINT16_MAX) return has("epoch", ready.epoch());
  if (!std::has_single_bit(ready.data_slots()) || ready.data_slots() > kMostSlots)
    return has("data slots", ready.data_slots());
  if (ready.scale_slots() < 1 || ready.scale_slots() > kMostSlots)
    return has("scale slots", ready.scale_slots());
  if (ready.payload_bytes() < wire::kMinPayload || ready.payload_bytes() % 32 != 0 ||
      ready.payload_bytes() > NETSUM_MAX_PAYLOAD)
    return has("payload bytes", ready.payload_bytes());
  if (ready.stripes_size() < 1 || ready.stripes_size() > kMostStripes)
    return has("stripes", static_cast<uint64_t>(ready.stripes_size()));
  for (const control::Stripe& stripe : ready.stripes())
    if (stripe.owner_rank() >= kMaxRanks) return has("owner rank", stripe.owner_rank());
  for (const control::Stripe& stripe : ready.stripes())
    if (stripe.job() > UINT16_MAX) return has("a stripe's job", stripe.job());
  if (ready.plan().weights_size() > kMostStripes)
    return has("weights", static_cast<uint64_t>(ready.plan().weights_size()));
  for (const uint32_t weight : ready.plan().weights())
    if (weight > kMostStripes) return has("a weight of", weight);
  for (const int ranks : {ready.hosts_size(), ready.member_of_rank_size(), ready.former_ranks_size()})
    if (ranks > kMaxRanks) return has("ranks", static_cast<uint64_t>(ranks));
  for (const uint32_t member : ready.member_of_rank())
    if (member >= NETSUM_MAX_MEMBERS && member != NETSUM_MEMBER_ALL) return has("member", member);
  for (const uint32_t rank : ready.former_ranks())
    if (rank >= kMaxRanks) return has("former rank", rank);
  return "";
}

}  // namespace

Result<Membership> to_membership(const control::Ready& ready, const Address& aggregator) {
  if (const std::string what = impossible_in(ready); !what.empty())
    return Status(
        ErrorCode::kVersionMismatch,
        "the aggregator has granted a job with " + what +
            ", which is out of range: it is of another release, or faulty; install the same release "
            "of netsum on both");
  Membership membership;
  membership.job = static_cast<uint16_t>(ready.job());
  membership.epoch = static_cast<uint16_t>(ready.epoch());
  membership.key = {ready.key_0(), ready.key_1()};
  membership.sum_secret = {ready.sum_secret_0(), ready.sum_secret_1()};
  membership.succession_id = ready.succession_id();
  membership.data_slots = ready.data_slots();
  membership.scale_slots = ready.scale_slots();
  membership.payload_bytes = ready.payload_bytes();
  membership.dataplane = printable(ready.dataplane(), kReadyTextBytes);
  membership.hosts.assign(ready.hosts().begin(), ready.hosts().end());
  membership.host_meeting = ready.host_meeting();
  for (const uint32_t member : ready.member_of_rank())
    membership.member_of_rank.push_back(static_cast<uint16_t>(member));
  if (!ready.multicast_group().empty()) {
    const Result<Address> group = Address::parse(ready.multicast_group());
    if (!group.ok())
      return Status(group.status().code(), printable(group.status().message(), kReadyTextBytes));
    membership.multicast_group = *group;
  }
  for (const uint32_t rank : ready.former_ranks()) membership.former_ranks.push_back(static_cast<int>(rank));
  membership.completed = ready.completed();
  membership.capabilities = ready.capabilities();
  membership.plan = ready.plan();
  membership.plan.set_text(printable(ready.plan().text(), kPlanBytes));
  for (const control::Stripe& stripe : ready.stripes()) {
    const Result<Address> parsed = Address::parse(stripe.endpoint());
    if (!parsed.ok())
      return Status(parsed.status().code(), printable(parsed.status().message(), kReadyTextBytes));
    Address endpoint = *parsed;
    if (endpoint.is_wildcard()) {
      endpoint = aggregator;
      endpoint.port = parsed->port;
    }
    // The sender's number of the link's interface is not ours.
    if (endpoint.is_link_local() && aggregator.is_link_local()) endpoint.scope = aggregator.scope;
    membership.stripes.push_back(
        {endpoint.to_string(), stripe.embedded() ? static_cast<int>(stripe.owner_rank()) : kNoRank,
         stripe.embedded(), stripe.has_job() ? static_cast<uint16_t>(stripe.job()) : membership.job});
  }
  return membership;
}

Status check_sum_secret(const Membership& membership, const JobSpec& spec, const std::string& aggregator) {
  if (spec.verify() == static_cast<uint32_t>(Verify::kPacket) || membership.sum_secret != netsum_key{})
    return {};
  return {ErrorCode::kVersionMismatch, "the aggregator at " + aggregator +
                                           ", or its parent, has granted job '" + spec.name() +
                                           "' no secret for verified sums: it is of another release; install "
                                           "the same release of netsum on all "
                                           "hosts, or set verify to packet (NETSUM_VERIFY=packet)"};
}

}  // namespace netsum
