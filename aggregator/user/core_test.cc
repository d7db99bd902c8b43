#include "aggregator/user/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "wire/codec.h"

namespace netsum::core_test {
namespace {

netsum_key key_of(uint16_t job) {
  return {0xC0FFEE, job};
}
constexpr uint32_t kPayload = 64;

Address host(uint8_t last) {
  Address address;
  address.ip = {10, 0, 0, last};
  address.port = 4000;
  address.family = 4;
  return address;
}

DataplaneJob job_of(uint16_t job, uint16_t members, uint32_t slots = 4) {
  return {.job = job,
          .epoch = 7,
          .key = key_of(job),
          .members = members,
          .data_slots = slots - 1,
          .scale_slots = 1,
          .payload_bytes = kPayload};
}

struct Reply {
  netsum_fields fields{};
  Address to;
  std::vector<uint8_t> payload;
};

class AggregatorCoreTest : public testing::Test {
 protected:
  explicit AggregatorCoreTest(uint64_t job_packets_per_s = 0)
      : core_(
            {.max_jobs = 4, .slots = 16, .payload_bytes = kPayload, .job_packets_per_s = job_packets_per_s}) {
  }
  AggregatorCore core_;
  int64_t now_us_ = 0;

  void send(netsum_fields fields, const Address& from, int32_t lane = 1, std::optional<netsum_key> key = {},
            bool in_memory = false) {
    std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + fields.payload_bytes);
    for (uint32_t i = 0; i < fields.payload_bytes; i += 4) {
      std::memcpy(&frame[NETSUM_HEADER_BYTES + i], &lane, sizeof lane);
    }
    const uint32_t size =
        wire::write_header(fields, wire::stripe_key(key.value_or(key_of(fields.job)), 0), frame.data());
    core_.on_packet(now_us_, {.data = frame.data(), .size = size, .from = from, .in_memory = in_memory});
  }
  static netsum_fields fields(uint8_t type, uint16_t job, uint16_t member) {
    netsum_fields f{};
    f.type = type;
    f.job = job;
    f.epoch = 7;
    f.member = member;
    f.round = 1;
    f.signature = 99;
    f.payload_bytes = type == NETSUM_TYPE_PROBE ? NETSUM_PROBE_BYTES : kPayload;
    if (type == NETSUM_TYPE_CONTRIBUTION) f.format = NETSUM_FORMAT_SUM_I32;
    return f;
  }
  void hello(uint16_t job, uint16_t member, const Address& from) {
    send(fields(NETSUM_TYPE_HELLO, job, member), from);
  }
  void contribute(uint16_t job, uint16_t member, const Address& from, uint32_t round = 1, int32_t lane = 1,
                  uint16_t slot = 0) {
    netsum_fields f = fields(NETSUM_TYPE_CONTRIBUTION, job, member);
    f.round = round;
    f.slot = slot;
    send(f, from, lane);
  }
  // The outbox, parsed and checked, and clears it.
  std::vector<Reply> replies() {
    std::vector<Reply> result;
    for (const OutPacket& packet : core_.outbox()) {
      Reply reply;
      EXPECT_EQ(netsum_parse(packet.data, packet.size, &reply.fields), NETSUM_DROP_NONE);
      const uint8_t* payload = packet.data + NETSUM_HEADER_BYTES;
      EXPECT_TRUE(
          wire::check_is_right(packet.data, reply.fields, wire::stripe_key(key_of(reply.fields.job), 0)));
      reply.to = packet.to;
      reply.payload.assign(payload, payload + reply.fields.payload_bytes);
      result.push_back(reply);
    }
    core_.clear();
    return result;
  }
  uint64_t drops(int reason) const { return core_.counters().drops[static_cast<size_t>(reason)].get(); }
  static int32_t lane(const Reply& reply, size_t i) {
    int32_t value;
    std::memcpy(&value, &reply.payload[i * 4], sizeof value);
    return value;
  }
};

// Three jobs of two members, of which the last one takes no turns.
class TurnsTest : public AggregatorCoreTest {
 protected:
  void SetUp() override {
    now_us_ = 1000;
    for (uint16_t job = 0; job < 3; ++job) {
      DataplaneJob spec = job_of(job, 2, 4);
      if (job < 2) spec.spec.set_phase_period_us(100'000);
      spec.spec.set_name(name_of(job));
      ASSERT_TRUE(core_.install(spec).ok());
      for (uint16_t member = 0; member < 2; ++member) hello(job, member, host_of(job, member));
    }
    EXPECT_EQ(replies().size(), 6u) << "members that have not contributed are answered";
    for (uint16_t job = 0; job < 3; ++job) sum(job);
    now_us_ += 50'000;
  }
  virtual std::string name_of(uint16_t job) const { return "job" + std::to_string(job); }
  static Address host_of(uint16_t job, uint16_t member) {
    return host(static_cast<uint8_t>(10 * job + member));
  }
  void sum(uint16_t job) {
    for (uint16_t member = 0; member < 2; ++member)
      contribute(job, member, host_of(job, member), rounds_[job]);
    ++rounds_[job];
    EXPECT_EQ(replies().size(), 2u);
  }
  // Whether a new HELLO is answered.
  bool asks(uint16_t job, uint16_t member) {
    netsum_fields f = fields(NETSUM_TYPE_HELLO, job, member);
    f.round = ++hellos_;
    f.payload_bytes = 0;
    send(f, host_of(job, member));
    return !replies().empty();
  }

  std::array<uint32_t, 3> rounds_ = {1, 1, 1};
  uint32_t hellos_ = 1;
};

TEST_F(TurnsTest, AJobWaitsWhileAnotherOneSends) {
  EXPECT_TRUE(asks(0, 0));
  EXPECT_TRUE(asks(0, 1));
  for (int i = 0; i < 10; ++i) {
    now_us_ += 2000;
    sum(0);
    EXPECT_FALSE(asks(1, 0));
    EXPECT_TRUE(asks(0, 1)) << "it has the turn";
    EXPECT_TRUE(asks(2, 0)) << "it takes no turns";
  }
  now_us_ += 4000;
  EXPECT_FALSE(asks(1, 1)) << "it has sent a moment ago";
  now_us_ += 1000;
  EXPECT_TRUE(asks(1, 0));
  EXPECT_TRUE(asks(1, 1));
  EXPECT_FALSE(asks(0, 0));
}

TEST_F(TurnsTest, WhoAsksFirstIsNext) {
  ASSERT_TRUE(asks(0, 0));
  now_us_ += 2000;
  ASSERT_FALSE(asks(1, 0));
  now_us_ += 3000;
  EXPECT_FALSE(asks(0, 0)) << "the other one waits";
  EXPECT_TRUE(asks(1, 0));
  EXPECT_FALSE(asks(0, 0));
  now_us_ += 20'000;
  EXPECT_TRUE(asks(0, 0));
  now_us_ += 2000;
  ASSERT_FALSE(asks(1, 1));
  now_us_ += 20'000;
  EXPECT_TRUE(asks(0, 0)) << "it has asked long ago";
}

TEST_F(TurnsTest, AJobThatIsGoneHasNoTurn) {
  ASSERT_TRUE(asks(0, 0));
  ASSERT_FALSE(asks(1, 0));
  core_.remove(0, 7);
  EXPECT_TRUE(asks(1, 0));
}

class TurnsOfPortionsTest : public TurnsTest {
  std::string name_of(uint16_t job) const override { return "job/" + std::to_string(10 + job); }
};

TEST_F(TurnsOfPortionsTest, JobsOfOneJobsPortionsHaveTheirTurnsTogether) {
  ASSERT_TRUE(asks(0, 0));
  now_us_ += 2000;
  sum(0);
  EXPECT_TRUE(asks(1, 0));
}

TEST_F(TurnsTest, AReplayedHelloAsksForNothing) {
  ASSERT_TRUE(asks(0, 0));
  now_us_ += 50'000;
  netsum_fields f = fields(NETSUM_TYPE_HELLO, 0, 0);
  f.round = hellos_;
  send(f, host_of(0, 0));
  EXPECT_TRUE(replies().empty());
  EXPECT_TRUE(asks(1, 0));
}

TEST_F(AggregatorCoreTest, GrantsSlotsAndTakesThemBack) {
  EXPECT_EQ(core_.free_slots(), 16u);
  ASSERT_TRUE(core_.install(job_of(0, 2, 6)).ok());
  ASSERT_TRUE(core_.install(job_of(1, 2, 6)).ok());
  EXPECT_EQ(core_.free_slots(), 4u);
  const Status full = core_.install(job_of(2, 2, 5));
  EXPECT_EQ(full.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(full.message(), testing::HasSubstr("4 of 16 are free"));
  core_.remove(0, 8);  // another epoch: not this job
  EXPECT_EQ(core_.free_slots(), 4u);
  core_.remove(0, 7);
  EXPECT_EQ(core_.free_slots(), 10u);
  core_.remove(0, 7);
  core_.remove(77, 7);
  EXPECT_EQ(core_.free_slots(), 10u);
  // 6 in front of job 1 and 4 behind it: not 7 in a row.
  EXPECT_EQ(core_.install(job_of(2, 2, 7)).code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(core_.install(job_of(2, 2, 6)).ok());
}

// What is counted of members: src/faults/link_watch.h.
TEST_F(AggregatorCoreTest, CountsWhatMembersLoseAndHowLateTheyAre) {
  constexpr size_t kUp = 0, kDown = 1;
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  for (uint16_t member = 0; member < 2; ++member) hello(0, member, host(static_cast<uint8_t>(member)));
  const auto probe = [&](uint16_t member, uint32_t round) {
    netsum_fields f = fields(NETSUM_TYPE_PROBE, 0, member);
    f.round = round;
    send(f, host(static_cast<uint8_t>(member)));
  };
  now_us_ = 1000;
  contribute(0, 0, host(0));
  probe(0, 1);  // waits for member 1
  EXPECT_EQ(core_.members(0, 7)[0].lost[kUp], 0u);
  probe(1, 1);  // what member 1 has sent is lost
  probe(1, 1);  // and is counted once, as if all ranks of a rack asked for it
  now_us_ = 1500;
  contribute(0, 1, host(1));
  for (int i = 0; i < 3; ++i) contribute(0, 0, host(0));  // has not got the result
  now_us_ = 2000;
  contribute(0, 1, host(1), 2);
  now_us_ = 2700;
  contribute(0, 0, host(0), 2);
  const std::vector<faults::MemberTotals> totals = core_.members(0, 7);
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].kept[kUp], 2u);
  EXPECT_EQ(totals[0].kept[kDown], 2u);
  EXPECT_EQ(totals[0].lost[kUp], 0u);
  EXPECT_EQ(totals[0].lost[kDown], 1u);
  EXPECT_EQ(totals[1].lost[kUp], 1u);
  EXPECT_EQ(totals[1].lost[kDown], 0u);
  // The first round of an operation in a slot does not count.
  EXPECT_EQ(totals[0].contributions, 1u);
  EXPECT_EQ(totals[0].late_us, 700u);
  EXPECT_EQ(totals[1].contributions, 1u);
  EXPECT_EQ(totals[1].late_us, 0u);
  now_us_ = 3000;
  contribute(0, 1, host(1), 3);
  now_us_ = 100;  // the clock steps back
  contribute(0, 0, host(0), 3);
  EXPECT_EQ(core_.members(0, 7)[0].late_us, 700u);
  EXPECT_TRUE(core_.members(0, 8).empty()) << "another epoch";
  EXPECT_TRUE(core_.members(77, 7).empty());
}

TEST_F(AggregatorCoreTest, CountsWhoIsTheLastOfEachSum) {
  DataplaneJob job = job_of(0, 2);
  job.last = std::make_shared<faults::LastContributions>();
  ASSERT_TRUE(core_.install(job).ok());
  for (uint16_t member = 0; member < 2; ++member) hello(0, member, host(static_cast<uint8_t>(member)));
  const auto both = [&](uint16_t last, uint16_t slot) {
    const uint16_t first = 1 - last;
    contribute(0, first, host(static_cast<uint8_t>(first)), 1, 1, slot);
    contribute(0, last, host(static_cast<uint8_t>(last)), 1, 1, slot);
    contribute(0, last, host(static_cast<uint8_t>(last)), 1, 1, slot);  // again
  };
  both(1, 0);
  both(1, 1);
  both(0, 2);
  both(0, 3);  // of scales
  EXPECT_EQ(job.last->sums[0].get(), 1u);
  EXPECT_EQ(job.last->sums[1].get(), 2u);
}

// The parent may grant the index of a job that has ended to another one before we hear of the end.
TEST_F(AggregatorCoreTest, AJobThatEndsLeavesTheParentsPacketsToALaterOne) {
  const Address parent = host(9);
  DataplaneJob former = job_of(0, 1), later = job_of(1, 1);
  former.parent = later.parent =
      DataplaneParent{.stripes = {parent}, .job = 3, .epoch = 7, .key = key_of(3), .member = 0};
  ASSERT_TRUE(core_.install(former).ok());
  ASSERT_TRUE(core_.install(later).ok());
  core_.remove(0, 7);
  send(fields(NETSUM_TYPE_WELCOME, 3, 0), parent);
  hello(1, 0, host(1));
  const std::vector<Reply> answers = replies();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.type, NETSUM_TYPE_WELCOME);
  EXPECT_EQ(answers[0].to, host(1));
}

TEST_F(AggregatorCoreTest, APacketOfTheParentOfAJobThatHasEndedBelongsToNoJob) {
  DataplaneJob job = job_of(0, 1);
  job.parent = DataplaneParent{.stripes = {host(9)}, .job = 3, .epoch = 7, .key = key_of(3), .member = 0};
  ASSERT_TRUE(core_.install(job).ok());
  core_.remove(0, 7);
  send(fields(NETSUM_TYPE_WELCOME, 3, 0), host(9));
  EXPECT_EQ(drops(NETSUM_DROP_BAD_TYPE), 1u);
}

TEST_F(AggregatorCoreTest, JobsOfOneIndexOfTheParentEndInAnyOrder) {
  DataplaneJob former = job_of(0, 1), later = job_of(1, 1);
  former.parent = later.parent =
      DataplaneParent{.stripes = {host(9)}, .job = 3, .epoch = 7, .key = key_of(3), .member = 0};
  ASSERT_TRUE(core_.install(former).ok());
  ASSERT_TRUE(core_.install(later).ok());
  core_.remove(1, 7);
  core_.remove(0, 7);
  EXPECT_EQ(core_.free_slots(), 16u);
}

TEST_F(AggregatorCoreTest, RefusesJobsThatDoNotFit) {
  EXPECT_EQ(core_.install(job_of(4, 2)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(core_.install(job_of(0, 0)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(core_.install(job_of(0, 65)).code(), ErrorCode::kInvalidArgument);
  DataplaneJob large = job_of(0, 2);
  large.payload_bytes = kPayload + 8;
  EXPECT_EQ(core_.install(large).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(core_.free_slots(), 16u);
}

TEST_F(AggregatorCoreTest, InstallingAgainReplacesTheJob) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  contribute(0, 0, host(1));
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  EXPECT_EQ(core_.free_slots(), 12u);
  contribute(0, 0, host(1));  // nobody has said HELLO to the new one
  EXPECT_EQ(drops(NETSUM_DROP_UNKNOWN_PEER), 1u);
}

TEST_F(AggregatorCoreTest, AnswersHelloInFullSizeWithZeros) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 1, host(1));
  const std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].fields.type, NETSUM_TYPE_WELCOME);
  EXPECT_EQ(got[0].to, host(1));
  EXPECT_EQ(got[0].payload, std::vector<uint8_t>(kPayload, 0));
}

TEST_F(AggregatorCoreTest, TheFirstHelloFixesTheAddress) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  hello(0, 0, host(9));
  contribute(0, 0, host(9));
  contribute(0, 0, host(2));  // a member, but not this one
  EXPECT_EQ(drops(NETSUM_DROP_UNKNOWN_PEER), 3u);
  EXPECT_EQ(core_.counters().contributions.get(), 0u);
  hello(0, 0, host(1));
  EXPECT_EQ(core_.counters().hellos.get(), 3u);
}

