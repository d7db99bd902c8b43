// A million forged packets, and replays, into the XDP program in the midst of the rounds of a running job.
// Every forgery is refused without an answer, and every sum is right.
#include <gtest/gtest.h>
#include <linux/bpf.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"
#include "tests/attack/forgery.h"
#include "tests/conformance/xdp_fixture.h"

namespace netsum::attack::xdp_attack_test {
namespace {

using conformance::Bytes;
using conformance::frame_around;
using conformance::Reply;
using conformance::VectorJob;
using conformance::XdpRun;

constexpr uint16_t kMembers = 2;
constexpr uint32_t kPayload = 1440;
constexpr uint16_t kSlots = 4;
constexpr uint32_t kRounds = 100;
const uint64_t kForgeries = soak() ? 1'000'000 : 300'000;
const uint64_t kAtATime = kForgeries / (kRounds * kSlots * kMembers);

class XdpAttack : public conformance::XdpFixture {
 protected:
  static VectorJob job_of(uint16_t epoch) {
    return {.job = 1,
            .epoch = epoch,
            .key = {0xFEED, epoch},
            .members = kMembers,
            .data_slots = kSlots,
            .scale_slots = 0,
            .payload_bytes = kPayload};
  }
  static int32_t lane_of(uint16_t member, uint16_t slot, uint32_t round, uint32_t i) {
    return static_cast<int32_t>((i + round * 1000 + slot) * (member + 1u));
  }
  static Bytes packet(const VectorJob& job, uint8_t type, uint16_t member, uint16_t slot, uint32_t round) {
    netsum_fields f{};
    f.type = type;
    f.job = job.job;
    f.epoch = job.epoch;
    f.member = member;
    f.slot = slot;
    f.round = round;
    f.payload_bytes = kPayload;
    Bytes datagram(NETSUM_HEADER_BYTES + kPayload);
    if (type == NETSUM_TYPE_CONTRIBUTION) {
      f.format = NETSUM_FORMAT_SUM_I32;
      for (uint32_t i = 0; i < kPayload / 4; ++i) {
        const int32_t lane = lane_of(member, slot, round, i);
        std::memcpy(&datagram[NETSUM_HEADER_BYTES + 4 * i], &lane, sizeof lane);
      }
    }
    wire::write_header(f, wire::stripe_key(job.key, 0), datagram.data());
    return datagram;
  }

