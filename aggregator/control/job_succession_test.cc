// Jobs that follow others, with whoever comes; and members that fall silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "aggregator/control/job_table_fixture.h"
#include "wire/ids.h"

namespace netsum::job_succession_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = JobEvent::Kind;

constexpr int64_t kMs = 1000;
constexpr uint64_t kFormerId = 0xfeed;

MemberRequest request_of(uint32_t rank, uint32_t world_size, uint32_t min_members,
                         uint64_t succeeds = kFormerId) {
  MemberRequest request;
  request.job.set_protocol_version(NETSUM_VERSION);
  request.job.set_name("train");
  request.job.set_token("secret");
  request.job.set_world_size(world_size);
  request.job.set_mtu(1500);
  request.job.set_slots(256);
  request.job.set_succeeds(succeeds);
  request.job.set_min_members(min_members);
  request.job.set_gather_ms(100);
  request.rank = rank;
  request.peer = *Address::parse("10.0.0." + std::to_string(rank) + ":4000");
  return request;
}

class JobSuccessionTest : public ::testing::Test {
 protected:
  MemberId join(int64_t now_us, const MemberRequest& request) {
    const Result<MemberId> id = jobs_.join(now_us, request);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return id.ok() ? *id : 0;
  }
  std::vector<JobEvent> events(Kind kind) {
    std::vector<JobEvent> found;
    for (const JobEvent& event : jobs_.take_events())
      if (event.kind == kind) found.push_back(event);
    return found;
  }
  // As the service does: whenever the table says so.
  void pass_time(int64_t from_us, int64_t to_us) {
    for (int64_t now_us = from_us; now_us <= to_us; now_us += kMs)
      if (jobs_.next_deadline_us().value_or(to_us + 1) <= now_us) jobs_.on_tick(now_us);
  }

  Rng rng_{1};
  FakeDataplane dataplane_;
  JobTable jobs_{{}, &dataplane_, [this] { return rng_.next(); }};
};

TEST_F(JobSuccessionTest, StartsWithThoseWhoCame) {
  join(0, request_of(3, 4, 2));
  const MemberId first = join(50 * kMs, request_of(1, 4, 2));
  EXPECT_EQ(jobs_.next_deadline_us(), 150 * kMs);
  pass_time(50 * kMs, 149 * kMs);
  EXPECT_THAT(events(Kind::kReady), IsEmpty());
  pass_time(149 * kMs, 151 * kMs);
  const auto ready = events(Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_EQ(ready[0].to, first) << "in the old order, not in that of coming";
  EXPECT_THAT(ready[0].grant->former_ranks, ElementsAre(1, 3));
  EXPECT_EQ(ready[0].grant->job.members, 2);
  ASSERT_THAT(dataplane_.installed(), SizeIs(1));
  EXPECT_EQ(dataplane_.installed()[0].members, 2);
  EXPECT_EQ(jobs_.jobs(0)[0].world_size, 2);
  // By the new rank from now on.
  EXPECT_FALSE(jobs_.leave({"train", "secret", "", 1, first}).ok());
  EXPECT_TRUE(jobs_.leave({"train", "secret", "", 0, first}).ok());
}

TEST_F(JobSuccessionTest, WhoComesLateIsToldSoAndDisturbsNobody) {
  join(0, request_of(0, 3, 2));
  join(0, request_of(1, 3, 2));
  pass_time(0, 200 * kMs);
  const Status late = jobs_.join(200 * kMs, request_of(2, 3, 2)).status();
  EXPECT_EQ(late.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(late.rank(), 2);
  MemberRequest stranger = request_of(2, 3, 2);
  stranger.job.set_token("wrong");
  join(200 * kMs, stranger);  // waits in a job of its own
  EXPECT_EQ(jobs_.jobs(0)[0].state, "running");
  EXPECT_EQ(jobs_.jobs(0)[0].joined.size(), 2u);
}

TEST_F(JobSuccessionTest, StartsAtOnceWhenAllAreThere) {
  for (uint32_t rank = 0; rank < 3; ++rank) join(0, request_of(rank, 3, 2));
  const auto ready = events(Kind::kReady);
  ASSERT_THAT(ready, SizeIs(3));
  EXPECT_THAT(ready[0].grant->former_ranks, IsEmpty());
}

TEST_F(JobSuccessionTest, TooFewNeverStart) {
  MemberRequest only = request_of(0, 4, 2);
  only.deadline_us = 1000 * kMs;
  join(0, only);
  pass_time(0, 999 * kMs);
  EXPECT_THAT(events(Kind::kReady), IsEmpty());
  pass_time(999 * kMs, 1001 * kMs);
  const auto failed = events(Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].failure.code(), ErrorCode::kTimeout);
}

TEST_F(JobSuccessionTest, AMemberThatDiesMeanwhileIsNotWaitedFor) {
  join(0, request_of(0, 4, 2));
  const MemberId dying = join(0, request_of(1, 4, 2));
  join(0, request_of(2, 4, 2));
  jobs_.stream_ended(dying);
  pass_time(0, 200 * kMs);
  EXPECT_THAT(events(Kind::kFailed), IsEmpty());
  EXPECT_THAT(jobs_.jobs(0)[0].joined, SizeIs(2));
  EXPECT_EQ(jobs_.jobs(0)[0].state, "running");
}

TEST_F(JobSuccessionTest, SuccessorsOfDifferentJobsDoNotMeet) {
  join(0, request_of(0, 2, 0));
  join(0, request_of(1, 2, 0, kFormerId + 1));
  join(0, request_of(1, 2, 0, 0));
  EXPECT_THAT(events(Kind::kReady), IsEmpty());
  EXPECT_THAT(jobs_.jobs(0), SizeIs(3));
  MemberRequest last = request_of(1, 2, 0);
  join(0, last);
  EXPECT_THAT(events(Kind::kReady), SizeIs(2));
}

TEST_F(JobSuccessionTest, TellsHowFarAllHaveCome) {
  MemberRequest ahead = request_of(0, 2, 0), behind = request_of(1, 2, 0);
  ahead.completed = 17;
  behind.completed = 15;
  join(0, ahead);
  join(0, behind);
  const auto ready = events(Kind::kReady);
  ASSERT_THAT(ready, SizeIs(2));
  EXPECT_EQ(ready[0].grant->completed, 15u);
}

TEST_F(JobSuccessionTest, OnlySuccessorsMayStartWithoutAll) {
  EXPECT_EQ(jobs_.join(0, request_of(0, 4, 2, 0)).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(jobs_.join(0, request_of(0, 4, 5)).status().code(), ErrorCode::kInvalidArgument);
  join(0, request_of(0, 4, 2));
  EXPECT_THAT(jobs_.join(0, request_of(1, 4, 3)).status().message(), HasSubstr("min_members"));
}

class LivenessTest : public JobSuccessionTest {
 protected:
  void begin(int64_t now_us) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      MemberRequest request = request_of(rank, 2, 0, 0);
      request.liveness_us = 800 * kMs;
      ids_.push_back(join(now_us, request));
    }
  }
  Status alive(int64_t now_us, uint32_t rank) {
    return jobs_.alive(now_us, {"train", "secret", "", rank, ids_[rank]}).status();
  }
  std::vector<MemberId> ids_;
};