TEST_F(AggregatorCoreTest, SumsAndSendsTheResultToEveryMember) {
  ASSERT_TRUE(core_.install(job_of(0, 3)).ok());
  for (uint16_t m = 0; m < 3; ++m) hello(0, m, host(static_cast<uint8_t>(m + 1)));
  replies();
  contribute(0, 0, host(1), 1, 100);
  contribute(0, 1, host(2), 1, 20);
  EXPECT_TRUE(replies().empty());
  contribute(0, 2, host(3), 1, 3);
  const std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 3u);
  for (size_t m = 0; m < 3; ++m) {
    EXPECT_EQ(got[m].to, host(static_cast<uint8_t>(m + 1)));
    EXPECT_EQ(got[m].fields.type, NETSUM_TYPE_RESULT);
    EXPECT_EQ(lane(got[m], 0), 123);
    EXPECT_EQ(lane(got[m], 15), 123);
  }
  EXPECT_EQ(core_.counters().bytes_summed.get(), 3 * kPayload);
}

TEST_F(AggregatorCoreTest, TwoJobsDoNotTouchEachOther) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  ASSERT_TRUE(core_.install(job_of(1, 2)).ok());
  for (uint16_t job = 0; job < 2; ++job) {
    hello(job, 0, host(1));
    hello(job, 1, host(2));
  }
  replies();
  // The last slot of job 0 lies beside the first one of job 1.
  contribute(0, 0, host(1), 1, 1, 3);
  contribute(1, 0, host(1), 1, 10, 0);
  contribute(1, 1, host(2), 1, 10, 0);
  contribute(0, 1, host(2), 1, 1, 3);
  contribute(0, 1, host(2), 1, 1, 4);
  EXPECT_EQ(drops(NETSUM_DROP_BAD_SLOT), 1u);
  const std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 4u);
  for (const Reply& reply : got) EXPECT_EQ(lane(reply, 0), reply.fields.job == 0 ? 2 : 20);
  core_.remove(0, 7);
  contribute(1, 0, host(1), 2, 5, 0);
  contribute(1, 1, host(2), 2, 5, 0);
  EXPECT_EQ(replies().size(), 2u);
}

