#include "aggregator/control/job_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "aggregator/dataplane/fake_dataplane.h"
#include "src/base/rng.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = JobEvent::Kind;

constexpr int64_t kSecondUs = 1'000'000;

JobRequest job_request(uint32_t world_size, const std::string& name = "train") {
  JobRequest request;
  request.protocol_version = NETSUM_VERSION;
  request.name = name;
  request.token = "secret";
  request.world_size = world_size;
  request.mtu = 1500;
  request.slots = 256;
  return request;
}

MemberRequest member_request(uint32_t rank, uint32_t world_size, const std::string& name = "train") {
  MemberRequest request;
  request.job = job_request(world_size, name);
  request.rank = rank;
  request.peer = *Address::parse("10.0.0." + std::to_string(rank) + ":4000");
  return request;
}

MemberClaim claim_of(const MemberRequest& request, MemberId id) {
  return {request.job.name, request.job.token, request.job.aggregator_token, request.rank, id};
}

class JobTableTest : public ::testing::Test {
 protected:
  JobTable table(JobTableOptions options = {}) {
    Dataplane* dataplane = options.members_bring_shards ? nullptr : &dataplane_;
    return JobTable(std::move(options), dataplane, [this] { return rng_.next(); });
  }

  static MemberId join(JobTable& table, const MemberRequest& request, int64_t now_us = 0) {
    const Result<MemberId> id = table.join(now_us, request);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return id.ok() ? *id : 0;
  }

  static std::vector<MemberId> join_all(JobTable& table, uint32_t world_size,
                                        const std::string& name = "train") {
    std::vector<MemberId> ids;
    for (uint32_t rank = 0; rank < world_size; ++rank)
      ids.push_back(join(table, member_request(rank, world_size, name)));
    return ids;
  }

  static std::vector<JobEvent> of_kind(const std::vector<JobEvent>& events, Kind kind) {
    std::vector<JobEvent> found;
    std::copy_if(events.begin(), events.end(), std::back_inserter(found),
                 [&](const JobEvent& event) { return event.kind == kind; });
    return found;
  }

  Status refusal(const MemberRequest& request, JobTableOptions options = {}) {
    JobTable fresh = table(std::move(options));
    const Result<MemberId> id = fresh.join(0, request);
    EXPECT_FALSE(id.ok());
    EXPECT_TRUE(fresh.empty()) << "a refused join must leave nothing behind";
    return id.status();
  }

  Rng rng_{1};
  FakeDataplane dataplane_;
};

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

  // A dual-stack wildcard is reached over whatever family the worker used.
  dataplane_.set_endpoints({*Address::parse("[::]:7000")});
  join(jobs, member_request(0, 1, "wildcard"));
  EXPECT_EQ(dataplane_.installed()[2].payload_bytes, 1440u);
}

