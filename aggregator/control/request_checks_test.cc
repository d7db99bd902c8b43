// Requests with hostile values, as they come from the wire.
#include "aggregator/control/request_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "aggregator/control/event_queue.h"
#include "src/base/text.h"
#include "src/control/membership.h"
#include "src/control/rpc_status.h"
#include "wire/ids.h"

namespace netsum::request_checks_test {
namespace {

using ::testing::HasSubstr;
constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();

control::JoinRequest good_request() {
  control::JoinRequest request;
  request.mutable_job()->set_protocol_version(NETSUM_VERSION);
  request.mutable_job()->set_name("train");
  request.mutable_job()->set_world_size(4);
  request.mutable_job()->set_mtu(1500);
  request.mutable_job()->set_slots(256);
  request.set_rank(1);
  return request;
}

Status check(const control::JoinRequest& message) {
  const MemberRequest request = to_member_request(message, Address());
  if (Status status = check_version(request.job); !status.ok()) return status;
  if (Status status = check_spec(request.job); !status.ok()) return status;
  return check_member(request);
}

struct Hostile {
  const char* name;
  std::function<void(control::JoinRequest&)> spoil;
  const char* says;
};

class HostileRequest : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileRequest, IsRefusedWithAReason) {
  control::JoinRequest request = good_request();
  ASSERT_TRUE(check(request).ok());
  GetParam().spoil(request);
  const Status status = check(request);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(GetParam().says));
  EXPECT_TRUE(is_printable(status.message())) << status.message();
  EXPECT_LT(status.message().size(), 1024u);
}

