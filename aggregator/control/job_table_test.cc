// Who may join a job, and what becomes of it.
#include <map>

#include "aggregator/control/job_table_fixture.h"
#include "wire/mtu.h"

namespace netsum::job_table_test {
namespace {

TEST_F(JobTableTest, BecomesReadyWhenAllRanksHaveJoined) {
  JobTable jobs = table();
  std::vector<MemberId> ids;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ids.push_back(join(jobs, member_request(rank, 4)));
    EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), IsEmpty());
  }
  EXPECT_THAT(dataplane_.installed(), IsEmpty());
  ids.push_back(join(jobs, member_request(3, 4)));
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(4));
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(ready[rank].to, ids[rank]);

  const JobGrant& grant = *ready[0].grant;
  EXPECT_EQ(grant.job.members, 4);
  EXPECT_EQ(grant.job.data_slots, 256u);
  EXPECT_EQ(grant.job.scale_slots, 16u);
  EXPECT_EQ(grant.job.payload_bytes, 1440u);
  EXPECT_EQ(grant.dataplane, "fake");
  ASSERT_THAT(grant.stripes, SizeIs(2));
  EXPECT_EQ(grant.stripes[1].endpoint, "10.0.0.9:7001");
  ASSERT_THAT(dataplane_.installed(), SizeIs(1));
  EXPECT_EQ(dataplane_.installed()[0].key, grant.job.key);
  EXPECT_EQ(jobs.jobs(0)[0].state, "running");
}

TEST_F(JobTableTest, TellsWhoIsMissing) {
  JobTable jobs = table();
  const MemberId second = join(jobs, member_request(1, 3));
  auto joined = of_kind(jobs.take_events(), Kind::kJoined);
  ASSERT_THAT(joined, SizeIs(1));
  EXPECT_EQ(joined[0].to, second);
  EXPECT_THAT(joined[0].missing, ElementsAre(0, 2));
  join(jobs, member_request(2, 3));
  joined = of_kind(jobs.take_events(), Kind::kJoined);
  ASSERT_THAT(joined, SizeIs(2));
  EXPECT_THAT(joined[0].missing, ElementsAre(0));
  EXPECT_THAT(jobs.jobs(0)[0].joined, ElementsAre(1, 2));
  EXPECT_EQ(jobs.jobs(0)[0].state, "joining");
}

TEST_F(JobTableTest, PayloadFollowsMtuAndFamily) {
  JobTable jobs = table();
  MemberRequest request = member_request(0, 1);
  request.peer = *Address::parse("[fd00::1]:4000");
  join(jobs, request);
  EXPECT_EQ(dataplane_.installed()[0].payload_bytes, 1408u);

  dataplane_.set_endpoints({*Address::parse("[fd00::9]:7000")});
  join(jobs, member_request(0, 1, "v6 stripe"));
  EXPECT_EQ(dataplane_.installed()[1].payload_bytes, 1408u);

  dataplane_.set_endpoints({*Address::parse("0.0.0.0:7000")});
  join(jobs, member_request(0, 1, "wildcard"));
  EXPECT_EQ(dataplane_.installed()[2].payload_bytes, 1440u);
}

TEST_F(JobTableTest, DataplaneLimitCapsThePayload) {
  FakeDataplane small({1, 8, 1024, standard_capabilities(1408)});
  JobTable jobs({}, &small, [this] { return rng_.next(); });
  join(jobs, member_request(0, 1));
  EXPECT_EQ(small.installed()[0].payload_bytes, 1408u);
}

TEST_F(JobTableTest, TellsAllWhoSharesAHost) {
  JobTable jobs = table();
  const std::vector<std::string> hosts = {"a", "b", "", "a"};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    MemberRequest request = member_request(rank, 4);
    request.host = hosts[rank];
    join(jobs, request);
  }
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(4));
  EXPECT_EQ(ready[0].grant->hosts, hosts);
  EXPECT_NE(ready[0].grant->host_meeting, 0u);
  EXPECT_NE(ready[0].grant->host_meeting, ready[0].grant->job.key.k0);
  EXPECT_NE(ready[0].grant->host_meeting, ready[0].grant->job.key.k1);
}