TEST_F(JobTableTest, DataplaneLimitCapsThePayload) {
  FakeDataplane small({1, 8, 1024, 1408});
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
  EXPECT_THAT(status.message(), HasSubstr("IPv4"));
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
                               [](MemberRequest& r) { r.job.protocol_version = NETSUM_VERSION + 1; },
                               ErrorCode::kVersionMismatch, "speaks protocol version 3"},
                      BadInput{"NoName", [](MemberRequest& r) { r.job.name.clear(); },
                               ErrorCode::kInvalidArgument, "0 bytes"},
                      BadInput{"LongName", [](MemberRequest& r) { r.job.name.assign(129, 'x'); },
                               ErrorCode::kInvalidArgument, "129 bytes"},
                      BadInput{"UnprintableName", [](MemberRequest& r) { r.job.name = "a\nb"; },
                               ErrorCode::kInvalidArgument, "printable"},
                      BadInput{"NonAsciiName", [](MemberRequest& r) { r.job.name = "\xff"; },
                               ErrorCode::kInvalidArgument, "printable"},
                      BadInput{"LongToken", [](MemberRequest& r) { r.job.token.assign(257, 'x'); },
                               ErrorCode::kInvalidArgument, "257 bytes"},
                      BadInput{"NoRanks", [](MemberRequest& r) { r.job.world_size = 0; },
                               ErrorCode::kInvalidArgument, "world size 0"},
                      BadInput{"TooManyRanks", [](MemberRequest& r) { r.job.world_size = 513; },
                               ErrorCode::kInvalidArgument, "1 to 512 ranks"},
                      BadInput{"RankOutOfRange", [](MemberRequest& r) { r.rank = 4; },
                               ErrorCode::kInvalidArgument, "ranks 0 to 3"},
                      BadInput{"NegativeRank", [](MemberRequest& r) { r.rank = static_cast<uint32_t>(-1); },
                               ErrorCode::kInvalidArgument, "out of range"},
                      BadInput{"SmallMtu", [](MemberRequest& r) { r.job.mtu = 143; },
                               ErrorCode::kInvalidArgument, "mtu 143 is out of range: 144"},
                      BadInput{"HugeMtu", [](MemberRequest& r) { r.job.mtu = 9001; },
                               ErrorCode::kInvalidArgument, "mtu 9001"},
                      BadInput{"MtuBeyondDataplane", [](MemberRequest& r) { r.job.mtu = 9000; },
                               ErrorCode::kInvalidArgument, "accepts at most 1440"},
                      BadInput{"NoSlots", [](MemberRequest& r) { r.job.slots = 0; },
                               ErrorCode::kInvalidArgument, "power of two"},
                      BadInput{"OddSlots", [](MemberRequest& r) { r.job.slots = 100; },
                               ErrorCode::kInvalidArgument, "power of two"},
                      BadInput{"TooManySlots", [](MemberRequest& r) { r.job.slots = 1024; },
                               ErrorCode::kResourceExhausted, "has 1024, of which 1024 are free"},
                      BadInput{"HugeSlots", [](MemberRequest& r) { r.job.slots = 1u << 31; },
                               ErrorCode::kResourceExhausted, "has 1024"},
                      BadInput{"Shard", [](MemberRequest& r) { r.shard_endpoint = "10.0.0.1:5"; },
                               ErrorCode::kInvalidArgument, "shard"}),
    [](const auto& input) { return std::string(input.param.name); });

TEST_F(JobTableTest, AsksForTheAggregatorsToken) {
  JobTableOptions options;
  options.token = "house";
  EXPECT_THAT(refusal(member_request(0, 1), options).message(), HasSubstr("none was given"));
  MemberRequest request = member_request(0, 1);
  request.job.aggregator_token = "mouse";
  const Status wrong = refusal(request, options);
  EXPECT_EQ(wrong.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(wrong.message(), HasSubstr("wrong aggregator token"));
  request.job.aggregator_token = "house";
  JobTable jobs = table(options);
  join(jobs, request);
}

TEST_F(JobTableTest, WhoDoesNotKnowTheTokenCannotOccupyAName) {
  FakeDataplane dataplane({2, 64, 65536, 1440});
  JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
  MemberRequest stranger = member_request(0, 2);
  for (const char* token : {"", "guess", "secrets", "secre", "secret\n", "12345678"}) {
    stranger.job.token = token;
    join(jobs, stranger);
  }
  // One that runs, and so would stay for longer than the others.
  stranger.job.world_size = 1;
  stranger.job.token = "runs";
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
  other.job.token = "typo";
  join(jobs, other);
  jobs.take_events();
  jobs.on_tick(60 * kSecondUs);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  for (const JobEvent& event : failed) {
    EXPECT_EQ(event.failure.code(), ErrorCode::kTimeout);
    EXPECT_THAT(event.failure.message(), HasSubstr("is the token the same on all ranks?"));
    EXPECT_THAT(event.failure.message(), ::testing::Not(HasSubstr("typo")));
  }
}

TEST_F(JobTableTest, ComparesTokensInFull) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("xbc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcd"));
  EXPECT_FALSE(equal_in_constant_time(std::string_view("a\0b", 3), std::string_view("a\0c", 3)));
}

TEST_F(JobTableTest, RefusesOtherParametersThanTheFirstMembers) {
  JobTable jobs = table();
  join(jobs, member_request(0, 4));
  const auto refused = [&](const std::function<void(JobRequest&)>& change) {
    MemberRequest request = member_request(1, 4);
    change(request.job);
    const Result<MemberId> id = jobs.join(0, request);
    EXPECT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), ErrorCode::kInvalidArgument);
    return id.status().message();
  };
  EXPECT_THAT(refused([](JobRequest& r) { r.world_size = 3; }),
              HasSubstr("with world size 4, and this rank asks for 3"));
  EXPECT_THAT(refused([](JobRequest& r) { r.mtu = 1400; }), HasSubstr("with mtu 1500"));
  EXPECT_THAT(refused([](JobRequest& r) { r.slots = 128; }), HasSubstr("with slots 256"));
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

