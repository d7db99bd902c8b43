#include "aggregator/control/job_service.h"

#include <sys/random.h>

#include "src/base/assert.h"

namespace netsum {

uint64_t system_random() {
  uint64_t value = 0;
  // Reads of up to 256 bytes are never partial.
  NETSUM_ASSERT(::getrandom(&value, sizeof(value), 0) == sizeof(value));
  return value;
}

control::Ready to_ready(const JobGrant& grant) {
  control::Ready ready;
  ready.set_job(grant.job.job);
  ready.set_epoch(grant.job.epoch);
  ready.set_key_0(grant.job.key.k0);
  ready.set_key_1(grant.job.key.k1);
  ready.set_succession_id(grant.succession_id);
  ready.set_sum_secret_0(grant.sum_secret.k0);
  ready.set_sum_secret_1(grant.sum_secret.k1);
  ready.set_data_slots(grant.job.data_slots);
  ready.set_scale_slots(grant.job.scale_slots);
  ready.set_payload_bytes(grant.job.payload_bytes);
  ready.set_dataplane(grant.dataplane);
  for (const std::string& host : grant.hosts) ready.add_hosts(host);
  ready.set_host_meeting(grant.host_meeting);
  for (const StripeGrant& grant_of_stripe : grant.stripes) {
    control::Stripe& stripe = *ready.add_stripes();
    stripe.set_endpoint(grant_of_stripe.endpoint);
    stripe.set_embedded(grant_of_stripe.embedded);
    if (!grant_of_stripe.embedded) continue;
    stripe.set_owner_rank(static_cast<uint32_t>(grant_of_stripe.owner_rank));
    stripe.set_job(grant_of_stripe.job);
  }
  if (grant.job.multicast_group.valid()) ready.set_multicast_group(grant.job.multicast_group.to_string());
  for (const uint16_t member : grant.member_of_rank) ready.add_member_of_rank(member);
  for (const int rank : grant.former_ranks) ready.add_former_ranks(static_cast<uint32_t>(rank));
  ready.set_completed(grant.completed);
  if (grant.inside_rank != kNoRank) ready.set_inside_rank(static_cast<uint32_t>(grant.inside_rank));
  *ready.mutable_capabilities() = grant.capabilities;
  *ready.mutable_plan() = grant.plan;
  return ready;
}

}  // namespace netsum