TEST_F(JobTableTest, SaysNothingOfHostsThatNobodyShares) {
  JobTable jobs = table();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    MemberRequest request = member_request(rank, 3);
    if (rank > 0) request.host = std::string(1, static_cast<char>('a' + rank));
    join(jobs, request);
  }
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady)[0].grant->hosts, IsEmpty());
}

TEST_F(JobTableTest, RefusesBadNamesOfHosts) {
  MemberRequest request = member_request(0, 2);
  request.host = std::string(129, 'x');
  EXPECT_THAT(refusal(request).message(), HasSubstr("129 bytes"));
  request.host = "a\nb";
  EXPECT_THAT(refusal(request).message(), HasSubstr("printable"));
}

TEST_F(JobTableTest, RefusesAnIpv6PeerWhenDataIsIpv4Only) {
  dataplane_.set_endpoints({*Address::parse("0.0.0.0:7000")});
  MemberRequest request = member_request(0, 2);
  request.peer = *Address::parse("[fd00::1]:4000");
  const Status status = refusal(request);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("over IPv6, but it takes data over IPv4 only: use its IPv4 address, or start "
                        "it listening on [::]"));
}

TEST_F(JobTableTest, RefusesAnIpv4PeerWhenDataIsIpv6Only) {
  dataplane_.set_endpoints({*Address::parse("[::]:7000")});
  const Status status = refusal(member_request(0, 2));
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("over IPv4, but it takes data over IPv6 only: use its IPv6 address, or start "
                        "it listening on 0.0.0.0"));
}

struct BadInput {
  const char* name;
  std::function<void(MemberRequest&)> spoil;
  ErrorCode code;
  const char* says;
};

class RefusalTest : public JobTableTest, public ::testing::WithParamInterface<BadInput> {};

TEST_P(RefusalTest, IsRefusedWithAReason) {
  MemberRequest request = member_request(1, 4);
  GetParam().spoil(request);
  const Status status = refusal(request);
  EXPECT_EQ(status.code(), GetParam().code) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    BadInput, RefusalTest,
    ::testing::Values(BadInput{"Version",
                               [](MemberRequest& r) { r.job.set_protocol_version(NETSUM_VERSION + 1); },
                               ErrorCode::kVersionMismatch, "speaks protocol version 3"},
                      BadInput{"NoName", [](MemberRequest& r) { r.job.clear_name(); },
                               ErrorCode::kInvalidArgument, "0 bytes"},
                      BadInput{"LongName", [](MemberRequest& r) { r.job.set_name(std::string(129, 'x')); },
                               ErrorCode::kInvalidArgument, "129 bytes"},
                      BadInput{"UnprintableName", [](MemberRequest& r) { r.job.set_name("a\nb"); },
                               ErrorCode::kInvalidArgument, "printable"},
                      BadInput{"NonAsciiName", [](MemberRequest& r) { r.job.set_name("\xff"); },
                               ErrorCode::kInvalidArgument, "printable"},
                      BadInput{"LongToken", [](MemberRequest& r) { r.job.set_token(std::string(257, 'x')); },
                               ErrorCode::kInvalidArgument, "257 bytes"},
                      BadInput{"NoRanks", [](MemberRequest& r) { r.job.set_world_size(0); },
                               ErrorCode::kInvalidArgument, "world size 0"},
                      BadInput{"TooManyRanks", [](MemberRequest& r) { r.job.set_world_size(513); },
                               ErrorCode::kInvalidArgument, "1 to 512 ranks"},
                      BadInput{"RankOutOfRange", [](MemberRequest& r) { r.rank = 4; },
                               ErrorCode::kInvalidArgument, "ranks 0 to 3"},
                      BadInput{"NegativeRank", [](MemberRequest& r) { r.rank = static_cast<uint32_t>(-1); },
                               ErrorCode::kInvalidArgument, "out of range"},
                      BadInput{"SmallMtu", [](MemberRequest& r) { r.job.set_mtu(143); },
                               ErrorCode::kInvalidArgument, "mtu 143 is out of range: 144"},
                      BadInput{"HugeMtu", [](MemberRequest& r) { r.job.set_mtu(9001); },
                               ErrorCode::kInvalidArgument, "mtu 9001"},
                      BadInput{"MtuBeyondDataplane", [](MemberRequest& r) { r.job.set_mtu(9000); },
                               ErrorCode::kInvalidArgument,
                               "accepts at most 1440: ask for an mtu of at most 1551, or start"},
                      BadInput{"NoSlots", [](MemberRequest& r) { r.job.set_slots(0); },
                               ErrorCode::kInvalidArgument, "power of two"},
                      BadInput{"OddSlots", [](MemberRequest& r) { r.job.set_slots(100); },
                               ErrorCode::kInvalidArgument, "power of two"},
                      BadInput{"TooManySlots", [](MemberRequest& r) { r.job.set_slots(1024); },
                               ErrorCode::kResourceExhausted, "has 1024, of which 1024 are free"},
                      BadInput{"HugeSlots", [](MemberRequest& r) { r.job.set_slots(1u << 31); },
                               ErrorCode::kResourceExhausted, "has 1024"},
                      BadInput{"Shard", [](MemberRequest& r) { r.shard_endpoint = "10.0.0.1:5"; },
                               ErrorCode::kInvalidArgument, "shard"}),
    [](const auto& input) { return std::string(input.param.name); });