TEST_F(JobTableTest, BudgetsSlotsOverJobsAndGivesThemBack) {
  JobTable jobs = table();
  const auto first = join_all(jobs, 1, "a");
  join_all(jobs, 1, "b");
  join_all(jobs, 1, "c");
  const Result<MemberId> fourth = jobs.join(0, member_request(0, 1, "d"));
  ASSERT_FALSE(fourth.ok());
  EXPECT_EQ(fourth.status().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(fourth.status().message(), HasSubstr("has 1024, of which 208 are free"));
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 1, "a"), first[0])).ok());
  join(jobs, member_request(0, 1, "d"));
}

TEST_F(JobTableTest, AJobWaitsUntilItsSlotsAreFreeInARow) {
  FakeDataplane dataplane({2, 8, 600, 1440});
  JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
  const auto sized = [](const std::string& name, uint32_t slots) {
    MemberRequest request = member_request(0, 1, name);
    request.job.slots = slots;
    request.job.when_full = WhenFull::kWait;
    return request;
  };
  std::map<std::string, MemberId> ids;
  for (const char* name : {"a", "b", "c", "d"}) ids[name] = join(jobs, sized(name, 128));
  ASSERT_THAT(of_kind(jobs.take_events(), Kind::kReady), SizeIs(4));
  // Twice 144 slots are free, but not side by side.
  for (const char* name : {"a", "c"}) ASSERT_TRUE(jobs.leave(claim_of(sized(name, 128), ids[name])).ok());
  ids["large"] = join(jobs, sized("large", 256));
  jobs.on_tick(0);
  auto events = jobs.take_events();
  EXPECT_THAT(of_kind(events, Kind::kFailed), IsEmpty());
  EXPECT_THAT(of_kind(events, Kind::kReady), IsEmpty());
  EXPECT_THAT(jobs.join(0, member_request(0, 1, "refused")).status().message(),
              HasSubstr("of which 312 are free, at most 144 in a row"));
  ASSERT_TRUE(jobs.leave(claim_of(sized("b", 128), ids["b"])).ok());
  jobs.on_tick(0);
  events = jobs.take_events();
  ASSERT_THAT(of_kind(events, Kind::kReady), SizeIs(1));
  EXPECT_EQ(of_kind(events, Kind::kReady)[0].to, ids["large"]);
}

// Whether the slots of jobs that join slowly are still there when they are complete.
TEST_F(JobTableTest, SlotsAreReservedFromTheFirstRankOn) {
  FakeDataplane dataplane({1, 8, 600, 1440});
  JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
  MemberRequest small = member_request(0, 1, "small");
  small.job.slots = 32;
  const MemberId first = join(jobs, small);
  jobs.take_events();
  join(jobs, member_request(0, 2, "slow"));
  ASSERT_TRUE(jobs.leave(claim_of(small, first)).ok());
  join(jobs, member_request(0, 2, "slower"));
  for (const char* name : {"slower", "slow"}) join(jobs, member_request(1, 2, name));
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), SizeIs(4));
}

TEST_F(JobTableTest, JobsThatMayWaitAreLetInInTheOrderInWhichTheyCame) {
  JobTable jobs = table();
  const auto first = join_all(jobs, 1, "a");
  const auto second = join_all(jobs, 1, "b");
  join_all(jobs, 1, "c");
  const auto waiting = [](int rank, int world_size, const std::string& name, uint32_t slots = 256) {
    MemberRequest request = member_request(rank, world_size, name);
    request.job.when_full = WhenFull::kWait;
    request.job.slots = slots;
    return request;
  };
  // The second of these would fit, but is not let past the first.
  join(jobs, waiting(0, 1, "large"));
  join(jobs, waiting(0, 2, "small", 32));
  EXPECT_EQ(jobs.jobs(0)[3].state, "queued");  // large
  EXPECT_EQ(jobs.jobs(0)[4].state, "queued");  // small
  jobs.take_events();
  Result<MemberId> late = jobs.join(0, member_request(0, 1, "late"));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), ErrorCode::kResourceExhausted);

  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 1, "a"), first[0])).ok());
  ASSERT_TRUE(jobs.next_deadline_us());
  EXPECT_LE(*jobs.next_deadline_us(), 0);
  jobs.on_tick(1);
  EXPECT_EQ(jobs.jobs(1)[2].state, "running");  // large
  EXPECT_EQ(jobs.jobs(1)[3].state, "joining");  // small, whose other rank is not here yet
  join(jobs, waiting(1, 2, "small", 32));
  EXPECT_EQ(jobs.jobs(1)[3].state, "running");
  // Nobody waits any more.
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 1, "b"), second[0])).ok());
  join(jobs, member_request(0, 1, "late"));
}