TEST_F(LivenessTest, ASilentMemberIsNamedToTheOthersInTime) {
  begin(0);
  for (int64_t now_us = 0; now_us < 2000 * kMs; now_us += 200 * kMs) {
    EXPECT_TRUE(alive(now_us, 0).ok());
    if (now_us <= 600 * kMs) {
      EXPECT_TRUE(alive(now_us, 1).ok());
    }
    pass_time(now_us, now_us + 199 * kMs);
    const auto failed = events(Kind::kFailed);
    if (now_us + 199 * kMs < 1400 * kMs) {
      ASSERT_THAT(failed, IsEmpty()) << now_us;
      continue;
    }
    ASSERT_THAT(failed, SizeIs(2));
    EXPECT_EQ(failed[0].failure.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(failed[0].failure.rank(), 1);
    return;
  }
  FAIL() << "the silence was not noticed";
}

// Ranks 1 and 2 join by an aggregator below. It forwards the heartbeats of whoever sends some.
TEST_F(LivenessTest, TheSilenceOfAllRanksOfAnAggregatorBelowIsItsOwn) {
  for (const bool rank_2_is_alive : {false, true}) {
    ids_.clear();
    for (uint32_t rank = 0; rank < 3; ++rank) {
      MemberRequest request = request_of(rank, 3, 0, 0);
      request.liveness_us = 800 * kMs;
      if (rank > 0) request = through_rack(request, "below");
      ids_.push_back(join(0, request));
    }
    std::vector<JobEvent> failed;
    for (int64_t now_us = 0; now_us < 2000 * kMs && failed.empty(); now_us += 200 * kMs) {
      for (const uint32_t rank : {0u, 1u, 2u})
        if (now_us <= 600 * kMs || rank == 0 || (rank == 2 && rank_2_is_alive)) {
          EXPECT_TRUE(alive(now_us, rank).ok());
        }
      pass_time(now_us, now_us + 199 * kMs);
      failed = events(Kind::kFailed);
    }
    ASSERT_THAT(failed, SizeIs(3));
    const Status& failure = failed[0].failure;
    EXPECT_EQ(failure.code(), rank_2_is_alive ? ErrorCode::kPeerLost : ErrorCode::kAggregatorLost);
    EXPECT_EQ(failure.rank(), rank_2_is_alive ? 1 : kNoRank);
    for (const MemberId id : ids_) jobs_.stream_ended(id);
  }
}

TEST_F(LivenessTest, AnAggregatorThatWasStoppedItselfBlamesNobodyAtOnce) {
  begin(0);
  jobs_.on_tick(5'000 * kMs);
  EXPECT_THAT(events(Kind::kFailed), IsEmpty());
  // Nor while it hears of nobody: those who could be told are no better off.
  pass_time(5'001 * kMs, 9'000 * kMs);
  EXPECT_THAT(events(Kind::kFailed), IsEmpty());
  EXPECT_TRUE(alive(9'001 * kMs, 0).ok());
  pass_time(9'001 * kMs, 9'450 * kMs);
  const auto failed = events(Kind::kFailed);
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_EQ(failed[0].failure.rank(), 1);
}

// What waits to be read is read one by one: the first call alone does not convict those whose calls are next.
TEST_F(LivenessTest, WhenAStoppedAggregatorGoesOnTheFirstCallConvictsNobody) {
  begin(0);
  EXPECT_TRUE(alive(5'000 * kMs, 0).ok());
  jobs_.on_tick(5'000 * kMs);
  EXPECT_THAT(events(Kind::kFailed), IsEmpty());
  EXPECT_TRUE(alive(5'001 * kMs, 1).ok());
  pass_time(5'001 * kMs, 5'700 * kMs);
  EXPECT_THAT(events(Kind::kFailed), IsEmpty());
}

// No call of rank 1 gets through for a minute; a step of data does, every 300 ms.
TEST_F(LivenessTest, NobodyWhoseContributionsComeIsMissed) {
  begin(0);
  for (int64_t now_us = 0; now_us < 60'000 * kMs; now_us += 300 * kMs) {
    EXPECT_TRUE(alive(now_us, 0).ok());
    dataplane_.set_heard({now_us, now_us});
    pass_time(now_us, now_us + 299 * kMs);
    ASSERT_THAT(events(Kind::kFailed), IsEmpty()) << now_us;
  }
}

// The same where the dataplane tells only how many rounds have ended.
TEST_F(LivenessTest, NobodyIsMissedWhileRoundsEnd) {
  begin(0);
  uint64_t rounds = 0;
  for (int64_t now_us = 0; now_us < 60'000 * kMs; now_us += 100 * kMs) {
    EXPECT_TRUE(alive(now_us, 0).ok());
    dataplane_.set_progress({.rounds = ++rounds});
    pass_time(now_us, now_us + 99 * kMs);
    ASSERT_THAT(events(Kind::kFailed), IsEmpty()) << now_us;
  }
}

TEST_F(LivenessTest, WhoseContributionsEndIsMissedAlthoughOthersContribute) {
  begin(0);
  for (int64_t now_us = 0; now_us < 3'000 * kMs; now_us += 100 * kMs) {
    dataplane_.set_heard({now_us, std::min<int64_t>(now_us, 1'000 * kMs)});
    pass_time(now_us, now_us + 99 * kMs);
    const auto failed = events(Kind::kFailed);
    if (failed.empty()) continue;
    EXPECT_GE(now_us, 1'700 * kMs);
    EXPECT_EQ(failed[0].failure.rank(), 1);
    return;
  }
  FAIL() << "the silence was not noticed";
}

TEST_F(LivenessTest, WhenRoundsEndNoMoreTheSilentAreMissed) {
  begin(0);
  for (int64_t now_us = 0; now_us < 4'000 * kMs; now_us += 100 * kMs) {
    if (now_us < 1'000 * kMs) dataplane_.set_progress({.rounds = static_cast<uint64_t>(now_us)});
    EXPECT_TRUE(alive(now_us, 0).ok());
    pass_time(now_us, now_us + 99 * kMs);
    const auto failed = events(Kind::kFailed);
    if (failed.empty()) continue;
    EXPECT_GE(now_us, 1'000 * kMs);
    EXPECT_EQ(failed[0].failure.rank(), 1);
    return;
  }
  FAIL() << "the silence was not noticed";
}

TEST_F(LivenessTest, NobodyIsMissedWhileJoining) {
  MemberRequest request = request_of(0, 2, 0, 0);
  request.liveness_us = 800 * kMs;
  join(0, request);
  pass_time(0, 5'000 * kMs);
  EXPECT_THAT(events(Kind::kFailed), IsEmpty());
}

}  // namespace
}  // namespace netsum::job_succession_test