TEST_F(JobTableTest, AsksForTheAggregatorsToken) {
  JobTableOptions options;
  options.token = "house";
  EXPECT_THAT(refusal(member_request(0, 1), options).message(), HasSubstr("none was given"));
  MemberRequest request = member_request(0, 1);
  request.job.set_aggregator_token("mouse");
  const Status wrong = refusal(request, options);
  EXPECT_EQ(wrong.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(wrong.message(), HasSubstr("wrong aggregator token"));
  request.job.set_aggregator_token("house");
  JobTable jobs = table(options);
  join(jobs, request);
}

TEST_F(JobTableTest, WhoDoesNotKnowTheTokenCannotOccupyAName) {
  FakeDataplane dataplane({2, 64, 65536, standard_capabilities(1440)});
  JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
  MemberRequest stranger = member_request(0, 2);
  for (const char* token : {"", "guess", "secrets", "secre", "secret\n", "12345678"}) {
    stranger.job.set_token(token);
    join(jobs, stranger);
  }
  // One that runs, and so would stay for longer than the others.
  stranger.job.set_world_size(1);
  stranger.job.set_token("runs");
  join(jobs, stranger);
  jobs.take_events();
  const std::vector<MemberId> own = join_all(jobs, 2);
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_EQ(ready[0].to, own[0]);
  EXPECT_EQ(ready[1].to, own[1]);
}

TEST_F(JobTableTest, RanksWithDifferentTokensHearWhatIsWrong) {
  JobTable jobs = table();
  join(jobs, member_request(0, 2));
  MemberRequest other = member_request(1, 2);
  other.job.set_token("typo");
  join(jobs, other);
  jobs.take_events();
  jobs.on_tick(60 * kSecondUs);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  for (const JobEvent& event : failed) {
    EXPECT_EQ(event.failure.code(), ErrorCode::kTimeout);
    EXPECT_THAT(event.failure.message(), HasSubstr("set the same token on all ranks"));
    EXPECT_THAT(event.failure.message(), ::testing::Not(HasSubstr("typo")));
  }
}

TEST_F(JobTableTest, RefusesOtherParametersThanTheFirstMembers) {
  JobTable jobs = table();
  join(jobs, member_request(0, 4));
  const auto refused = [&](const std::function<void(JobSpec&)>& change) {
    MemberRequest request = member_request(1, 4);
    change(request.job);
    const Result<MemberId> id = jobs.join(0, request);
    EXPECT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), ErrorCode::kInvalidArgument);
    return id.status().message();
  };
  EXPECT_THAT(refused([](JobSpec& r) { r.set_world_size(3); }),
              HasSubstr("with world size 4, and this rank asks for 3"));
  EXPECT_THAT(refused([](JobSpec& r) { r.set_mtu(1400); }), HasSubstr("with mtu 1500"));
  EXPECT_THAT(refused([](JobSpec& r) { r.set_slots(128); }), HasSubstr("with slots 256"));
  EXPECT_THAT(refused([](JobSpec& r) { r.set_when_full(1); }),
              HasSubstr("with when_full 0, and this rank asks for 1"));
}