TEST_F(JobTableTest, AWaitEndsByItsDeadlineAndByTheEndOfTheAggregator) {
  JobTable jobs = table();
  for (const char* name : {"a", "b", "c"}) join_all(jobs, 1, name);
  MemberRequest request = member_request(0, 1, "waits");
  request.job.when_full = WhenFull::kWait;
  request.deadline_us = 5'000'000;
  const MemberId id = join(jobs, request);
  jobs.take_events();
  jobs.on_tick(4'999'999);
  EXPECT_TRUE(jobs.take_events().empty());
  jobs.on_tick(5'000'000);
  std::vector<JobEvent> events = jobs.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].to, id);
  EXPECT_EQ(events[0].failure.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(events[0].failure.message(), HasSubstr("has waited 5 s for room at the aggregator, with 0 jobs "
                                                     "before it: job 'waits' asks for 256 slots"));

  jobs.stream_ended(id);
  join(jobs, request);
  jobs.take_events();
  jobs.drain();
  events = jobs.take_events();
  const auto failed = std::find_if(events.begin(), events.end(), [](const JobEvent& event) {
    return event.kind == JobEvent::Kind::kFailed;
  });
  ASSERT_NE(failed, events.end());
  EXPECT_EQ(failed->failure.code(), ErrorCode::kUnreachable);
}

TEST_F(JobTableTest, AJobThatCanNeverFitDoesNotWait) {
  JobTable jobs = table();
  MemberRequest request = member_request(0, 1, "huge");
  request.job.slots = 1024;
  request.job.when_full = WhenFull::kWait;
  EXPECT_EQ(jobs.join(0, request).status().code(), ErrorCode::kResourceExhausted);
}

TEST_F(JobTableTest, OfAJobThatIsSentToItsHostsEveryRankIs) {
  JobTable jobs = table();
  const auto first = join_all(jobs, 1, "a");
  join_all(jobs, 1, "b");
  join_all(jobs, 1, "c");
  MemberRequest request = member_request(0, 2, "away");
  request.job.when_full = WhenFull::kHosts;
  request.deadline_us = 3'000'000;
  EXPECT_EQ(jobs.join(0, request).status().code(), ErrorCode::kResourceExhausted);
  // Now there is room, and the job's other rank comes.
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 1, "a"), first[0])).ok());
  request.rank = 1;
  const Status status = jobs.join(2'999'999, request).status();
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("no room for job 'away' when its first rank came"));
  // The next run of that name is another job.
  EXPECT_TRUE(jobs.join(3'000'000, request).ok());
}

TEST_F(JobTableTest, KeepsToTheQuotasOfAJobAndNamesThem) {
  const auto refusal_by = [&](const JobQuota& quota) {
    DataplaneLimits limits = dataplane_.limits();
    limits.quota = quota;
    limits.slot_bytes = 1000;
    FakeDataplane dataplane(limits);
    JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
    MemberRequest request = member_request(0, 1);
    request.job.when_full = WhenFull::kWait;  // which helps against nothing that will not change
    return jobs.join(0, request).status();
  };
  EXPECT_TRUE(refusal_by({.slots = 272, .memory_bytes = 272'000}).ok());
  Status status = refusal_by({.slots = 271});
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.message(),
              HasSubstr("asks for 256 slots (and 16 for scales) per stripe; this aggregator's quota of slots "
                        "for a job is 271"));
  status = refusal_by({.memory_bytes = 271'999});
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("which take 272000 bytes; this aggregator's quota of memory for a "
                                          "job is 271999 bytes"));
}

TEST_F(JobTableTest, LimitsTheNumberOfJobs) {
  JobTableOptions options;
  options.max_jobs = 2;
  JobTable jobs = table(options);
  join(jobs, member_request(0, 2, "a"));
  join(jobs, member_request(0, 2, "b"));
  const Result<MemberId> id = jobs.join(0, member_request(0, 2, "c"));
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.status().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(id.status().message(), HasSubstr("at most 2 jobs"));
  join(jobs, member_request(1, 2, "a"));  // a job that exists is not a new one
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
              "rank 3 (10.0.0.3) left without a goodbye: its process died or its host is unreachable");
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
  request.job.token = "another";
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

TEST_F(JobTableTest, AJobCanBeCreatedAhead) {
  JobTable jobs = table();
  ASSERT_TRUE(jobs.create(0, job_request(2), 10 * kSecondUs).ok());
  ASSERT_TRUE(jobs.create(0, job_request(2), 10 * kSecondUs).ok()) << "idempotent";
  EXPECT_EQ(jobs.create(0, job_request(3), 0).code(), ErrorCode::kInvalidArgument);
  const MemberId id = join(jobs, member_request(0, 2));
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 2), id)).ok());
  ASSERT_THAT(jobs.jobs(0), SizeIs(1)) << "stays without members";
  jobs.on_tick(10 * kSecondUs);
  EXPECT_THAT(jobs.jobs(0), IsEmpty());
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