  // Runs the job's rounds, `between` before each contribution; every sum is checked. Returns what was sent.
  template <class Between>
  std::vector<Bytes> run_job(XdpRun* dataplane, const VectorJob& job, uint32_t rounds,
                             const Between& between) {
    std::vector<Bytes> sent;
    for (uint16_t m = 0; m < kMembers; ++m) {
      sent.push_back(packet(job, NETSUM_TYPE_HELLO, m, 0, 0));
      EXPECT_EQ(dataplane->feed(m, sent.back()).size(), 1u);
    }
    for (uint32_t round = 1; round <= rounds; ++round) {
      for (uint16_t slot = 0; slot < kSlots; ++slot) {
        std::vector<Reply> replies;
        for (uint16_t m = 0; m < kMembers; ++m) {
          sent.push_back(packet(job, NETSUM_TYPE_CONTRIBUTION, m, slot, round));
          between(sent);
          replies = dataplane->feed(m, sent.back());
          EXPECT_EQ(replies.size(), m + 1 == kMembers ? kMembers : 0u);
        }
        for (const Reply& reply : replies) {
          for (uint32_t i = 0; i < kPayload / 4; ++i) {
            int32_t lane = 0;
            std::memcpy(&lane, &reply.datagram.at(NETSUM_HEADER_BYTES + 4 * i), sizeof lane);
            if (lane == 3 * lane_of(0, slot, round, i)) continue;
            ADD_FAILURE() << "round " << round << ", slot " << slot << ", lane " << i << ": " << lane;
            return sent;
          }
        }
      }
    }
    return sent;
  }
  uint64_t refused() const {
    uint64_t sum = 0;
    for (uint32_t reason = 1; reason < NETSUM_DROP_COUNT; ++reason) sum += program_->counter(reason);
    return sum;
  }
};

TEST_F(XdpAttack, NothingIsAcceptedWithoutTheKey) {
  std::vector<Bytes> former;
  {
    XdpRun dataplane(program_);
    dataplane.install(job_of(1));
    former = run_job(&dataplane, job_of(1), 10, [](const std::vector<Bytes>&) {});
    ASSERT_FALSE(HasFailure());
  }
  XdpRun dataplane(program_);
  dataplane.install(job_of(2));
  Rng rng(1);
  uint64_t forged = 0, replayed = 0;
  const auto counter = [&](uint32_t index) { return program_->counter(index); };
  const uint64_t contributions = counter(NETSUM_XDP_CONTRIBUTIONS),
                 rounds = counter(NETSUM_XDP_ROUNDS_COMPLETED);
  const uint64_t sent = counter(NETSUM_XDP_PACKETS_SENT), refused_before = refused();
  std::vector<Bytes> known;
  known = run_job(&dataplane, job_of(2), kRounds, [&](const std::vector<Bytes>& observed) {
    // The last one is that which is sent next: the attacker knows even that.
    for (uint64_t i = 0; i < kAtATime; ++i, ++forged) {
      const Bytes& model = rng.chance(0.5) ? observed.back() : observed[rng.below(observed.size())];
      const auto from = static_cast<conformance::Peer>(rng.below(kMembers + 1));
      const uint32_t verdict = XdpRun::run(program_, frame_around(forgery(&rng, model), from)).verdict;
      ASSERT_EQ(verdict, static_cast<uint32_t>(XDP_DROP)) << "forgery " << forged;
    }
    // The former epoch's, and a HELLO from elsewhere.
    const auto member = static_cast<conformance::Peer>(rng.below(kMembers));
    ASSERT_TRUE(dataplane.feed(member, former[rng.below(former.size())]).empty());
    ASSERT_TRUE(dataplane.feed(kMembers, observed[rng.below(kMembers)]).empty());
    replayed += 2;
  });
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(forged, kForgeries);
  // Each round took in one contribution of each member, nothing was answered, and all else refused by name.
  EXPECT_EQ(counter(NETSUM_XDP_CONTRIBUTIONS) - contributions, uint64_t{kRounds} * kSlots * kMembers);
  EXPECT_EQ(counter(NETSUM_XDP_ROUNDS_COMPLETED) - rounds, uint64_t{kRounds} * kSlots);
  EXPECT_EQ(counter(NETSUM_XDP_PACKETS_SENT), sent);
  EXPECT_EQ(refused() - refused_before, forged + replayed);

  // Every packet of the job again, from its own member: what is long over is refused, what was last gets at
  // most the sum that it once led to.
  const uint64_t repeated = counter(NETSUM_XDP_RESULTS_REPEATED);
  for (const Bytes& packet : known) {
    netsum_fields f{};
    ASSERT_EQ(netsum_parse(packet.data(), static_cast<uint32_t>(packet.size()), &f), NETSUM_DROP_NONE);
    if (f.type == NETSUM_TYPE_CONTRIBUTION) dataplane.feed(f.member, packet);
  }
  EXPECT_EQ(counter(NETSUM_XDP_CONTRIBUTIONS) - contributions, uint64_t{kRounds} * kSlots * kMembers);
  EXPECT_EQ(counter(NETSUM_XDP_RESULTS_REPEATED) - repeated, uint64_t{kSlots} * kMembers);
  EXPECT_EQ(counter(NETSUM_XDP_MISMATCHES), 0u);
}

}  // namespace
}  // namespace netsum::attack::xdp_attack_test
