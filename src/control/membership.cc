#include "src/control/membership.h"

#include "src/control/control.pb.h"

namespace netsum {

Result<Membership> to_membership(const control::Ready& ready, const Address& aggregator) {
  Membership membership;
  membership.job = static_cast<uint16_t>(ready.job());
  membership.epoch = static_cast<uint16_t>(ready.epoch());
  membership.key = {ready.key_0(), ready.key_1()};
  membership.succession_id = ready.succession_id();
  membership.data_slots = ready.data_slots();
  membership.scale_slots = ready.scale_slots();
  membership.payload_bytes = ready.payload_bytes();
  membership.dataplane = ready.dataplane();
  membership.hosts.assign(ready.hosts().begin(), ready.hosts().end());
  membership.host_meeting = ready.host_meeting();
  for (const uint32_t member : ready.member_of_rank())
    membership.member_of_rank.push_back(static_cast<uint16_t>(member));
  if (!ready.group().empty()) {
    const Result<Address> group = Address::parse(ready.group());
    if (!group.ok()) return group.status();
    membership.group = *group;
  }
  for (const uint32_t rank : ready.former_ranks()) membership.former_ranks.push_back(static_cast<int>(rank));
  membership.completed = ready.completed();
  for (const control::Stripe& stripe : ready.stripes()) {
    const Result<Address> parsed = Address::parse(stripe.endpoint());
    if (!parsed.ok()) return parsed.status();
    Address endpoint = *parsed;
    if (endpoint.is_wildcard()) {
      endpoint = aggregator;
      endpoint.port = parsed->port;
    }
    membership.stripes.push_back({endpoint.to_string(),
                                  stripe.embedded() ? static_cast<int>(stripe.owner_rank()) : kNoRank,
                                  stripe.embedded()});
  }
  return membership;
}

}  // namespace netsum