TEST_F(JobTableTest, ADataplaneThatRefusesFailsTheJob) {
  dataplane_.set_install_error({ErrorCode::kResourceExhausted, "no room"});
  JobTable jobs = table();
  join_all(jobs, 2);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_EQ(failed[0].failure.message(), "no room");
  EXPECT_THAT(dataplane_.removed(), IsEmpty());
}

class EmbeddedShardsTest : public JobTableTest {
 protected:
  static JobTableOptions options() {
    JobTableOptions options;
    options.members_bring_shards = true;
    return options;
  }
  static MemberRequest with_shard(uint32_t rank, uint32_t world_size, const std::string& endpoint) {
    MemberRequest request = member_request(rank, world_size);
    request.shard_endpoint = endpoint;
    request.shard_payload_bytes = 1440;
    request.shard_slots = 272;
    return request;
  }
};

TEST_F(EmbeddedShardsTest, StripesAreTheMembersShardsInRankOrder) {
  JobTable jobs = table(options());
  join(jobs, with_shard(1, 2, "0.0.0.0:901"));
  join(jobs, with_shard(0, 2, "10.1.1.1:900"));
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  const JobGrant& grant = *ready[0].grant;
  EXPECT_EQ(grant.dataplane, "embedded");
  EXPECT_EQ(grant.job.data_slots, 256u);
  EXPECT_EQ(grant.job.payload_bytes, 1440u);
  ASSERT_THAT(grant.stripes, SizeIs(2));
  EXPECT_EQ(grant.stripes[0].endpoint, "10.1.1.1:900");
  EXPECT_EQ(grant.stripes[0].owner_rank, 0);
  EXPECT_TRUE(grant.stripes[0].embedded);
  EXPECT_EQ(grant.stripes[1].endpoint, "10.0.0.1:901") << "a wildcard becomes the member's own address";
  EXPECT_EQ(grant.stripes[1].owner_rank, 1);
}

TEST_F(EmbeddedShardsTest, TheSmallestShardDecides) {
  JobTable jobs = table(options());
  join(jobs, with_shard(0, 2, "10.0.0.1:900"));
  MemberRequest small = with_shard(1, 2, "10.0.0.2:900");
  small.shard_payload_bytes = 1000;
  small.shard_slots = 200;
  join(jobs, small);
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_EQ(ready[0].grant->job.payload_bytes, 992u);
  EXPECT_EQ(ready[0].grant->job.data_slots, 128u) << "the largest power of two in 200 - 4";
}

TEST_F(EmbeddedShardsTest, AnIpv6ShardShrinksThePayload) {
  JobTable jobs = table(options());
  join(jobs, with_shard(0, 2, "10.0.0.1:900"));
  join(jobs, with_shard(1, 2, "[fd00::2]:900"));
  EXPECT_EQ(of_kind(jobs.take_events(), Kind::kReady)[0].grant->job.payload_bytes, 1408u);
}

TEST_F(EmbeddedShardsTest, RefusesBadShards) {
  const auto refused = [&](const std::function<void(MemberRequest&)>& change) {
    MemberRequest request = with_shard(1, 2, "10.0.0.1:900");
    change(request);
    return refusal(request, options()).message();
  };
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_endpoint.clear(); }),
              HasSubstr("rank 1 brings no shard"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_endpoint = "host:1"; }), HasSubstr("'host:1'"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_endpoint = "10.0.0.1:0"; }), HasSubstr("with a port"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_payload_bytes = 31; }), HasSubstr("31 bytes"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_slots = 16; }), HasSubstr("16 slots"));
}

