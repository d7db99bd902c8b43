// What the table of jobs tells people: status and log events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregator/control/job_table.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/base/rng.h"
#include "src/base/text.h"
#include "wire/ids.h"

namespace netsum::job_status_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = AggregatorEvent::Kind;

class JobStatusTest : public ::testing::Test {
 protected:
  static MemberRequest request(uint32_t rank, const std::string& token = "secret") {
    MemberRequest request;
    request.job = new_job_spec();
    request.job.set_name("train");
    request.job.set_token(token);
    request.job.set_world_size(2);
    request.rank = rank;
    request.peer = *Address::parse("10.0.0." + std::to_string(rank) + ":4000");
    return request;
  }
  MemberId join(uint32_t rank, int64_t now_us = 0) {
    const Result<MemberId> id = table_.join(now_us, request(rank));
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return id.ok() ? *id : 0;
  }
  std::vector<Kind> kinds() {
    std::vector<Kind> kinds;
    for (const AggregatorEvent& event : table_.take_notes()) kinds.push_back(event.kind);
    return kinds;
  }

  FakeDataplane dataplane_;
  Rng rng_{1};
  JobTable table_{{}, &dataplane_, [this] { return rng_.next(); }};
};

TEST_F(JobStatusTest, WhoHasNotJoined) {
  join(1, 1'000'000);
  const AggregatorJobStatus job = table_.jobs(3'500'000).at(0);
  EXPECT_THAT(job.waiting_for, ElementsAre(0));
  EXPECT_EQ(job.waiting_ms, 2500u);
  EXPECT_THAT(job.hosts, ElementsAre("", "10.0.0.1"));
  EXPECT_EQ(job.slots, 0u) << "it has none yet";
}

control::Beat beat(uint64_t submitted, const std::string& hint = "") {
  control::Beat beat;
  beat.set_submitted(submitted);
  beat.set_hint(hint);
  return beat;
}

TEST_F(JobStatusTest, WhoHasNotSubmittedAnOperationIsAskedWhereItIsAndTheOthersAreTold) {
  const MemberId ids[] = {join(0), join(1)};
  const auto alive = [&](int64_t now_us, uint32_t rank, const control::Beat& beat) {
    const MemberRequest member = request(rank);
    const auto reply =
        table_.alive(now_us, {member.job.name(), member.job.token(), "", rank, ids[rank]}, &beat);
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? *reply : control::AliveReply();
  };
  constexpr int64_t kSecond = 1'000'000;
  alive(kSecond, 1, beat(117));
  EXPECT_EQ(alive(kSecond, 0, beat(118)).hang(), "");
  EXPECT_FALSE(alive(2 * kSecond - 1, 1, beat(117)).hint()) << "it computes";
  EXPECT_THAT(table_.jobs(2 * kSecond - 1).at(0).hangs, IsEmpty());
  // Rank 0 is not asked: it is not behind.
  EXPECT_FALSE(alive(3 * kSecond, 0, beat(118)).hint());
  EXPECT_TRUE(alive(3 * kSecond, 1, beat(117)).hint());
  EXPECT_THAT(table_.jobs(3 * kSecond).at(0).hangs, ElementsAre("rank 1 has not submitted operation 118"));
  alive(4 * kSecond, 1, beat(117, "train.py:41\nin forward"));
  const std::string hang =
      "rank 1 has not submitted operation 118; its main thread is at train.py:41\\nin forward";
  EXPECT_EQ(alive(4 * kSecond, 0, beat(120)).hang(), hang);
  EXPECT_THAT(table_.jobs(4 * kSecond).at(0).hangs, ElementsAre(hang));
  // It goes on, and is behind again at once: that is no hang yet, and what it said is not true any more.
  EXPECT_FALSE(alive(5 * kSecond, 1, beat(118)).hint());
  EXPECT_THAT(table_.jobs(5 * kSecond).at(0).hangs, IsEmpty());
  EXPECT_THAT(table_.jobs(7 * kSecond).at(0).hangs, ElementsAre("rank 1 has not submitted operation 119"));
  alive(8 * kSecond, 1, beat(120));
  EXPECT_THAT(table_.jobs(8 * kSecond).at(0).hangs, IsEmpty());
}

// A rank without beats, such as one whose process is stopped, is found by those of the others. One that has never sent any does
// not tell how far it is.
TEST_F(JobStatusTest, WhoSendsNoHeartbeatsIsBehindIfItHasSentOne) {
  const MemberId ids[] = {join(0), join(1)};
  const MemberRequest zero = request(0), one = request(1);
  const control::Beat first = beat(1), second = beat(2);
  const MemberClaim by_zero{"train", zero.job.token(), "", 0, ids[0]};
  const MemberClaim by_one{"train", one.job.token(), "", 1, ids[1]};
  ASSERT_TRUE(table_.alive(1, by_zero, &second).ok());
  ASSERT_TRUE(table_.alive(1, by_one).ok());
  EXPECT_EQ(table_.alive(5'000'000, by_zero, &second)->hang(), "");
  ASSERT_TRUE(table_.alive(6'000'000, by_one, &first).ok());
  EXPECT_EQ(table_.alive(8'000'000, by_zero, &second)->hang(), "rank 1 has not submitted operation 2");
}

