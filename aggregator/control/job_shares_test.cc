// Jobs whose shares are planned: which stripes are granted, and with which weights.
#include <numeric>

#include "aggregator/control/job_table_fixture.h"

namespace netsum::job_shares_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Not;

constexpr double kMbit = 1e6;

class JobSharesTest : public JobTableTest {
 public:
  static MemberRequest planned(uint32_t rank, uint32_t world_size, double mbit = 100) {
    MemberRequest request = member_request(rank, world_size);
    request.job.set_shares(static_cast<uint32_t>(Shares::kAuto));
    request.shard_endpoint = "0.0.0.0:90" + std::to_string(rank);
    request.shard_payload_bytes = 1440;
    request.shard_slots = 4096;
    request.shard_job = 7;
    request.sharing.emplace();
    request.sharing->mutable_link()->set_in_bps(mbit * kMbit);
    request.sharing->mutable_link()->set_out_bps(mbit * kMbit);
    return request;
  }

  static PlaceInfo place(uint64_t id, double mbit) {
    PlaceInfo place;
    place.set_id(id);
    place.set_address("10.0.0." + std::to_string(id) + ":5151");
    place.set_cores(1);
    place.set_stripes(1);
    place.add_ports()->mutable_link()->set_in_bps(mbit * kMbit);
    place.mutable_ports(0)->mutable_link()->set_out_bps(mbit * kMbit);
    return place;
  }

 protected:
  // The aggregator has one core.
  JobTable one_core(const PlaceInfo& own) {
    dataplane_.set_endpoints({*Address::parse("10.0.0.9:7000")});
    JobTableOptions options;
    options.place = own;
    return table(options);
  }

  static std::shared_ptr<const JobGrant> grant_of(JobTable& jobs) {
    const auto ready = of_kind(jobs.take_events(), Kind::kReady);
    return ready.empty() ? nullptr : ready.front().grant;
  }

  static Status failure_of(JobTable& jobs) {
    const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
    return failed.empty() ? Status() : failed.front().failure;
  }

  static uint64_t sum(const SharePlan& plan) {
    return std::accumulate(plan.weights().begin(), plan.weights().end(), uint64_t{0});
  }
};

TEST_F(JobSharesTest, ShardsSumBesideASpareHost) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 8; ++rank) join(jobs, planned(rank, 8));
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  ASSERT_THAT(grant->stripes, SizeIs(9));
  EXPECT_FALSE(grant->stripes[0].embedded);
  EXPECT_EQ(grant->stripes[0].job, grant->job.job);
  for (size_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(grant->stripes[1 + rank].owner_rank, static_cast<int>(rank));
    EXPECT_EQ(grant->stripes[1 + rank].endpoint,
              "10.0.0." + std::to_string(rank) + ":90" + std::to_string(rank));
    EXPECT_EQ(grant->stripes[1 + rank].job, 7) << "as the shard calls it";
  }
  ASSERT_EQ(grant->plan.weights_size(), 9);
  // The spare host sums t / N, with the time t of docs/placement.md: 2 (N - 1) / ((N - 2) / N + N).
  const double of_spare = 2.0 * 7 / (6.0 / 8 + 8) / 8;
  EXPECT_NEAR(grant->plan.weights(0) / static_cast<double>(sum(grant->plan)), of_spare, 0.01);
  EXPECT_THAT(grant->plan.text(),
              AllOf(HasSubstr("planned shares"), HasSubstr("1.09 times as fast as a ring")));
  EXPECT_EQ(jobs.jobs(0).front().plan, grant->plan.text());
}