// Values are kept until the last member's are here: each slot keeps its own.
TEST_F(AggregatorCoreTest, ValuesOfTwoSlotsDoNotTouchEachOther) {
  DataplaneJob job = job_of(0, 3, 3);
  job.scale_slots = 2;
  job.sums_values = true;
  ASSERT_TRUE(core_.install(job).ok());
  for (uint16_t m = 0; m < 3; ++m) hello(0, m, host(static_cast<uint8_t>(m + 1)));
  replies();
  for (uint16_t m = 0; m < 3; ++m) {
    for (const uint16_t slot : {2, 3}) {
      netsum_fields f = fields(NETSUM_TYPE_CONTRIBUTION, 0, m);
      f.format = NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32);
      f.slot = slot;
      send(f, host(static_cast<uint8_t>(m + 1)), slot * 100 + m);
    }
  }
  const std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 6u);
  for (const Reply& reply : got) {
    EXPECT_EQ(lane(reply, 0), reply.fields.slot * 300 + 3);
    EXPECT_EQ(lane(reply, 15), reply.fields.slot * 300 + 3);
  }
}

TEST_F(AggregatorCoreTest, ResultsOfOneBurstAreGroupedByMember) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  replies();
  for (uint16_t slot = 0; slot < 3; ++slot) contribute(0, 0, host(1), 1, 1, slot);
  for (uint16_t slot = 0; slot < 3; ++slot) contribute(0, 1, host(2), 1, 1, slot);
  const std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[i].to, host(i < 3 ? 1 : 2));
    EXPECT_EQ(got[i].fields.slot, i % 3);
  }
  EXPECT_EQ(core_.counters().packets_sent.get(), 2u + 6u);
}