TEST_F(JobTableTest, RefusesATakenRank) {
  JobTable jobs = table();
  join(jobs, member_request(2, 4));
  const Result<MemberId> id = jobs.join(0, member_request(2, 4));
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(id.status().rank(), 2);
  EXPECT_THAT(id.status().message(), HasSubstr("already taken, by 10.0.0.2"));
}

TEST_F(JobTableTest, EveryUseOfAnIndexHasANewEpochAndKey) {
  JobTableOptions options;
  options.max_jobs = 1;
  JobTable jobs = table(options);
  for (int i = 0; i < 3; ++i) {
    const auto ids = join_all(jobs, 1);
    ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 1), ids[0])).ok());
  }
  const auto installed = dataplane_.installed();
  ASSERT_THAT(installed, SizeIs(3));
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(installed[i].job, installed[0].job);
    EXPECT_EQ(installed[i].epoch, static_cast<uint16_t>(installed[0].epoch + i));
    EXPECT_NE(installed[i].key, installed[i - 1].key);
  }
  EXPECT_THAT(dataplane_.removed(), SizeIs(3));
}

TEST_F(JobTableTest, DeathOfAMemberFailsTheJobForTheOthersAtOnce) {
  JobTable jobs = table();
  const auto ids = join_all(jobs, 4);
  jobs.take_events();
  jobs.stream_ended(ids[3]);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(failed[i].to, ids[i]);
    EXPECT_EQ(failed[i].failure.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(failed[i].failure.rank(), 3);
    EXPECT_EQ(failed[i].failure.message(),
              "rank 3 (10.0.0.3) disconnected without leaving: its process died or hangs, or its host is "
              "unreachable");
  }
  const auto job = dataplane_.installed()[0];
  EXPECT_THAT(dataplane_.removed(), ElementsAre(std::pair(job.job, job.epoch)));
  EXPECT_THAT(jobs.jobs(0)[0].state, HasSubstr("failed: "));
  EXPECT_TRUE(jobs.empty());

  // The others' streams end, too; nobody is told twice, and then the job is gone.
  for (const MemberId id : ids) jobs.stream_ended(id);
  EXPECT_THAT(jobs.take_events(), IsEmpty());
  EXPECT_THAT(jobs.jobs(0), IsEmpty());
}

TEST_F(JobTableTest, NameOfAFailedJobIsFreeWhileOldMembersDrain) {
  JobTable jobs = table();
  const auto old = join_all(jobs, 2);
  jobs.stream_ended(old[1]);
  jobs.take_events();
  MemberRequest request = member_request(0, 2);
  request.job.set_token("another");
  const MemberId fresh = join(jobs, request);
  jobs.stream_ended(old[0]);
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kFailed), IsEmpty());
  request.rank = 1;
  const MemberId second = join(jobs, request);
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_EQ(ready[0].to, fresh);
  EXPECT_EQ(ready[1].to, second);
}