TEST_F(JobSharesTest, ARunningJobTellsWhatItsPlanIsMadeFrom) {
  JobTable jobs = one_core(place(9, 100));
  EXPECT_THAT(jobs.topology("").status().message(), HasSubstr("no job is running"));
  MemberId last = 0;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    MemberRequest request = planned(rank, 2, 100 + 50 * rank);
    *request.sharing->add_other_places() = place(10, 400);
    EXPECT_FALSE(jobs.topology("train").ok()) << "not all are there";
    last = join(jobs, request);
  }
  const Result<control::TopologyReply> topology = jobs.topology("");
  ASSERT_TRUE(topology.ok()) << topology.status().to_string();
  EXPECT_EQ(jobs.topology("train")->SerializeAsString(), topology->SerializeAsString());
  ASSERT_EQ(topology->links_size(), 2);
  EXPECT_EQ(topology->links(1).in_bps(), 150 * kMbit);
  EXPECT_TRUE(topology->shards());
  ASSERT_EQ(topology->places_size(), 2);
  EXPECT_EQ(topology->places(1).ports(0).link().in_bps(), 400 * kMbit);
  EXPECT_EQ(topology->plan(), grant_of(jobs)->plan.text());
  jobs.stream_ended(last);
  EXPECT_FALSE(jobs.topology("").ok());
}

TEST_F(JobSharesTest, OfSeveralJobsTheOneThatIsNamedTells) {
  JobTable jobs = one_core(place(9, 100));
  for (const char* name : {"small", "large"}) {
    MemberRequest request = planned(0, 1);
    request.job.set_name(name);
    request.sharing->mutable_link()->set_in_bps((name == std::string("small") ? 1 : 2) * kMbit);
    join(jobs, request);
  }
  EXPECT_THAT(jobs.topology("").status().message(), HasSubstr("several jobs are running (small, large)"));
  EXPECT_THAT(jobs.topology("third").status().message(), HasSubstr("no job 'third' is running"));
  ASSERT_TRUE(jobs.topology("large").ok());
  EXPECT_EQ(jobs.topology("large")->job(), "large");
  EXPECT_EQ(jobs.topology("large")->links(0).in_bps(), 2 * kMbit);
}

TEST_F(JobSharesTest, OneNoteSaysWhichPlanRuns) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 2; ++rank) join(jobs, planned(rank, 2));
  std::vector<std::string> plans;
  for (const AggregatorEvent& note : jobs.take_notes()) {
    if (!note.plan.empty()) plans.push_back(note.plan);
  }
  EXPECT_THAT(plans, ElementsAre(HasSubstr("planned shares")));
}

TEST_F(JobSharesTest, InASwitchNoShardIsGranted) {
  PlaceInfo tor;
  tor.set_kind(PlaceInfo::SWITCH);
  JobTable jobs = one_core(tor);
  for (uint32_t rank = 0; rank < 4; ++rank) join(jobs, planned(rank, 4));
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  EXPECT_THAT(grant->stripes, SizeIs(1));
  EXPECT_THAT(grant->plan.weights(), ElementsAre(1));
}

TEST_F(JobSharesTest, FurtherAggregatorsComeBetween) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 8; ++rank) {
    MemberRequest request = planned(rank, 8);
    *request.sharing->add_other_places() = place(10, 400);
    *request.sharing->add_other_places() = place(11, 0.01);
    join(jobs, request);
  }
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  ASSERT_EQ(grant->plan.weights_size(), 11) << "three aggregators, eight shards";
  EXPECT_NEAR(static_cast<double>(grant->plan.weights(1)) / grant->plan.weights(0), 4, 0.5);
  EXPECT_EQ(grant->plan.weights(2), 0u) << "too slow to help: its stripe is not used";
  EXPECT_THAT(grant->stripes, SizeIs(9)) << "its own, and the shards";
}

TEST_F(JobSharesTest, OffGrantsNoShardsAndWarns) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 8; ++rank) {
    MemberRequest request = planned(rank, 8);
    request.job.set_shares(static_cast<uint32_t>(Shares::kOff));
    request.shard_endpoint.clear();
    join(jobs, request);
  }
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  EXPECT_THAT(grant->stripes, SizeIs(1));
  EXPECT_THAT(grant->plan.weights(), IsEmpty());
  EXPECT_THAT(grant->plan.text(), HasSubstr("a ring would be faster"));
}

