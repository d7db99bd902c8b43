// Which stripes sum for a job, and what they can do: the dataplane's own, the members' shards, racks below.
#include <initializer_list>

#include "aggregator/control/job_table_fixture.h"
#include "src/job/ranks.h"

namespace netsum::job_stripes_test {
namespace {

class EmbeddedShardsTest : public JobTableTest {
 protected:
  static MemberRequest with_shard(uint32_t rank, uint32_t world_size, const std::string& endpoint) {
    MemberRequest request = member_request(rank, world_size);
    request.shard_endpoint = endpoint;
    request.shard_payload_bytes = 1440;
    request.shard_slots = 272;
    return request;
  }
};

TEST_F(EmbeddedShardsTest, StripesAreTheMembersShardsInRankOrder) {
  JobTable jobs = table({}, &shards_);
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
  JobTable jobs = table({}, &shards_);
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
  JobTable jobs = table({}, &shards_);
  join(jobs, with_shard(0, 2, "10.0.0.1:900"));
  join(jobs, with_shard(1, 2, "[fd00::2]:900"));
  EXPECT_EQ(of_kind(jobs.take_events(), Kind::kReady)[0].grant->job.payload_bytes, 1408u);
}

TEST_F(EmbeddedShardsTest, RefusesBadShards) {
  const auto refused = [&](const std::function<void(MemberRequest&)>& change) {
    MemberRequest request = with_shard(1, 2, "10.0.0.1:900");
    change(request);
    return refusal(request, {}, &shards_).message();
  };
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_endpoint.clear(); }),
              HasSubstr("rank 1 offers no embedded shard"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_endpoint = "host:1"; }), HasSubstr("'host:1'"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_endpoint = "10.0.0.1:0"; }), HasSubstr("with a port"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_payload_bytes = 31; }), HasSubstr("31 bytes"));
  EXPECT_THAT(refused([](MemberRequest& r) { r.shard_slots = 16; }), HasSubstr("16 slots"));
}

// --- Hierarchy ---------------------------------------------------------------------------------------------

TEST_F(JobTableTest, RanksOfOneRackAreOneMember) {
  JobTable jobs = table();
  const char* racks[] = {"", "b", "a", "b", "a", ""};
  for (uint32_t rank = 0; rank < 6; ++rank) {
    const MemberRequest request = member_request(rank, 6);
    join(jobs, racks[rank][0] == 0 ? request : through_rack(request, racks[rank]));
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

// An aggregator below tells of a rank that it loses, so the end of its connections without a word is its own end.
TEST_F(JobTableTest, ALostRankIsToldFromALostAggregatorBelow) {
  for (const bool told : {false, true}) {
    JobTable jobs = table();
    std::vector<MemberId> ids;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const MemberRequest request = member_request(rank, 3);
      ids.push_back(join(jobs, rank == 0 ? request : through_rack(request, "a")));
    }
    jobs.take_events();
    if (told) {
      ASSERT_TRUE(jobs.report(claim_of(member_request(2, 3), ids[2]), disconnected(2, "w2", false)).ok());
    }
    jobs.stream_ended(ids[2]);
    jobs.stream_ended(ids[1]);
    const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
    ASSERT_THAT(failed, SizeIs(testing::Ge(1u)));
    const Status& failure = failed[0].failure;
    EXPECT_EQ(failure.code(), told ? ErrorCode::kPeerLost : ErrorCode::kAggregatorLost);
    EXPECT_EQ(failure.rank(), told ? 2 : kNoRank);
    EXPECT_THAT(
        failure.message(),
        testing::StartsWith(told ? "rank 2 (w2) disconnected without leaving"
                                 : "the aggregator by which rank 2 (192.168.7.2:99) joined disconnected"));
  }
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
    join(jobs, through_rack(member_request(rank, 100, "racks"), std::to_string(rank / 10)));
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(100));
  EXPECT_EQ(ready[0].grant->job.members, 10);
}

TEST_F(JobTableTest, RacksWithDifferentNumbersOfCoresAreNamed) {
  JobTable jobs = table();
  join(jobs, through_rack(member_request(0, 2), "a"));
  MemberRequest other = through_rack(member_request(1, 2), "b");
  other.rack_stripes = 2;
  join(jobs, other);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_THAT(failed[0].failure.message(),
              HasSubstr("rank 0 (192.168.7.0:99) and rank 1 (192.168.7.1:99) have 1 and 2"));
}

TEST_F(JobTableTest, RacksWithMoreCoresThanTheirParentAreRefused) {
  JobTable jobs = table();
  MemberRequest request = through_rack(member_request(0, 1), "a");
  request.rack_stripes = 3;
  join(jobs, request);
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].failure.message(), HasSubstr("has 2 cores, those below it 3"));
}