TEST_F(JobTableTest, LeavingIsNoFailureAndTheLastOneEndsTheJob) {
  JobTable jobs = table();
  const auto ids = join_all(jobs, 2);
  jobs.take_events();
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 2), ids[0])).ok());
  auto events = jobs.take_events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].kind, Kind::kEnd);
  EXPECT_EQ(events[0].to, ids[0]);
  EXPECT_EQ(events[1].kind, Kind::kJoined) << "the other one hears who is gone";
  EXPECT_EQ(events[1].to, ids[1]);
  EXPECT_THAT(events[1].missing, ElementsAre(0));
  jobs.stream_ended(ids[0]);
  EXPECT_THAT(jobs.take_events(), IsEmpty());
  EXPECT_THAT(dataplane_.removed(), IsEmpty());
  EXPECT_FALSE(jobs.empty());

  // The first one may already be back, for a new job of the same name.
  const MemberId again = join(jobs, member_request(0, 2));
  EXPECT_NE(again, ids[0]);
  ASSERT_TRUE(jobs.leave(claim_of(member_request(1, 2), ids[1])).ok());
  EXPECT_THAT(dataplane_.removed(), SizeIs(1));
  ASSERT_THAT(jobs.jobs(0), SizeIs(1));
  EXPECT_EQ(jobs.jobs(0)[0].state, "joining");
}

TEST_F(JobTableTest, LeavingWhileJoiningFreesTheRank) {
  JobTable jobs = table();
  const MemberId first = join(jobs, member_request(0, 3));
  join(jobs, member_request(1, 3));
  jobs.take_events();
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 3), first)).ok());
  const auto joined = of_kind(jobs.take_events(), Kind::kJoined);
  ASSERT_THAT(joined, SizeIs(1));
  EXPECT_THAT(joined[0].missing, ElementsAre(0, 2));
  join(jobs, member_request(0, 3));
}

TEST_F(JobTableTest, DeathWhileJoiningFailsTheJob) {
  JobTable jobs = table();
  const MemberId first = join(jobs, member_request(0, 3));
  const MemberId second = join(jobs, member_request(1, 3));
  jobs.take_events();
  jobs.stream_ended(first);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].to, second);
  EXPECT_EQ(failed[0].failure.rank(), 0);
  EXPECT_THAT(dataplane_.removed(), IsEmpty()) << "it was never installed";
}

