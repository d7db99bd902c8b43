#include "src/control/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/control/control.pb.h"
#include "src/job/job_spec.h"

namespace netsum::membership_test {
namespace {

control::Ready good() {
  control::Ready ready;
  ready.set_data_slots(256);
  ready.set_scale_slots(16);
  ready.set_payload_bytes(1440);
  ready.add_stripes()->set_endpoint("0.0.0.0:5152");
  return ready;
}

Address aggregator() {
  return Address::parse("10.0.0.9:5151").value();
}

TEST(Membership, AWildcardIsTheAddressAtWhichTheAggregatorWasReached) {
  const Result<Membership> membership = to_membership(good(), aggregator());
  ASSERT_TRUE(membership.ok()) << membership.status().to_string();
  EXPECT_EQ(membership->stripes.at(0).endpoint, "10.0.0.9:5152");
}

TEST(Membership, LinkLocalAddressesAreOnTheLinkByWhichTheAggregatorWasReached) {
  control::Ready ready = good();
  ready.mutable_stripes(0)->set_endpoint("[fe80::2%92]:5152");
  ready.add_stripes()->set_endpoint("[fd77::2]:5152");
  const Address at = Address::parse("[fe80::9%7]:5151").value();
  const Result<Membership> membership = to_membership(ready, at);
  ASSERT_TRUE(membership.ok()) << membership.status().to_string();
  EXPECT_EQ(membership->stripes.at(0).endpoint, "[fe80::2%7]:5152");
  EXPECT_EQ(membership->stripes.at(1).endpoint, "[fd77::2]:5152");
}

// Whatever answers at the address: an error, not an abort.
TEST(Membership, WhatCannotWorkIsRefused) {
  const auto expect_refused = [](const control::Ready& ready, const char* what) {
    const Result<Membership> membership = to_membership(ready, aggregator());
    ASSERT_FALSE(membership.ok()) << what;
    EXPECT_EQ(membership.status().code(), ErrorCode::kVersionMismatch);
    EXPECT_THAT(membership.status().message(), testing::HasSubstr(what));
  };
  control::Ready ready = good();
  for (const uint32_t payload : {0u, 32u, 63u, 65u, 8960u, UINT32_MAX}) {
    ready.set_payload_bytes(payload);
    expect_refused(ready, "payload bytes");
  }
  ready = good();
  for (const uint32_t slots : {0u, 3u, 131'072u, UINT32_MAX}) {
    ready.set_data_slots(slots);
    expect_refused(ready, "data slots");
  }
  ready = good();
  ready.set_scale_slots(0);
  expect_refused(ready, "scale slots");
  ready = good();
  ready.clear_stripes();
  expect_refused(ready, "stripes 0");
  ready = good();
  ready.add_member_of_rank(64);
  expect_refused(ready, "member 64");
}

TEST(Membership, VerifiedSumsNeedASecret) {
  control::Ready ready = good();
  JobSpec spec = new_job_spec();
  spec.set_name("mine");
  const auto check = [&] {
    return check_sum_secret(to_membership(ready, aggregator()).value(), spec, "10.0.0.9:5151");
  };
  EXPECT_TRUE(check().ok()) << "only packets have tags";
  for (const uint32_t verify : {1u, 2u, 7u}) {
    spec.set_verify(verify);
    ready.set_sum_secret_1(0);
    EXPECT_EQ(check().code(), ErrorCode::kVersionMismatch);
    EXPECT_THAT(check().message(),
                testing::HasSubstr("10.0.0.9:5151, or its parent, has granted job 'mine' no"));
    ready.set_sum_secret_1(1);
    EXPECT_TRUE(check().ok()) << check().to_string();
  }
}

}  // namespace
}  // namespace netsum::membership_test