TEST_F(JobSharesTest, ShardsOfUnequalRanksAlone) {
  JobTable jobs = table({}, &shards_);
  for (uint32_t rank = 0; rank < 4; ++rank) join(jobs, planned(rank, 4, rank < 2 ? 50 : 100));
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  EXPECT_EQ(grant->stripes.back().job, grant->job.job) << "rank 0's service numbers the jobs of all shards";
  EXPECT_EQ(static_cast<size_t>(grant->plan.weights_size()), grant->stripes.size());
  EXPECT_LT(grant->stripes.size() == 4 ? grant->plan.weights(0) : 0,
            grant->plan.weights().Get(grant->plan.weights_size() - 1));
}

TEST_F(JobSharesTest, RanksThatNameOtherAggregatorsAreRefused) {
  JobTable jobs = one_core(place(9, 100));
  MemberRequest first = planned(0, 2), second = planned(1, 2);
  *first.sharing->add_other_places() = place(10, 100);
  *second.sharing->add_other_places() = place(11, 100);
  join(jobs, first);
  join(jobs, second);
  const Status failure = failure_of(jobs);
  EXPECT_EQ(failure.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_THAT(failure.message(), AllOf(HasSubstr("rank 1 (10.0.0.1) names other aggregators than rank 0"),
                                       HasSubstr("name the same ones on all ranks")));
  EXPECT_THAT(dataplane_.installed(), IsEmpty()) << "no job starts half-planned";
}

TEST_F(JobSharesTest, RefusesAbsurdRates) {
  MemberRequest slow = planned(0, 2, 1e-6);
  EXPECT_THAT(refusal(slow).message(),
              AllOf(HasSubstr("rank 0's link rate is 1 bit/s"), HasSubstr("1 kbit/s")));
  PlaceInfo absurd = place(9, 1e12);
  JobTable jobs = one_core(absurd);
  for (uint32_t rank = 0; rank < 2; ++rank) join(jobs, planned(rank, 2));
  EXPECT_THAT(failure_of(jobs).message(),
              AllOf(HasSubstr("the shares cannot be planned"), HasSubstr("10.0.0.9:5151")));
}

MemberRequest below_rack(MemberRequest request, uint64_t id, double mbit) {
  request.shard_endpoint.clear();  // the aggregator below has taken it out
  request.rack = std::to_string(id);
  request.rack_payload_bytes = 1408;
  request.rack_slots = 1000;
  request.rack_stripes = 1;
  request.sharing->mutable_first_place()->set_address("spine:5151");
  *request.sharing->mutable_first_place()->add_below() = JobSharesTest::place(id, mbit);
  return request;
}

TEST_F(JobSharesTest, HierarchiesShareByTheRatesOfTheirAggregators) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    MemberRequest request = below_rack(planned(rank, 4), rank < 2 ? 10 : 11, 100);
    PlaceInfo& second = *request.sharing->add_other_places();
    second = place(20, 900);
    *second.add_below() = place(rank < 2 ? 21 : 22, rank < 2 ? 200 : 800);
    join(jobs, request);
  }
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  EXPECT_THAT(grant->stripes, SizeIs(1))
      << "those of the second hierarchy are granted by its topmost aggregator";
  EXPECT_THAT(grant->plan.weights(), ElementsAre(1, 2)) << "100 / 3 and 200 / 3";
  EXPECT_THAT(grant->plan.text(), AllOf(HasSubstr("aggregator spine:5151 (and 2 below it) 33.3 %"),
                                        HasSubstr("aggregator 10.0.0.10:5151")));
  const Result<control::TopologyReply> topology = jobs.topology("");
  ASSERT_TRUE(topology.ok()) << topology.status().to_string();
  ASSERT_EQ(topology->places_size(), 2);
  ASSERT_EQ(topology->places(0).below_size(), 2);
  EXPECT_EQ(topology->places(0).below(1).ranks(), 2u);
  EXPECT_FALSE(topology->shards());
}