TEST_F(AggregatorCoreTest, AGroupGetsOnePacketForAll) {
  DataplaneJob job = job_of(0, 3);
  job.multicast_group = host(200);
  ASSERT_TRUE(core_.install(job).ok());
  for (uint8_t m = 0; m < 3; ++m) {
    hello(0, m, host(m));
    const std::vector<Reply> got = replies();
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0].to, host(m));
    EXPECT_EQ(got[0].fields.member, m);
    EXPECT_EQ(got[1].to, job.multicast_group);
    EXPECT_EQ(got[1].fields.type, NETSUM_TYPE_WELCOME);
    EXPECT_EQ(got[1].fields.member, NETSUM_MEMBER_ALL);
    EXPECT_EQ(got[1].payload, std::vector<uint8_t>(kPayload));
  }
  netsum_fields small = fields(NETSUM_TYPE_HELLO, 0, 0);
  small.payload_bytes = 0;
  send(small, host(0));
  EXPECT_EQ(replies().size(), 1u) << "a small one proves nothing to the group";

  for (uint8_t m = 0; m < 3; ++m) {
    contribute(0, m, host(m), 1, 1, 0);
    contribute(0, m, host(m), 1, 1, 1);
  }
  const std::vector<Reply> results = replies();
  ASSERT_EQ(results.size(), 2u);
  for (const Reply& result : results) {
    EXPECT_EQ(result.fields.type, NETSUM_TYPE_RESULT);
    EXPECT_EQ(result.to, job.multicast_group);
  }
  contribute(0, 1, host(1));
  const std::vector<Reply> again = replies();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].to, host(1)) << "a repetition is for the one that asks";

  netsum_fields other = fields(NETSUM_TYPE_CONTRIBUTION, 0, 0);
  other.round = 2;
  send(other, host(0));
  other.member = 1;
  other.signature = 98;
  send(other, host(1));
  const std::vector<Reply> errors = replies();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].fields.type, NETSUM_TYPE_ERROR);
  EXPECT_EQ(errors[0].to, job.multicast_group);
  EXPECT_EQ(core_.counters().multicast_packets_sent.get(), 3u + 2 + 1);
}

