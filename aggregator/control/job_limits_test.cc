// What strangers can ask of the table of jobs: numbers out of range, more memory or time than a job needs, others' places in
// the queue.
#include <cmath>
#include <limits>

#include "aggregator/control/job_table_fixture.h"

namespace netsum::job_limits_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;

constexpr int64_t kMs = 1000;
constexpr double kLeast = 5e-324;

class JobLimitsTest : public JobTableTest {
 protected:
  static PlaceInfo place(uint64_t id) {
    PlaceInfo place;
    place.set_id(id);
    place.set_address("10.0.0.8:5151");
    place.set_cores(1);
    place.set_stripes(1);
    return place;
  }

  static MemberRequest planned(uint32_t rank, uint32_t world_size) {
    MemberRequest request = member_request(rank, world_size);
    request.job.set_slots(64);
    request.sharing.emplace();
    return request;
  }

  static MemberRequest from(const std::string& address, const std::string& name, uint32_t rank = 0,
                            uint32_t world_size = 1) {
    MemberRequest request = member_request(rank, world_size, name);
    request.peer = *Address::parse(address + ":4000");
    return request;
  }
};

TEST_F(JobLimitsTest, EachNumberOfAPlaceHasARange) {
  using Spoil = std::function<void(control::Sharing&)>;
  const auto other = [](control::Sharing& sharing) -> PlaceInfo& { return *sharing.mutable_other_places(0); };
  const double kOdd[] = {kLeast, 1e-300, -1, 1e300, std::numeric_limits<double>::infinity(), std::nan("")};
  std::vector<Spoil> all;
  for (const double odd : kOdd) {
    all.push_back([=](control::Sharing& s) { s.mutable_link()->set_in_bps(odd); });
    all.push_back([=](control::Sharing& s) { s.mutable_link()->set_out_bps(odd); });
    all.push_back([=](control::Sharing& s) { other(s).set_adds_per_second(odd); });
    all.push_back([=](control::Sharing& s) { other(s).set_stream_bps(odd); });
    all.push_back([=](control::Sharing& s) { other(s).mutable_uplink()->set_in_bps(odd); });
    all.push_back([=](control::Sharing& s) { other(s).mutable_uplink()->set_out_bps(odd); });
    all.push_back([=](control::Sharing& s) { other(s).add_ports()->mutable_link()->set_in_bps(odd); });
    all.push_back([=](control::Sharing& s) { other(s).add_below()->set_adds_per_second(odd); });
    all.push_back([=](control::Sharing& s) { s.mutable_first_place()->add_below()->set_stream_bps(odd); });
  }
  for (const uint32_t odd : {100'000u, std::numeric_limits<uint32_t>::max()}) {
    all.push_back([=](control::Sharing& s) { other(s).set_cores(odd); });
    all.push_back([=](control::Sharing& s) { other(s).set_stripes(odd); });
    all.push_back([=](control::Sharing& s) { other(s).set_ranks(odd); });
  }
  all.push_back([=](control::Sharing& s) { other(s).add_ports()->set_address("a\nb"); });
  all.push_back([=](control::Sharing& s) {
    for (int i = 0; i < 65; ++i) other(s).add_ports();
  });
  all.push_back([](control::Sharing& s) {
    for (uint64_t i = 0; i < 65; ++i) *s.add_other_places() = place(i + 10);
  });
  all.push_back([=](control::Sharing& s) {
    PlaceInfo* lowest = &other(s);
    for (uint64_t i = 0; i < 8; ++i) *(lowest = lowest->add_below()) = place(i + 10);
  });
  all.push_back([](control::Sharing& s) {
    for (int i = 0; i < 30'000; ++i) s.add_other_places();  // 2 bytes each
  });
  for (size_t i = 0; i < all.size(); ++i) {
    MemberRequest request = planned(0, 1);
    *request.sharing->add_other_places() = place(8);
    JobTable jobs = table();
    all[i](*request.sharing);
    const Result<MemberId> id = jobs.join(0, request);
    ASSERT_FALSE(id.ok()) << i;
    EXPECT_THAT(id.status().code(),
                ::testing::AnyOf(ErrorCode::kInvalidArgument, ErrorCode::kResourceExhausted));
    EXPECT_THAT(id.status().message(), HasSubstr("rank 0")) << i;
    EXPECT_TRUE(jobs.empty());
  }
}

// 64 such requests of 51 bytes have stopped the process.
TEST_F(JobLimitsTest, AJobOf64RanksWithTheLeastOfNumbersIsRefused) {
  JobTable jobs = table();
  for (uint32_t rank = 0; rank < 64; ++rank) {
    MemberRequest request = planned(rank, 64);
    *request.sharing->add_other_places() = place(8);
    request.sharing->mutable_other_places(0)->set_adds_per_second(kLeast);
    EXPECT_EQ(jobs.join(0, request).status().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(jobs.empty());
}

TEST_F(JobLimitsTest, MoreAggregatorsThanAPlanCanHaveFailTheJob) {
  constexpr uint32_t kRanks = 64;
  JobTable jobs = table();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    MemberRequest request = planned(rank, kRanks);
    request.job.set_shares(static_cast<uint32_t>(Shares::kAuto));
    for (uint64_t i = 0; i < 20; ++i) {
      PlaceInfo& top = *request.sharing->add_other_places();
      top = place(i + 10);
      top.set_address("10.0.1." + std::to_string(i) + ":5151");
      *top.add_below() = place(1000 + i * kRanks + rank);
    }
    join(jobs, request);
  }
  const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(kRanks));
  EXPECT_EQ(failed[0].failure.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(failed[0].failure.message(), HasSubstr("at most 1024"));
}

TEST_F(JobLimitsTest, ListsOfCapabilitiesAreShort) {
  MemberRequest request = member_request(0, 1);
  for (uint32_t i = 0; i < 20'000; ++i) request.job.mutable_needs()->add_formats(i);
  EXPECT_EQ(refusal(request).code(), ErrorCode::kInvalidArgument);
  request = member_request(0, 1);
  for (uint32_t i = 0; i < 20'000; ++i) request.dataplane.add_tags(i);
  EXPECT_EQ(refusal(request).code(), ErrorCode::kInvalidArgument);
}

TEST_F(JobLimitsTest, NumbersThatNoJobHasAreRefused) {
  MemberRequest request = member_request(0, 1);
  request.job.set_slots(1u << 31);
  request.shard_endpoint = "10.0.0.1:7000";
  request.shard_payload_bytes = 1440;
  request.shard_slots = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(refusal(request, {}, &shards_).code(), ErrorCode::kInvalidArgument);
  request = member_request(0, 1);
  request.job.set_shares(256);  // as 8 bits, those of Shares, this is 0
  EXPECT_EQ(refusal(request).code(), ErrorCode::kUnsupported);
}

TEST_F(JobLimitsTest, ALivenessTimeoutThatIsTooShortIsRefused) {
  MemberRequest request = member_request(0, 1);
  request.liveness_us = 19 * kMs;
  EXPECT_THAT(refusal(request).message(), HasSubstr("at least 20 ms"));
  request.liveness_us = 20 * kMs;
  JobTable jobs = table();
  join(jobs, request);
}

// Until the members are lost, and not for as long as their connections last.
TEST_F(JobLimitsTest, SilenceOfAllEndsTheJob) {
  for (const uint32_t ranks : {1u, 2u}) {
    JobTable jobs = table();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      MemberRequest request = member_request(rank, ranks);
      request.liveness_us = 20 * kMs;
      join(jobs, request);
    }
    jobs.take_events();
    int checks = 0;
    for (int64_t now_us = 0; now_us < 1000 * kMs && !jobs.empty(); now_us += kMs) {
      if (jobs.next_deadline_us().value_or(now_us + 1) > now_us) continue;
      jobs.on_tick(now_us);
      ++checks;
    }
    EXPECT_TRUE(jobs.empty()) << ranks;
    EXPECT_THAT(of_kind(jobs.take_events(), Kind::kFailed), SizeIs(ranks));
    EXPECT_LE(checks, ranks == 1 ? 1 : 40);
  }
}

TEST_F(JobLimitsTest, OneTenantDoesNotGetAllJobs) {
  JobTableOptions options;
  options.tenant.jobs = 2;
  JobTable jobs = table(options);
  const MemberId first = join(jobs, from("10.0.0.1", "a"));
  join(jobs, from("10.0.0.1", "b", 0, 2));
  const Status refused = jobs.join(0, from("10.0.0.1", "c")).status();
  EXPECT_EQ(refused.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("10.0.0.1"), HasSubstr("quota of jobs")));
  MemberRequest waiting = from("10.0.0.1", "d");
  waiting.job.set_when_full(static_cast<uint32_t>(WhenFull::kWait));
  EXPECT_FALSE(jobs.join(0, waiting).ok()) << "it would keep others waiting behind it";
  join(jobs, from("10.0.0.2", "c"));
  join(jobs, from("10.0.0.9", "b", 1, 2));  // of the first tenant's job, wherever its rank is
  ASSERT_TRUE(jobs.leave(claim_of(from("10.0.0.1", "a"), first)).ok());
  join(jobs, from("10.0.0.1", "e"));
}

TEST_F(JobLimitsTest, OneTenantDoesNotGetAllSlots) {
  JobTableOptions options;
  options.tenant.slots = 600;
  JobTable jobs = table(options);
  join(jobs, from("[fd00::1]", "a"));
  join(jobs, from("[fd00::2]", "b"));
  const Status refused = jobs.join(0, from("[fd00::3]", "c")).status();
  EXPECT_EQ(refused.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("would take 816 slots per stripe; this aggregator's quota"));
  join(jobs, from("[fd00:0:0:1::3]", "c"));
}

class JobQueueTest : public JobLimitsTest {
 protected:
  // Another one has all slots, and waits.
  void fill(JobTable& jobs) {
    for (const char* name : {"a", "b", "c"}) ids_.push_back(join(jobs, from("10.0.0.1", name)));
    MemberRequest waiting = from("10.0.0.1", "victim");
    waiting.job.set_slots(512);
    waiting.job.set_when_full(static_cast<uint32_t>(WhenFull::kWait));
    join(jobs, waiting);
  }
  static MemberRequest successor(const std::string& name, uint64_t succeeds) {
    MemberRequest request = from("10.0.0.2", name);
    request.job.set_slots(64);
    request.job.set_succeeds(succeeds);
    return request;
  }
  static uint64_t succession_id(JobTable& jobs) {
    const auto ready = of_kind(jobs.take_events(), Kind::kReady);
    return ready.empty() ? 0 : ready.back().grant->succession_id;
  }
  std::vector<MemberId> ids_;
};

TEST_F(JobQueueTest, WhoSucceedsNoJobOfHereWaitsAsOthersDo) {
  JobTable jobs = table();
  fill(jobs);
  const Status refused = jobs.join(0, successor("jumper", 0x1234)).status();
  EXPECT_EQ(refused.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("1 jobs that came earlier are waiting"));
}

TEST_F(JobQueueTest, WhoSucceedsAJobOfHereGoesOnOnceUnderItsNameAndToken) {
  JobTable jobs = table();
  fill(jobs);
  const uint64_t id = succession_id(jobs);  // of "c"
  ASSERT_NE(id, 0u);
  EXPECT_FALSE(jobs.join(0, successor("jumper", id)).ok());
  MemberRequest other = successor("c", id);
  other.job.set_token("another");
  EXPECT_FALSE(jobs.join(0, other).ok());
  ASSERT_TRUE(jobs.report(claim_of(from("10.0.0.1", "c"), ids_[2]), {ErrorCode::kPeerLost, "gone"}).ok());
  jobs.stream_ended(ids_[2]);
  EXPECT_FALSE(jobs.join(kMs, successor("jumper", id)).ok());
  const MemberId going_on = join(jobs, successor("c", id), kMs);
  ASSERT_TRUE(jobs.leave(claim_of(successor("c", id), going_on)).ok());
  EXPECT_FALSE(jobs.join(2 * kMs, successor("c", id)).ok()) << "its place was taken once";
}

TEST_F(JobQueueTest, ARegroupMayNotTakeForEver) {
  JobTable jobs = table();
  fill(jobs);
  const uint64_t id = succession_id(jobs);
  jobs.stream_ended(ids_[2]);
  EXPECT_FALSE(jobs.join(61 * kSecondUs, successor("c", id)).ok());
}

TEST_F(JobLimitsTest, RefusedJoinsDoNotFillTheLog) {
  JobTable jobs = table();
  MemberRequest refused = member_request(0, 1);
  refused.job.set_mtu(1);
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(jobs.join(0, refused).ok());
  EXPECT_LE(jobs.take_notes().size(), 100u);
  EXPECT_FALSE(jobs.join(kSecondUs, refused).ok());
  const std::vector<AggregatorEvent> later = jobs.take_notes();
  ASSERT_THAT(later, SizeIs(1));
  EXPECT_THAT(later[0].reason, HasSubstr("9936 earlier refusals are not in this log"));
}

TEST_F(JobLimitsTest, JobsOfOneNameAreToldApart) {
  JobTable jobs = table();
  MemberRequest stranger = member_request(0, 2);
  stranger.job.set_token("another");
  join(jobs, member_request(0, 2));
  join(jobs, stranger);
  const auto all = jobs.jobs(0);
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[0].name, all[1].name);
  EXPECT_NE(all[0].id, all[1].id);
  EXPECT_THAT(all[0].id, SizeIs(8));
}

// As in the service: what takes long is done without the table.
class DeferredTest : public JobLimitsTest {
 protected:
  JobTable deferred() {
    JobTableOptions options;
    options.defer_tasks = true;
    return table(options);
  }
  bool run_one(JobTable& jobs) {
    std::optional<JobTask> task = jobs.take_task();
    if (!task) return false;
    task->run(&dataplane_);
    jobs.finish(0, std::move(*task));
    return true;
  }
};

TEST_F(DeferredTest, AJobIsPlannedAndInstalledByTasks) {
  JobTable jobs = deferred();
  join(jobs, planned(0, 1));
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), IsEmpty());
  EXPECT_EQ(jobs.jobs(0)[0].state, "joining");
  EXPECT_TRUE(run_one(jobs));
  EXPECT_THAT(dataplane_.installed(), IsEmpty());
  EXPECT_TRUE(run_one(jobs));
  EXPECT_THAT(dataplane_.installed(), SizeIs(1));
  EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), SizeIs(1));
  EXPECT_EQ(jobs.jobs(0)[0].state, "running");
  EXPECT_FALSE(run_one(jobs));
}