TEST_F(JobTableTest, ReportReachesAllOthers) {
  JobTable jobs = table();
  const auto ids = join_all(jobs, 3);
  jobs.take_events();
  const Status failure(ErrorCode::kMismatch, "tensors differ", 2);
  ASSERT_TRUE(jobs.report(claim_of(member_request(1, 3), ids[1]), failure).ok());
  const auto events = jobs.take_events();
  const auto failed = of_kind(events, Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_EQ(failed[0].to, ids[0]);
  EXPECT_EQ(failed[1].to, ids[2]);
  EXPECT_EQ(failed[0].failure.code(), ErrorCode::kMismatch);
  EXPECT_EQ(failed[0].failure.rank(), 2);
  EXPECT_EQ(failed[0].failure.message(), "rank 1 (10.0.0.1) reported: tensors differ");
  ASSERT_THAT(of_kind(events, Kind::kEnd), SizeIs(1));
  EXPECT_EQ(of_kind(events, Kind::kEnd)[0].to, ids[1]);
}

TEST_F(JobTableTest, OnlyMembersCanLeaveOrReport) {
  JobTable jobs = table();
  const auto ids = join_all(jobs, 2);
  jobs.take_events();
  const MemberClaim good = claim_of(member_request(0, 2), ids[0]);
  const auto spoil = [&](const std::function<void(MemberClaim&)>& change) {
    MemberClaim claim = good;
    change(claim);
    EXPECT_FALSE(jobs.report(claim, {ErrorCode::kAborted, "x"}).ok());
    return jobs.leave(claim).code();
  };
  EXPECT_EQ(spoil([](MemberClaim& c) { c.token = "guess"; }), ErrorCode::kPermissionDenied);
  EXPECT_EQ(spoil([](MemberClaim& c) { ++c.member; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(spoil([](MemberClaim& c) { c.rank = 1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(spoil([](MemberClaim& c) { c.job = "other"; }), ErrorCode::kInvalidArgument);
  EXPECT_THAT(jobs.take_events(), IsEmpty());
  EXPECT_EQ(jobs.jobs(0)[0].state, "running");
}

TEST_F(JobTableTest, TimesOutNamingTheMissingRanks) {
  JobTableOptions options;
  options.join_timeout_us = 5 * kSecondUs;
  JobTable jobs = table(options);
  join(jobs, member_request(0, 4), 1 * kSecondUs);
  join(jobs, member_request(2, 4), 2 * kSecondUs);
  EXPECT_EQ(jobs.next_deadline_us(), 6 * kSecondUs);
  jobs.take_events();
  jobs.on_tick(6 * kSecondUs - 1);
  EXPECT_THAT(jobs.take_events(), IsEmpty());
  jobs.on_tick(6 * kSecondUs);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_EQ(failed[0].failure.code(), ErrorCode::kTimeout);
  EXPECT_EQ(failed[0].failure.rank(), 1);
  EXPECT_THAT(failed[0].failure.message(),
              HasSubstr("2 of 4 ranks joined within 5 s; missing: ranks 1 and 3"));
  EXPECT_EQ(jobs.next_deadline_us(), std::nullopt);
}

TEST_F(JobTableTest, TheFirstMemberToGiveUpEndsTheWaitForAll) {
  JobTable jobs = table();
  MemberRequest hasty = member_request(0, 3);
  hasty.deadline_us = 2 * kSecondUs;
  const MemberId id = join(jobs, hasty, 0);
  join(jobs, member_request(1, 3), 0);
  EXPECT_EQ(jobs.next_deadline_us(), 2 * kSecondUs);
  ASSERT_TRUE(jobs.leave(claim_of(hasty, id)).ok());
  EXPECT_EQ(jobs.next_deadline_us(), 60 * kSecondUs);
}

TEST_F(JobTableTest, ARunningJobHasNoDeadline) {
  JobTable jobs = table();
  join_all(jobs, 2);
  jobs.take_events();
  EXPECT_EQ(jobs.next_deadline_us(), std::nullopt);
  jobs.on_tick(3600 * kSecondUs);
  EXPECT_THAT(jobs.take_events(), IsEmpty());
}

TEST_F(JobTableTest, DrainingTakesNoNewJobsAndTellsTheRunningOnes) {
  JobTable jobs = table();
  join_all(jobs, 1, "running");
  join(jobs, member_request(0, 2, "joining"));
  jobs.take_events();
  jobs.drain();
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kDraining), SizeIs(2));
  jobs.drain();
  EXPECT_THAT(jobs.take_events(), IsEmpty());
  const Result<MemberId> id = jobs.join(0, member_request(0, 1, "new"));
  ASSERT_FALSE(id.ok());
  EXPECT_THAT(id.status().message(), HasSubstr("shutting down"));
  join(jobs, member_request(1, 2, "joining"));
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), SizeIs(2));
}

TEST_F(JobTableTest, StoppingFailsEveryJob) {
  JobTable jobs = table();
  join_all(jobs, 2, "a");
  join(jobs, member_request(0, 2, "b"));
  jobs.take_events();
  jobs.stop({ErrorCode::kAggregatorLost, "stopped"});
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(3));
  EXPECT_EQ(failed[0].failure.code(), ErrorCode::kAggregatorLost);
  EXPECT_TRUE(jobs.empty());
}

TEST_F(JobTableTest, ALostDataplaneFailsTheRunningJobs) {
  JobTable jobs = table();
  join_all(jobs, 2, "running");
  join(jobs, member_request(0, 2, "joining"));
  jobs.take_events();
  jobs.dataplane_lost({ErrorCode::kAggregatorLost, "the switch has restarted"});
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_EQ(failed[0].failure.code(), ErrorCode::kAggregatorLost);
  EXPECT_THAT(failed[0].failure.message(), HasSubstr("the switch has restarted"));
  join(jobs, member_request(1, 2, "joining"));
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), SizeIs(2))
      << "the other job finds the switch set up again";
}

TEST_F(JobTableTest, ADataplaneThatRefusesFailsTheJob) {
  dataplane_.set_install_error({ErrorCode::kResourceExhausted, "no room"});
  JobTable jobs = table();
  join_all(jobs, 2);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_EQ(failed[0].failure.message(), "no room");
  EXPECT_THAT(dataplane_.removed(), IsEmpty());
}

}  // namespace
}  // namespace netsum::job_table_test