TEST_F(AggregatorCoreTest, EveryRefusalIsCountedUnderItsName) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  replies();
  const netsum_fields good = fields(NETSUM_TYPE_CONTRIBUTION, 0, 0);
  const auto refused = [&](int reason, netsum_fields f, std::optional<netsum_key> key = {}) {
    const uint64_t before = drops(reason);
    send(f, host(1), 1, key);
    EXPECT_EQ(drops(reason), before + 1) << wire::drop_name(reason);
    EXPECT_TRUE(replies().empty());
  };
  netsum_fields f = good;
  f.job = 3;
  refused(NETSUM_DROP_UNKNOWN_JOB, f);
  f.job = 999;
  refused(NETSUM_DROP_UNKNOWN_JOB, f);
  f = good;
  f.epoch = 6;
  refused(NETSUM_DROP_STALE_EPOCH, f);
  f = good;
  f.member = 2;
  refused(NETSUM_DROP_BAD_MEMBER, f);
  f = good;
  f.slot = 4;
  refused(NETSUM_DROP_BAD_SLOT, f);
  f = good;
  f.payload_bytes = kPayload + 8;
  refused(NETSUM_DROP_BAD_LENGTH, f);
  f = good;
  f.type = NETSUM_TYPE_RESULT;
  refused(NETSUM_DROP_BAD_TYPE, f);
  refused(NETSUM_DROP_BAD_CHECK, good, key_of(1));
  f = good;
  f.round = 2;
  refused(NETSUM_DROP_FUTURE_ROUND, f);
  const uint8_t garbage[NETSUM_HEADER_BYTES] = {1, 2, 3};
  core_.on_packet(now_us_, {garbage, 5, host(1)});
  EXPECT_EQ(drops(NETSUM_DROP_TOO_SHORT), 1u);
  core_.on_packet(now_us_, {garbage, sizeof garbage, host(1)});
  EXPECT_EQ(drops(NETSUM_DROP_BAD_MAGIC), 1u);
  send(good, host(1));
  refused(NETSUM_DROP_DUPLICATE, good);
  EXPECT_EQ(core_.counters().contributions.get(), 1u);
}