TEST_F(DeferredTest, AMemberThatIsLostMeanwhileFailsTheJobAndItsRoomIsFreed) {
  for (int tasks_before = 0; tasks_before < 2; ++tasks_before) {
    for (const bool leaves : {false, true}) {
      JobTable jobs = deferred();
      join(jobs, planned(0, 2));
      const MemberId gone = join(jobs, planned(1, 2));
      for (int i = 0; i < tasks_before; ++i) EXPECT_TRUE(run_one(jobs));
      std::optional<JobTask> under_way = jobs.take_task();
      ASSERT_TRUE(under_way);
      if (leaves) {
        EXPECT_TRUE(jobs.leave(claim_of(planned(1, 2), gone)).ok());
      } else {
        jobs.stream_ended(gone);
      }
      const auto failed = of_kind(jobs.take_events(), Kind::kFailed);
      ASSERT_THAT(failed, SizeIs(1));
      EXPECT_EQ(failed[0].failure.rank(), 1);
      under_way->run(&dataplane_);
      jobs.finish(0, std::move(*under_way));
      while (run_one(jobs)) {
      }
      EXPECT_THAT(of_kind(jobs.take_events(), Kind::kReady), IsEmpty());
      EXPECT_FALSE(jobs.frees_room());
      EXPECT_EQ(dataplane_.free_slots(), 1024u);
      // All of it is there again.
      MemberRequest all = member_request(0, 1, "all");
      all.job.set_slots(512);
      join(jobs, all);
    }
  }
}

TEST_F(DeferredTest, RoomIsFreeWhenTheDataplaneHasRemovedTheJob) {
  JobTable jobs = deferred();
  MemberRequest request = member_request(0, 1);
  request.job.set_slots(512);
  const MemberId id = join(jobs, request);
  EXPECT_TRUE(run_one(jobs));
  ASSERT_TRUE(jobs.leave(claim_of(request, id)).ok());
  MemberRequest next = request;
  next.job.set_name("next");
  next.job.set_when_full(static_cast<uint32_t>(WhenFull::kHosts));
  const Status refused = jobs.join(0, next).status();
  EXPECT_TRUE(jobs.must_wait(refused)) << refused.to_string();
  EXPECT_TRUE(run_one(jobs));
  EXPECT_FALSE(jobs.frees_room());
  join(jobs, next);
}

}  // namespace
}  // namespace netsum::job_limits_test
