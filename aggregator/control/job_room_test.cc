// Which jobs find room at an aggregator: slots, indices, quotas, the queue.
#include "aggregator/control/job_table_fixture.h"

namespace netsum::job_room_test {
namespace {

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
  FakeDataplane dataplane({2, 8, 600, standard_capabilities(1440)});
  JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
  const auto sized = [](const std::string& name, uint32_t slots) {
    MemberRequest request = member_request(0, 1, name);
    request.job.set_slots(slots);
    request.job.set_when_full(static_cast<uint32_t>(WhenFull::kWait));
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
  FakeDataplane dataplane({1, 8, 600, standard_capabilities(1440)});
  JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
  MemberRequest small = member_request(0, 1, "small");
  small.job.set_slots(32);
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
    request.job.set_when_full(static_cast<uint32_t>(WhenFull::kWait));
    request.job.set_slots(slots);
    return request;
  };
  // The second of these would fit, but is not let past the first.
  join(jobs, waiting(0, 1, "large"));
  join(jobs, waiting(0, 2, "small", 32));
  EXPECT_EQ(jobs.jobs(0)[3].state, "queued");
  jobs.take_events();
  MemberRequest small_late = member_request(0, 1, "late");  // would fit as well, and may not wait
  small_late.job.set_slots(32);
  Result<MemberId> late = jobs.join(0, small_late);
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
  request.job.set_when_full(static_cast<uint32_t>(WhenFull::kWait));
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
  request.job.set_slots(1024);
  request.job.set_when_full(static_cast<uint32_t>(WhenFull::kWait));
  EXPECT_EQ(jobs.join(0, request).status().code(), ErrorCode::kResourceExhausted);
}

TEST_F(JobTableTest, OfAJobThatIsSentToItsHostsEveryRankIs) {
  JobTable jobs = table();
  const auto first = join_all(jobs, 1, "a");
  join_all(jobs, 1, "b");
  join_all(jobs, 1, "c");
  MemberRequest request = member_request(0, 2, "away");
  request.job.set_when_full(static_cast<uint32_t>(WhenFull::kHosts));
  request.deadline_us = 3'000'000;
  EXPECT_EQ(jobs.join(0, request).status().code(), ErrorCode::kResourceExhausted);
  // Now there is room, and the job's other rank comes.
  ASSERT_TRUE(jobs.leave(claim_of(member_request(0, 1, "a"), first[0])).ok());
  request.rank = 1;
  const Status status = jobs.join(2'999'999, request).status();
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("no room for job 'away' when its first rank joined"));
  // The next run of that name is another job.
  EXPECT_TRUE(jobs.join(3'000'000, request).ok());
}

TEST_F(JobTableTest, KeepsToTheQuotasOfAJobAndNamesThem) {
  bool floats = false;
  const auto refusal_by = [&](const JobQuota& quota) {
    DataplaneLimits limits = dataplane_.limits();
    limits.quota = quota;
    limits.slot_bytes = 1000;
    limits.place_bytes = 500;
    if (floats) {
      add_values(&limits.capabilities);
      limits.capabilities.set_adds_floats(true);
    }
    FakeDataplane dataplane(limits);
    JobTable jobs({}, &dataplane, [this] { return rng_.next(); });
    MemberRequest request = member_request(0, 1);
    request.job.set_when_full(
        static_cast<uint32_t>(WhenFull::kWait));  // which helps against nothing that will not change
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
  floats = true;  // of one member, which may wait for its turn
  EXPECT_TRUE(refusal_by({.slots = 272, .memory_bytes = 544'000}).ok());
  EXPECT_THAT(refusal_by({.memory_bytes = 543'999}).message(), HasSubstr("which take 544000 bytes"));
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

}  // namespace
}  // namespace netsum::job_room_test