TEST_F(AggregatorCoreTest, PacketsThatStayInMemoryNeedNoTag) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  const netsum_fields first = fields(NETSUM_TYPE_CONTRIBUTION, 0, 0);
  send(first, host(1), 1, key_of(1), /*in_memory=*/false);
  EXPECT_EQ(core_.counters().contributions.get(), 0u);
  send(first, host(1), 1, key_of(1), /*in_memory=*/true);
  EXPECT_EQ(core_.counters().contributions.get(), 1u);
  send(fields(NETSUM_TYPE_CONTRIBUTION, 0, 1), host(2), 1, key_of(1), /*in_memory=*/true);
  EXPECT_EQ(drops(NETSUM_DROP_UNKNOWN_PEER), 1u) << "all else is checked";
}

TEST_F(AggregatorCoreTest, APacketOfOneStripeIsAForgeryToTheOthers) {
  DataplaneJob job = job_of(0, 2);
  std::vector<uint8_t> hello_of_stripe_0(NETSUM_HEADER_BYTES + kPayload);
  wire::write_header(fields(NETSUM_TYPE_HELLO, 0, 0), wire::stripe_key(job.key, 0), hello_of_stripe_0.data());
  const auto taken = [&](size_t stripe) {
    EXPECT_TRUE(core_.install(job, stripe).ok());
    const uint64_t before = core_.counters().hellos.get();
    core_.on_packet(now_us_, {hello_of_stripe_0.data(), NETSUM_HEADER_BYTES + kPayload, host(1)});
    core_.clear();
    return core_.counters().hellos.get() > before;
  };
  EXPECT_TRUE(taken(0));
  EXPECT_FALSE(taken(1));
  job.first_stripe = 3;  // an embedded shard's
  EXPECT_FALSE(taken(0));
  EXPECT_EQ(drops(NETSUM_DROP_BAD_CHECK), 2u);
}