TEST_F(JobTableTest, RacksThatCannotServeAreRefused) {
  MemberRequest request = through_rack(member_request(0, 1), "a");
  request.rack_slots = kScaleSlots;
  EXPECT_EQ(refusal(request).code(), ErrorCode::kResourceExhausted);
  request = through_rack(member_request(0, 1), "a");
  request.rack_payload_bytes = 8;
  EXPECT_THAT(refusal(request).message(), HasSubstr("8 bytes of payload"));
  request = through_rack(member_request(0, 1), std::string(1000, 'a'));
  EXPECT_THAT(refusal(request).message(), HasSubstr("1000 bytes"));
  request = through_rack(member_request(0, 1), "a");
  request.shard_endpoint = "10.0.0.1:7000";
  request.shard_payload_bytes = 1440;
  request.shard_slots = 300;
  EXPECT_THAT(refusal(request, {}, &shards_).message(), HasSubstr("rank 0 as its parent"));
}

// --- Capabilities ------------------------------------------------------------------------------------------

Capabilities only(std::initializer_list<uint32_t> formats) {
  Capabilities can = standard_capabilities(1440);
  can.clear_formats();
  for (const uint32_t format : formats) can.add_formats(format);
  return can;
}

const Capabilities kWithoutHalves =
    only({NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64, NETSUM_FORMAT_MAX_U8});

TEST_F(JobTableTest, AJobThatTheDataplaneCannotSumIsRefused) {
  FakeDataplane dataplane({2, 8, 1024, kWithoutHalves});
  Status refused = refusal(member_request(0, 2), {}, &dataplane);
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message(),
              HasSubstr("job 'train' needs SUM of 16-bit lanes, which the dataplane 'fake' of this "
                        "aggregator cannot do: use an aggregator whose dataplane can"));

  MemberRequest modest = member_request(0, 1);
  *modest.job.mutable_needs() = kWithoutHalves;
  JobTable jobs = table({}, &dataplane);
  join(jobs, modest);
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_THAT(ready[0].grant->capabilities.formats(), ElementsAre(0x14, 0x15, 0x21));
}

TEST_F(JobTableTest, AnOperationOrATagThatTheDataplaneLacksIsNamed) {
  MemberRequest request = member_request(0, 2);
  request.job.mutable_needs()->add_formats(NETSUM_FORMAT(9, NETSUM_LANE_I32));
  EXPECT_THAT(refusal(request).message(),
              HasSubstr("needs operation 9 of 32-bit lanes, which the dataplane 'fake'"));
  request = member_request(0, 2);
  request.job.mutable_needs()->add_tags(9);
  EXPECT_THAT(refusal(request).message(),
              HasSubstr("needs packet tags of kind 9, which the dataplane 'fake'"));
}

TEST_F(JobTableTest, TheDataplaneIsToldWhatIsInTheCheckFieldOfPackets) {
  MemberRequest request = member_request(0, 1);
  request.job.set_verify(static_cast<uint32_t>(Verify::kSum));
  need_cookies(request.job.mutable_needs());
  EXPECT_EQ(refusal(request).code(), ErrorCode::kUnsupported);
  DataplaneLimits limits{2, 8, 1024, standard_capabilities(1440)};
  add_cookies(&limits.capabilities);
  FakeDataplane dataplane(limits);
  JobTable jobs = table({}, &dataplane);
  join(jobs, request);
  ASSERT_THAT(dataplane.installed(), SizeIs(1));
  EXPECT_EQ(dataplane.installed()[0].tag, static_cast<uint32_t>(NETSUM_TAG_COOKIE));
}

TEST_F(JobTableTest, MembersThatNeedDifferentThingsHearWhatDiffers) {
  JobTable jobs = table();
  join(jobs, member_request(0, 2));
  MemberRequest other = member_request(1, 2);
  other.job.mutable_needs()->set_max_members(2);
  EXPECT_THAT(jobs.join(0, other).status().message(),
              HasSubstr("was created with needs (lane_bits) 0, and this rank asks for other"));
}

TEST_F(JobTableTest, ARackThatCannotSumTheJobIsNamed) {
  MemberRequest request = through_rack(member_request(3, 4), "a");
  request.dataplane = kWithoutHalves;
  EXPECT_THAT(refusal(request).message(),
              HasSubstr("needs SUM of 16-bit lanes, which the dataplane of rank 3's aggregator cannot do"));
}

TEST_F(EmbeddedShardsTest, AShardThatCannotSumTheJobIsNamed) {
  MemberRequest request = with_shard(1, 2, "10.0.0.1:900");
  request.dataplane = kWithoutHalves;
  EXPECT_THAT(refusal(request, {}, &shards_).message(),
              HasSubstr("needs SUM of 16-bit lanes, which rank 1's shard cannot do"));
}

TEST_F(EmbeddedShardsTest, AJobIsGrantedWhatAllShardsCanDo) {
  JobTable jobs = table({}, &shards_);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    MemberRequest request = with_shard(rank, 2, "10.0.0.1:900");
    *request.job.mutable_needs() = only({NETSUM_FORMAT_SUM_I32});
    request.dataplane = rank == 0 ? kWithoutHalves : only({NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32});
    join(jobs, request);
  }
  const auto ready = of_kind(jobs.take_events(), Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_THAT(ready[0].grant->capabilities.formats(), ElementsAre(NETSUM_FORMAT_SUM_I32));
}

}  // namespace
}  // namespace netsum::job_stripes_test