TEST_F(JobStatusTest, WhoseShareIsAwayIsWhatTheFirstRankSays) {
  const MemberId ids[] = {join(0), join(1)};
  control::Beat beat;
  beat.add_away(1);
  beat.add_away(7);  // there is no such rank
  const MemberRequest zero = request(0), one = request(1);
  ASSERT_TRUE(table_.alive(1, {"train", zero.job.token(), "", 0, ids[0]}, &beat).ok());
  const control::Beat none;
  ASSERT_TRUE(table_.alive(2, {"train", one.job.token(), "", 1, ids[1]}, &none).ok());
  EXPECT_THAT(table_.jobs(3).at(0).away, ElementsAre(1));
  ASSERT_TRUE(table_.alive(4, {"train", zero.job.token(), "", 0, ids[0]}, &none).ok());
  EXPECT_THAT(table_.jobs(5).at(0).away, IsEmpty());
}

TEST_F(JobStatusTest, ResultsGoByMulticastIfAllMembersReceiveIt) {
  const auto run = [&](const DataplaneLimits& limits, bool first, bool second) {
    FakeDataplane dataplane(limits);
    JobTable table({}, &dataplane, [this] { return rng_.next(); });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      MemberRequest member = request(rank);
      member.multicast = rank == 0 ? first : second;
      EXPECT_TRUE(table.join(0, member).ok());
    }
    return std::pair(table.jobs(0).at(0).delivery, dataplane.installed().at(0).multicast_group);
  };
  const DataplaneLimits plain{2, 8, 1024, standard_capabilities(1440)};
  DataplaneLimits groups = plain;
  groups.multicast_groups = MulticastRange::parse("239.1.2.0/28").value();
  const Address group = *Address::parse("239.1.2.0:7000");  // of job 0, at the port of the first stripe
  EXPECT_EQ(run(groups, true, true), std::pair(std::string("multicast to 239.1.2.0:7000"), group));
  EXPECT_EQ(run(plain, true, true), std::pair(std::string("unicast"), Address()));
  EXPECT_EQ(run(groups, true, false),
            std::pair(std::string("unicast: rank 1 (10.0.0.1) does not receive multicast"), Address()));
}

TEST_F(JobStatusTest, ResultsForAnAggregatorBelowAreNotMulticast) {
  DataplaneLimits limits{1, 8, 1024, standard_capabilities(1440)};
  limits.multicast_groups = MulticastRange::parse("239.1.2.0/28").value();
  FakeDataplane dataplane(limits);
  JobTable table({}, &dataplane, [this] { return rng_.next(); });
  for (uint32_t rank = 0; rank < 2; ++rank) {
    MemberRequest member = request(rank);
    member.multicast = true;
    if (rank == 1) {
      member.rack = "r";
      member.rack_payload_bytes = 1440;
      member.rack_slots = 1024;
      member.rack_stripes = 1;
    }
    EXPECT_TRUE(table.join(0, member).ok());
  }
  EXPECT_FALSE(dataplane.installed().at(0).multicast_group.valid());
  EXPECT_EQ(table.jobs(0).at(0).delivery, "unicast: members are aggregators");
}

TEST_F(JobStatusTest, WhatProtectsTheSums) {
  join(0);
  EXPECT_EQ(table_.jobs(0).at(0).verify, "packet");
  const std::pair<uint32_t, const char*> modes[] = {{1, "both"}, {2, "sum"}, {9, "9"}};
  for (const auto& [number, name] : modes) {
    JobTable table({}, &dataplane_, [this] { return rng_.next(); });
    MemberRequest member = request(0);
    member.job.set_verify(number);
    ASSERT_TRUE(table.join(0, member).ok());
    EXPECT_EQ(table.jobs(0).at(0).verify, name);
  }
}

TEST_F(JobStatusTest, WhomTheOldestSumLacks) {
  join(0);
  join(1);
  dataplane_.set_progress({.rounds = 40, .open_slots = 3, .missing = 0b10, .oldest = 9});
  table_.jobs(1'000'000);
  const AggregatorJobStatus job = table_.jobs(1'600'000).at(0);
  EXPECT_THAT(job.waiting_for, ElementsAre(1));
  EXPECT_EQ(job.waiting_ms, 600u);
  EXPECT_THAT(job.waited_ms, ElementsAre(0u, 600u));
  EXPECT_EQ(job.sums, 40u);
  EXPECT_EQ(job.open_slots, 3u);
  EXPECT_EQ(job.slots, 256u + kScaleSlots);
  EXPECT_EQ(job.payload_bytes, 1440u);
}