TEST_F(JobSharesTest, RanksBelowAndBesideAHierarchysAggregators) {
  JobTable jobs = one_core(place(9, 300));
  for (uint32_t rank = 0; rank < 3; ++rank) join(jobs, below_rack(planned(rank, 5), 10, 1000));
  for (uint32_t rank = 3; rank < 5; ++rank) join(jobs, planned(rank, 5));
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  EXPECT_EQ(grant->job.members, 3);
  EXPECT_THAT(grant->stripes, SizeIs(1)) << "no shards: not all ranks could use them";
  EXPECT_DOUBLE_EQ(grant->plan.s_per_byte(), 8 / (100 * kMbit)) << "three members at 300 Mbit/s";
}

TEST_F(JobSharesTest, AggregatorsOfAnotherHierarchyAreRefused) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    MemberRequest request = below_rack(planned(rank, 2), 10 + rank, 100);
    PlaceInfo& second = *request.sharing->add_other_places();
    second = place(20 + rank, 100);
    *second.add_below() = place(30 + rank, 100);
    join(jobs, request);
  }
  EXPECT_THAT(failure_of(jobs).message(),
              AllOf(HasSubstr("rank 1 (10.0.0.1) names other aggregators than rank 0"),
                    HasSubstr("with the same parents")));
  EXPECT_THAT(dataplane_.installed(), IsEmpty());
}

TEST_F(JobSharesTest, AnAggregatorBelowOfAnEarlierReleaseHasNoPlan) {
  JobTable jobs = one_core(place(9, 100));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    MemberRequest request = below_rack(planned(rank, 4), rank < 2 ? 10 : 11, 100);
    request.sharing->clear_first_place();
    join(jobs, request);
  }
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  EXPECT_THAT(grant->stripes, SizeIs(1));
  EXPECT_THAT(grant->plan.weights(), IsEmpty());
  EXPECT_THAT(jobs.topology("").status().message(), HasSubstr("has no plan here"));
}

TEST_F(JobSharesTest, ThePlanShowsTheAddressThatItsMembersUse) {
  PlaceInfo wildcard = place(9, 100);
  wildcard.set_address("0.0.0.0:5151");
  JobTable jobs = one_core(wildcard);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    MemberRequest request = planned(rank, 2);
    request.sharing->mutable_first_place()->set_address("spare7:5151");
    join(jobs, request);
  }
  EXPECT_THAT(grant_of(jobs)->plan.text(), AllOf(HasSubstr("spare7:5151"), Not(HasSubstr("0.0.0.0"))));
}

TEST_F(JobSharesTest, RefusesPathsThatAreNone) {
  MemberRequest request = below_rack(planned(0, 2), 10, 100);
  *request.sharing->mutable_first_place()->add_below() = place(11, 100);
  EXPECT_THAT(refusal(request).message(), HasSubstr("names 2 aggregators below spine:5151"));
  request = planned(0, 2);
  request.sharing->mutable_first_place()->set_address("\x1b[31m");
  EXPECT_THAT(refusal(request).message(), HasSubstr("not printable"));
}

TEST_F(JobSharesTest, AfterARegroupThePlanIsOfThoseWhoGoOn) {
  JobTable jobs = one_core(place(9, 100));
  for (const uint32_t rank : {0u, 2u, 3u}) {
    MemberRequest request = planned(rank, 4);
    request.job.set_succeeds(5);
    request.job.set_min_members(2);
    request.job.set_gather_ms(100);
    join(jobs, request);
  }
  jobs.on_tick(kSecondUs);
  const auto grant = grant_of(jobs);
  ASSERT_NE(grant, nullptr);
  ASSERT_THAT(grant->stripes, SizeIs(4));
  EXPECT_EQ(grant->stripes[2].owner_rank, 1) << "by its new number";
  EXPECT_EQ(grant->stripes[2].endpoint, "10.0.0.2:902");
}

TEST_F(JobSharesTest, AShardThatTheJobDidNotAskForIsRefused) {
  MemberRequest request = planned(0, 2);
  request.job.set_shares(0);
  EXPECT_THAT(refusal(request).message(), HasSubstr("offers an embedded shard"));
  request = planned(0, 2);
  request.shard_job = 65536;
  EXPECT_THAT(refusal(request).message(), HasSubstr("65536"));
}

}  // namespace
}  // namespace netsum::job_shares_test