// --- Hierarchy ---------------------------------------------------------------------------------------------

MemberRequest through(MemberRequest request, const std::string& rack) {
  request.rack = rack;
  request.rack_payload_bytes = 1408;
  request.rack_slots = 100;
  request.rack_stripes = 1;
  request.origin = "192.168.7." + std::to_string(request.rank) + ":99";
  return request;
}

TEST_F(JobTableTest, RanksOfOneRackAreOneMember) {
  JobTable jobs = table();
  const char* racks[] = {"", "b", "a", "b", "a", ""};
  for (uint32_t rank = 0; rank < 6; ++rank) {
    const MemberRequest request = member_request(rank, 6);
    join(jobs, racks[rank][0] == 0 ? request : through(request, racks[rank]));
  }
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(6));
  const JobGrant& grant = *ready[0].grant;
  EXPECT_THAT(grant.member_of_rank, ElementsAre(0, 1, 2, 1, 2, 3));
  EXPECT_EQ(grant.job.members, 4);
  EXPECT_THAT(grant.stripes, SizeIs(1)) << "as many as the racks have";
  EXPECT_EQ(grant.job.payload_bytes, 1408u) << "as much as the racks take";
  EXPECT_EQ(grant.job.data_slots, 64u) << "as many as fit the racks, a power of two";
}

TEST_F(JobTableTest, WithoutRacksRanksAreMembersByTheirOwnNumbers) {
  JobTable jobs = table();
  join_all(jobs, 2);
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_THAT(ready[0].grant->member_of_rank, IsEmpty());
  EXPECT_EQ(ready[0].grant->job.members, 2);
}

TEST_F(JobTableTest, MoreMembersThanAnAggregatorServesNeedRacks) {
  JobTable jobs = table();
  for (uint32_t rank = 0; rank < 100; ++rank) join(jobs, member_request(rank, 100, "flat"));
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(100));
  EXPECT_THAT(failed[0].failure.message(),
              HasSubstr("100 members at this aggregator, which serves at most 64"));

  for (uint32_t rank = 0; rank < 100; ++rank)
    join(jobs, through(member_request(rank, 100, "racks"), std::to_string(rank / 10)));
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(100));
  EXPECT_EQ(ready[0].grant->job.members, 10);
}

TEST_F(JobTableTest, RacksWithDifferentNumbersOfCoresAreNamed) {
  JobTable jobs = table();
  join(jobs, through(member_request(0, 2), "a"));
  MemberRequest other = through(member_request(1, 2), "b");
  other.rack_stripes = 2;
  join(jobs, other);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_THAT(failed[0].failure.message(),
              HasSubstr("rank 0 (192.168.7.0:99) and rank 1 (192.168.7.1:99) have 1 and 2"));
}

TEST_F(JobTableTest, RacksWithMoreCoresThanTheirParentAreRefused) {
  JobTable jobs = table();
  MemberRequest request = through(member_request(0, 1), "a");
  request.rack_stripes = 3;
  join(jobs, request);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].failure.message(), HasSubstr("has 2 cores, those below it 3"));
}

TEST_F(JobTableTest, RacksThatCannotServeAreRefused) {
  MemberRequest request = through(member_request(0, 1), "a");
  request.rack_slots = kScaleSlots;
  EXPECT_EQ(refusal(request).code(), ErrorCode::kResourceExhausted);
  request = through(member_request(0, 1), "a");
  request.rack_payload_bytes = 8;
  EXPECT_THAT(refusal(request).message(), HasSubstr("8 bytes of payload"));
  request = through(member_request(0, 1), std::string(1000, 'a'));
  EXPECT_THAT(refusal(request).message(), HasSubstr("1000 bytes"));
  request = through(member_request(0, 1), "a");
  request.shard_endpoint = "10.0.0.1:7000";
  request.shard_payload_bytes = 1440;
  request.shard_slots = 300;
  JobTableOptions shards;
  shards.members_bring_shards = true;
  EXPECT_THAT(refusal(request, shards).message(), HasSubstr("rank 0 as its parent"));
}

}  // namespace
}  // namespace netsum