TEST(AggregatorCoreRate, IsAJobsOwnAndForgedPacketsDoNotSpendIt) {
  AggregatorCore core({.max_jobs = 2, .slots = 8, .payload_bytes = kPayload, .job_packets_per_s = 1000});
  const auto drops = [&](int reason) { return core.counters().drops[static_cast<size_t>(reason)].get(); };
  const auto send = [&](int64_t now_us, uint8_t type, uint16_t job, uint32_t round, const netsum_key& key) {
    netsum_fields f{};
    f.type = type;
    f.format = type == NETSUM_TYPE_CONTRIBUTION ? NETSUM_FORMAT_SUM_I32 : NETSUM_FORMAT_NONE;
    f.job = job;
    f.epoch = 7;
    f.round = round;
    f.payload_bytes = 8;
    uint8_t frame[NETSUM_HEADER_BYTES + 8] = {};
    wire::write_header(f, wire::stripe_key(key, 0), frame);
    core.on_packet(now_us, {frame, sizeof frame, host(1)});
    core.clear();
  };
  const auto install = [&](uint16_t job) {
    ASSERT_TRUE(core.install(job_of(job, 1)).ok());
    send(0, NETSUM_TYPE_HELLO, job, 0, key_of(job));
  };
  // Tries so many rounds of slot 0, from `round` on, and returns how many were summed.
  const auto rounds = [&](int64_t now_us, uint16_t job, uint32_t round, int tries, const netsum_key& key) {
    const uint64_t before = core.counters().contributions.get();
    const auto summed = [&] { return static_cast<uint32_t>(core.counters().contributions.get() - before); };
    for (int i = 0; i < tries; ++i) send(now_us, NETSUM_TYPE_CONTRIBUTION, job, round + summed(), key);
    return summed();
  };
  install(0);
  install(1);
  constexpr int64_t kNowUs = 5'000'000;
  EXPECT_EQ(rounds(kNowUs, 0, 1, 1000, key_of(1)), 0u);
  EXPECT_EQ(drops(NETSUM_DROP_BAD_CHECK), 1000u);
  EXPECT_EQ(rounds(kNowUs, 0, 1, 200, key_of(0)), 101u);  // of 0.1 s, and the one that is due
  EXPECT_EQ(drops(NETSUM_DROP_OVER_RATE), 99u);
  // The other job has all of its own.
  EXPECT_EQ(rounds(kNowUs, 1, 1, 101, key_of(1)), 101u);
  EXPECT_EQ(rounds(kNowUs + 50'000, 0, 102, 200, key_of(0)), 50u);
  // A new job under the index owes nothing.
  install(0);
  EXPECT_EQ(rounds(kNowUs + 50'000, 0, 1, 101, key_of(0)), 101u);
}

// An aggregator with several addresses is known to each member by one of them.
TEST_F(AggregatorCoreTest, AnswersFromTheAddressThatTheMemberAsked) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  const auto send_to = [&](uint16_t local, const netsum_fields& f) {
    std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + f.payload_bytes);
    const uint32_t size = wire::write_header(f, wire::stripe_key(key_of(f.job), 0), frame.data());
    core_.on_packet(now_us_, {frame.data(), size, host(static_cast<uint8_t>(f.member + 1)), local});
  };
  const auto expect_from = [&](std::vector<uint16_t> locals) {
    std::vector<uint16_t> got;
    for (const OutPacket& packet : core_.outbox()) got.push_back(packet.local);
    EXPECT_EQ(got, locals);
    core_.clear();
  };
  send_to(5, fields(NETSUM_TYPE_HELLO, 0, 0));
  send_to(6, fields(NETSUM_TYPE_HELLO, 0, 1));
  expect_from({5, 6});
  send_to(5, fields(NETSUM_TYPE_PROBE, 0, 0));
  expect_from({5});
  send_to(5, fields(NETSUM_TYPE_CONTRIBUTION, 0, 0));
  send_to(6, fields(NETSUM_TYPE_CONTRIBUTION, 0, 1));
  expect_from({5, 6});
  // Replayed to another address of ours, a packet does not change where the member's answers come from.
  send_to(7, fields(NETSUM_TYPE_HELLO, 0, 1));
  send_to(7, fields(NETSUM_TYPE_CONTRIBUTION, 0, 1));
  expect_from({6, 6});
}

TEST_F(AggregatorCoreTest, HearsAMemberByWhatASlotTakes) {
  EXPECT_TRUE(core_.heard(0, 7).empty());
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  now_us_ = 100;
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  EXPECT_EQ(core_.heard(0, 7), (std::vector<int64_t>{0, 0}));
  now_us_ = 200;
  contribute(0, 0, host(1));
  now_us_ = 300;
  contribute(0, 0, host(1));  // replayed, by anybody
  send(fields(NETSUM_TYPE_PROBE, 0, 0), host(1));
  hello(0, 0, host(1));
  contribute(0, 1, host(9));  // from elsewhere
  EXPECT_EQ(core_.heard(0, 7), (std::vector<int64_t>{200, 0}));
  contribute(0, 1, host(2));
  EXPECT_EQ(core_.heard(0, 7), (std::vector<int64_t>{200, 300}));
  EXPECT_TRUE(core_.heard(0, 8).empty()) << "another epoch";
  core_.clear();
}

// Somebody who has recorded packets of a job repeats one of them five times as often as the job may send,
// while the job sums, asks and joins as it would without them.
class AggregatorCoreReplay : public AggregatorCoreTest {
 protected:
  static constexpr uint16_t kHeldSlot = 1;  // its round stays open: member 0 has contributed
  AggregatorCoreReplay() : AggregatorCoreTest(1000) {}

  void expect_harmless(const netsum_fields& replayed, const Address& from) {
    ASSERT_TRUE(core_.install(job_of(0, 3)).ok());
    now_us_ = 5'000'000;
    hello(0, 0, host(1));
    hello(0, 1, host(2));
    contribute(0, 0, host(1), 1, 1, kHeldSlot);
    replies();
    uint32_t results = 0, statuses = 0, welcomes = 0;
    const auto count = [&](uint8_t type, const Address& to) {
      uint32_t found = 0;
      for (const Reply& reply : replies()) found += reply.fields.type == type && reply.to == to;
      return found;
    };
    for (uint32_t step = 1; step <= 100; ++step) {
      for (int i = 0; i < 100; ++i) {  // 5000 per second
        now_us_ += 200;
        send(replayed, from);
        replies();
      }
      netsum_fields hello_of_third = fields(NETSUM_TYPE_HELLO, 0, 2);
      hello_of_third.round = step;
      send(hello_of_third, host(3));
      welcomes += count(NETSUM_TYPE_WELCOME, host(3));
      for (uint16_t member = 0; member < 3; ++member) {
        if (member == 2) {
          netsum_fields probe = fields(NETSUM_TYPE_PROBE, 0, 1);
          probe.round = step;
          send(probe, host(2));
          statuses += count(NETSUM_TYPE_STATUS, host(2));
        }
        contribute(0, member, host(static_cast<uint8_t>(member + 1)), step);
      }
      results += count(NETSUM_TYPE_RESULT, host(2));
    }
    EXPECT_EQ(results, 100u);
    EXPECT_EQ(statuses, 100u);
    EXPECT_EQ(welcomes, 100u);
  }
};

TEST_F(AggregatorCoreReplay, OfAQuestionThatIsStillOpen) {
  netsum_fields probe = fields(NETSUM_TYPE_PROBE, 0, 0);
  probe.slot = kHeldSlot;
  expect_harmless(probe, host(1));
  EXPECT_GT(drops(NETSUM_DROP_OVER_RATE), 0u);
}

TEST_F(AggregatorCoreReplay, OfAContributionThatIsIn) {
  netsum_fields duplicate = fields(NETSUM_TYPE_CONTRIBUTION, 0, 0);
  duplicate.slot = kHeldSlot;
  expect_harmless(duplicate, host(1));
  EXPECT_GT(drops(NETSUM_DROP_OVER_RATE), 0u);
}

TEST_F(AggregatorCoreReplay, OfAContributionOfAFormerRound) {
  netsum_fields stale = fields(NETSUM_TYPE_CONTRIBUTION, 0, 0);
  stale.round = 0;
  expect_harmless(stale, host(1));
  EXPECT_GT(drops(NETSUM_DROP_STALE_ROUND), 0u);
}

TEST_F(AggregatorCoreReplay, OfAHello) {
  expect_harmless(fields(NETSUM_TYPE_HELLO, 0, 0), host(1));
  EXPECT_GT(drops(NETSUM_DROP_OVER_RATE), 0u);
}

TEST_F(AggregatorCoreReplay, FromElsewhere) {
  netsum_fields probe = fields(NETSUM_TYPE_PROBE, 0, 0);
  probe.slot = kHeldSlot;
  expect_harmless(probe, host(9));
  EXPECT_EQ(drops(NETSUM_DROP_UNKNOWN_PEER), 10'000u);
}

TEST_F(AggregatorCoreTest, RepeatsTheResultAndTellsWhoIsMissing) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  contribute(0, 1, host(2));
  replies();
  send(fields(NETSUM_TYPE_PROBE, 0, 0), host(1));
  std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].fields.type, NETSUM_TYPE_STATUS);
  EXPECT_EQ(got[0].fields.flags, NETSUM_FLAG_AGAIN);
  EXPECT_EQ(got[0].payload, (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 0, 2}));
  contribute(0, 0, host(1));
  replies();
  send(fields(NETSUM_TYPE_PROBE, 0, 1), host(2));
  got = replies();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].fields.type, NETSUM_TYPE_STATUS);
  EXPECT_EQ(got[0].fields.flags, NETSUM_FLAG_AGAIN);
  contribute(0, 1, host(2));
  got = replies();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].fields.type, NETSUM_TYPE_RESULT);
  EXPECT_EQ(got[0].to, host(2));
  EXPECT_EQ(core_.counters().results_repeated.get(), 1u);
}