using Request = control::JoinRequest;
INSTANTIATE_TEST_SUITE_P(
    RequestChecks, HostileRequest,
    ::testing::Values(
        Hostile{"version", [](Request& r) { r.mutable_job()->set_protocol_version(kHuge); },
                "protocol version"},
        Hostile{"no_job", [](Request& r) { r.clear_job(); }, "protocol version 0"},
        Hostile{"no_name", [](Request& r) { r.mutable_job()->clear_name(); }, "0 bytes"},
        Hostile{"long_name", [](Request& r) { r.mutable_job()->set_name(std::string(60'000, 'x')); },
                "60000 bytes"},
        Hostile{"line_in_name", [](Request& r) { r.mutable_job()->set_name("a\nlevel=error"); }, "printable"},
        Hostile{"escape_in_name", [](Request& r) { r.mutable_job()->set_name("a\x1b[2Jb"); }, "printable"},
        Hostile{"zero_in_name", [](Request& r) { r.mutable_job()->set_name(std::string("a\0b", 3)); },
                "printable"},
        Hostile{"c1_in_name",
                [](Request& r) {
                  r.mutable_job()->set_name(
                      "a\xc2\x9b"
                      "2J");
                },
                "printable"},
        Hostile{"token", [](Request& r) { r.mutable_job()->set_token(std::string(60'000, '\n')); },
                "60000 bytes"},
        Hostile{"no_world", [](Request& r) { r.mutable_job()->set_world_size(0); }, "world size 0"},
        Hostile{"world", [](Request& r) { r.mutable_job()->set_world_size(kHuge); }, "world size 4294967295"},
        Hostile{"no_mtu", [](Request& r) { r.mutable_job()->set_mtu(0); }, "mtu 0"},
        Hostile{"mtu", [](Request& r) { r.mutable_job()->set_mtu(kHuge); }, "mtu 4294967295"},
        Hostile{"no_slots", [](Request& r) { r.mutable_job()->set_slots(0); }, "power of two"},
        Hostile{"slots", [](Request& r) { r.mutable_job()->set_slots(kHuge); }, "power of two"},
        Hostile{"min_members",
                [](Request& r) {
                  r.mutable_job()->set_succeeds(1);
                  r.mutable_job()->set_min_members(kHuge);
                },
                "min_members"},
        Hostile{"succeeds_none", [](Request& r) { r.mutable_job()->set_min_members(1); }, "min_members"},
        Hostile{"rank", [](Request& r) { r.set_rank(4); }, "rank 4 is out of range"},
        Hostile{"huge_rank", [](Request& r) { r.set_rank(kHuge); }, "rank 4294967295"},
        Hostile{"host", [](Request& r) { r.set_host("a\rb"); }, "printable"},
        Hostile{"long_host", [](Request& r) { r.set_host(std::string(129, 'h')); }, "129 bytes"},
        Hostile{"rack", [](Request& r) { r.set_rack("a\nb"); }, "rack"},
        Hostile{"long_rack", [](Request& r) { r.set_rack(std::string(60'000, 'r')); }, "60000 bytes"},
        Hostile{"origin_of_a_rank", [](Request& r) { r.set_origin("10.0.0.9"); }, "origin"},
        Hostile{"origin",
                [](Request& r) {
                  r.set_rack("r");
                  r.set_origin("10.0.0.9\nlevel=error");
                },
                "printable"},
        Hostile{"long_origin",
                [](Request& r) {
                  r.set_rack("r");
                  r.set_origin(std::string(60'000, 'o'));
                },
                "60000 bytes"}),
    [](const auto& input) { return std::string(input.param.name); });

TEST(RequestChecksTest, TheLongestTimesAreLongAndNotNegative) {
  control::JoinRequest request = good_request();
  request.set_deadline_ms(kHuge);
  request.set_liveness_ms(kHuge);
  request.mutable_job()->set_gather_ms(kHuge);
  request.set_completed(std::numeric_limits<uint64_t>::max());
  const MemberRequest member = to_member_request(request, Address());
  EXPECT_EQ(member.deadline_us, int64_t{kHuge} * 1000);
  EXPECT_EQ(member.liveness_us, int64_t{kHuge} * 1000);
  EXPECT_EQ(member.job.gather_ms(), kHuge);
}

TEST(RequestChecksTest, AnUnknownWayToWaitIsTheDefault) {
  control::JoinRequest request = good_request();
  request.mutable_job()->set_when_full(kHuge);
  EXPECT_EQ(when_full_of(request.job()), WhenFull::kFail);
}

TEST(RequestChecksTest, ReportedTextIsOneShortLine) {
  control::Event::Failed failed;
  failed.set_code(std::numeric_limits<int>::max());
  failed.set_rank(std::numeric_limits<int>::min());
  failed.set_message("bad\nlevel=error\x1b[2J\x07" + std::string(60'000, '\xff'));
  const Status status = from_failed(failed);
  EXPECT_EQ(status.code(), ErrorCode::kInternal);
  EXPECT_EQ(status.rank(), kNoRank);
  EXPECT_THAT(status.message(), ::testing::StartsWith("bad\\nlevel=error\\x1b[2J\\x07\\xff"));
  EXPECT_TRUE(is_printable(status.message()));
  EXPECT_LE(status.message().size(), 1024u);
}

// What a faulty or hostile aggregator could grant.
struct HostileGrant {
  const char* name;
  std::function<void(control::Ready&)> spoil;
};
class HostileReady : public ::testing::TestWithParam<HostileGrant> {};

TEST_P(HostileReady, IsRefusedWithAReason) {
  control::Ready ready;
  ready.set_data_slots(256);
  ready.set_scale_slots(16);
  ready.set_payload_bytes(1440);
  ready.add_stripes()->set_endpoint("10.0.0.9:7000");
  ASSERT_TRUE(to_membership(ready, Address()).ok());
  GetParam().spoil(ready);
  const auto membership = to_membership(ready, Address());
  ASSERT_FALSE(membership.ok());
  EXPECT_TRUE(is_printable(membership.status().message())) << membership.status().message();
}

using Ready = control::Ready;
INSTANTIATE_TEST_SUITE_P(
    RequestChecks, HostileReady,
    ::testing::Values(HostileGrant{"job", [](Ready& r) { r.set_job(65536); }},
                      HostileGrant{"epoch", [](Ready& r) { r.set_epoch(kHuge); }},
                      HostileGrant{"no_slots", [](Ready& r) { r.set_data_slots(0); }},
                      HostileGrant{"odd_slots", [](Ready& r) { r.set_data_slots(255); }},
                      HostileGrant{"slots", [](Ready& r) { r.set_data_slots(1u << 31); }},
                      HostileGrant{"no_scale_slots", [](Ready& r) { r.set_scale_slots(0); }},
                      HostileGrant{"scale_slots", [](Ready& r) { r.set_scale_slots(kHuge); }},
                      HostileGrant{"no_payload", [](Ready& r) { r.set_payload_bytes(0); }},
                      HostileGrant{"odd_payload", [](Ready& r) { r.set_payload_bytes(1441); }},
                      HostileGrant{"payload", [](Ready& r) { r.set_payload_bytes(kHuge - 31); }},
                      HostileGrant{"no_stripes", [](Ready& r) { r.clear_stripes(); }},
                      HostileGrant{"stripe", [](Ready& r) { r.mutable_stripes(0)->set_endpoint("x\n"); }},
                      HostileGrant{"group", [](Ready& r) { r.set_multicast_group("\x1b[2J"); }},
                      HostileGrant{"owner", [](Ready& r) { r.mutable_stripes(0)->set_owner_rank(kHuge); }},
                      HostileGrant{"member", [](Ready& r) { r.add_member_of_rank(64); }},
                      HostileGrant{"huge_member", [](Ready& r) { r.add_member_of_rank(kHuge); }},
                      HostileGrant{"former_rank", [](Ready& r) { r.add_former_ranks(kHuge); }},
                      HostileGrant{"hosts",
                                   [](Ready& r) {
                                     for (int i = 0; i < 513; ++i) r.add_hosts("h");
                                   }}),
    [](const auto& input) { return std::string(input.param.name); });

TEST(EventQueueTest, AMemberThatDoesNotReadCostsNoMemory) {
  EventQueue queue;
  for (uint32_t i = 0; i < 100'000; ++i) {
    control::Event joined;
    joined.mutable_joined()->add_missing_ranks(i);
    EXPECT_TRUE(queue.push(std::move(joined)));
    if (i == 50'000) {
      control::Event ready;
      ready.mutable_ready();
      EXPECT_TRUE(queue.push(std::move(ready)));
    }
  }
  // What was said last before the job was ready, that it is, and what was said last.
  ASSERT_EQ(queue.size(), 3u);
  EXPECT_EQ(queue.pop().joined().missing_ranks(0), 50'000u);
  EXPECT_TRUE(queue.pop().has_ready());
  EXPECT_EQ(queue.pop().joined().missing_ranks(0), 99'999u);
}

TEST(EventQueueTest, IsBoundedWhateverIsPushed) {
  EventQueue queue;
  size_t taken = 0;
  for (int i = 0; i < 1000; ++i) {
    control::Event draining, joined;
    draining.mutable_draining();
    joined.mutable_joined();
    taken += queue.push(std::move(draining));
    taken += queue.push(std::move(joined));
  }
  EXPECT_EQ(queue.size(), EventQueue::kMost);
  EXPECT_FALSE(queue.push(control::Event()));
  EXPECT_GE(taken, EventQueue::kMost);
}

}  // namespace
}  // namespace netsum::request_checks_test