TEST_F(JobStatusTest, AJobsLifeInTheLog) {
  const MemberId first = join(0);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kJobBegan, Kind::kMemberJoined));
  const MemberId second = join(1);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined, Kind::kJobRunning));
  ASSERT_TRUE(table_.leave({"train", "secret", "", 0, first}).ok());
  const std::vector<AggregatorEvent> left = table_.take_notes();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].kind, Kind::kMemberLeft);
  EXPECT_EQ(left[0].job, "train");
  EXPECT_EQ(left[0].rank, 0);
  EXPECT_EQ(left[0].host, "10.0.0.0");
  EXPECT_EQ(left[0].joined, 1);
  EXPECT_EQ(left[0].world_size, 2);
  table_.stream_ended(first);
  ASSERT_TRUE(table_.leave({"train", "secret", "", 1, second}).ok());
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberLeft, Kind::kJobEnded));
}

TEST_F(JobStatusTest, ADeathInTheLog) {
  const MemberId first = join(0);
  const MemberId second = join(1);
  table_.take_notes();
  table_.stream_ended(second);
  const std::vector<AggregatorEvent> events = table_.take_notes();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kMemberLost);
  EXPECT_EQ(events[0].rank, 1);
  EXPECT_EQ(events[1].kind, Kind::kJobFailed);
  EXPECT_THAT(events[1].reason, HasSubstr("disconnected without leaving"));
  table_.stream_ended(first);  // as it was told to: not an event
  EXPECT_THAT(kinds(), ElementsAre(Kind::kJobEnded));
}

TEST_F(JobStatusTest, FailedJobsAreCountedByCode) {
  const auto failed = [this](const std::string& code) {
    for (const AggregatorCounter& counter : table_.failures())
      if (counter.name == "jobs_failed_" + code) return static_cast<int>(counter.value);
    return -1;
  };
  EXPECT_EQ(failed("wrong_sum"), 0);
  EXPECT_EQ(failed("ok"), -1);
  EXPECT_EQ(failed("unknown"), -1);
  const MemberId first = join(0), second = join(1);
  const Status wrong(ErrorCode::kWrongSum, "a sum by the aggregator");
  // Each rank that sees it reports it.
  EXPECT_TRUE(table_.report({"train", "secret", "", 0, first}, wrong).ok());
  EXPECT_TRUE(table_.report({"train", "secret", "", 1, second}, wrong).ok());
  EXPECT_EQ(failed("wrong_sum"), 1);
  EXPECT_EQ(failed("peer_lost"), 0);
  table_.stream_ended(first);
  table_.stream_ended(second);
  const MemberId third = join(0);
  join(1);
  table_.stream_ended(third);
  EXPECT_EQ(failed("wrong_sum"), 1);
  EXPECT_EQ(failed("peer_lost"), 1);
}

TEST_F(JobStatusTest, ARefusalInTheLog) {
  join(0);
  table_.take_notes();
  MemberRequest refused = request(1, "guess");
  refused.job.set_mtu(1);
  EXPECT_FALSE(table_.join(0, refused).ok());
  const std::vector<AggregatorEvent> events = table_.take_notes();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kJoinRefused);
  EXPECT_EQ(events[0].rank, 1);
  EXPECT_EQ(events[0].host, "10.0.0.1");
  EXPECT_THAT(events[0].reason, HasSubstr("invalid_argument"));
  EXPECT_THAT(events[0].reason, ::testing::Not(HasSubstr("guess")));
}

TEST_F(JobStatusTest, HostileTextInTheLogIsEscapedAndCut) {
  MemberRequest hostile = request(1);
  hostile.job.set_name("x\nlevel=error\x1b[2J" + std::string(60'000, '\n'));
  EXPECT_FALSE(table_.join(0, hostile).ok());
  hostile = request(1);
  hostile.shard_endpoint = "\x1b[2J" + std::string(60'000, '\n');
  EXPECT_FALSE(table_.join(0, hostile).ok());
  const MemberId member = join(0);
  join(1);
  const MemberRequest own = request(0);
  EXPECT_FALSE(table_.leave({"x\n\x1b", own.job.token(), "", 0, member}).ok());
  const MemberClaim claim{own.job.name(), own.job.token(), "", 0, member};
  EXPECT_TRUE(table_.report(claim, {ErrorCode::kMismatch, "a\nb\x1b[2J", 1'000'000}).ok());
  for (const AggregatorEvent& event : table_.take_notes()) {
    for (const std::string& text : {event.job, event.host, event.reason}) {
      EXPECT_TRUE(is_printable(text)) << printable(text);
      EXPECT_LT(text.size(), 1024u);
    }
    EXPECT_LE(event.job.size(), kMaxJobNameBytes);
  }
  EXPECT_TRUE(is_printable(table_.jobs(0)[0].state));
  for (const JobEvent& event : table_.take_events()) {
    EXPECT_TRUE(is_printable(event.failure.message()));
    EXPECT_EQ(event.failure.rank(), kNoRank) << "there is no rank 1000000";
  }
}

TEST_F(JobStatusTest, DrainingIsSaidOnce) {
  table_.drain();
  table_.drain();
  EXPECT_THAT(kinds(), ElementsAre(Kind::kDraining));
}

}  // namespace
}  // namespace netsum::job_status_test