TEST_F(AggregatorCoreTest, AMismatchIsToldToAllAndAgainToWhoeverAsks) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  contribute(0, 0, host(1));
  replies();
  netsum_fields f = fields(NETSUM_TYPE_CONTRIBUTION, 0, 1);
  f.signature = 98;
  send(f, host(2));
  const std::vector<Reply> got = replies();
  ASSERT_EQ(got.size(), 2u);
  for (const Reply& reply : got) {
    EXPECT_EQ(reply.fields.type, NETSUM_TYPE_ERROR);
    EXPECT_EQ(reply.payload, (std::vector<uint8_t>{0, NETSUM_ERROR_MISMATCH, 0, 1, 0, 0, 0, 0}));
  }
  send(fields(NETSUM_TYPE_PROBE, 0, 0), host(1));
  const std::vector<Reply> again = replies();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].fields.type, NETSUM_TYPE_ERROR);
  EXPECT_EQ(core_.counters().mismatches.get(), 1u);
}

TEST_F(AggregatorCoreTest, AnOverflowIsMarked) {
  ASSERT_TRUE(core_.install(job_of(0, 2)).ok());
  hello(0, 0, host(1));
  hello(0, 1, host(2));
  replies();
  contribute(0, 0, host(1), 1, INT32_MAX);
  contribute(0, 1, host(2), 1, 1);
  for (const Reply& reply : replies()) EXPECT_EQ(reply.fields.flags, NETSUM_FLAG_OVERFLOW);
  contribute(0, 0, host(1), 2, 1);
  contribute(0, 1, host(2), 2, 1);
  for (const Reply& reply : replies()) EXPECT_EQ(reply.fields.flags, 0);
  EXPECT_EQ(core_.counters().overflows.get(), 1u);
}

}  // namespace
}  // namespace netsum::core_test
