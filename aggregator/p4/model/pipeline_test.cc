#include "aggregator/p4/model/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "src/base/rng.h"

namespace netsum::p4::pipeline_test {
namespace {

using Bytes = std::vector<uint8_t>;

Endpoint endpoint(uint16_t member) {
  return {.ip = 0x0A000000u + member, .udp_port = 7000, .port = static_cast<uint16_t>(member + 1)};
}
uint16_t member_at(const Endpoint& endpoint) {
  return static_cast<uint16_t>(endpoint.port - 1);
}

void store(uint64_t value, size_t at, size_t bytes, Bytes* out) {
  for (size_t i = 0; i < bytes; ++i) (*out)[at + i] = static_cast<uint8_t>(value >> 8 * (bytes - 1 - i));
}
uint64_t load(const Bytes& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | bytes[at + i];
  return value;
}

constexpr uint16_t kJob = 3;
constexpr uint64_t kCookie = 0x0123456789ABCDEF;

Bytes make_packet(uint16_t epoch, uint8_t type, uint16_t slot, uint16_t member, uint32_t round,
                  const Bytes& payload) {
  Bytes bytes(NETSUM_HEADER_BYTES);
  bytes[0] = NETSUM_MAGIC;
  bytes[1] = static_cast<uint8_t>(NETSUM_VERSION << 4 | type);
  bytes[2] = type == NETSUM_TYPE_CONTRIBUTION ? NETSUM_FORMAT_SUM_I32 : NETSUM_FORMAT_NONE;
  store(kJob, 4, 2, &bytes);
  store(epoch, 6, 2, &bytes);
  store(slot, 8, 2, &bytes);
  store(member, 10, 2, &bytes);
  store(round, 12, 4, &bytes);
  store(round * 100u + slot, 16, 4, &bytes);
  store(0xC0FFEE, 20, 4, &bytes);
  store(kCookie, 24, 8, &bytes);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}
uint8_t type_of(const Bytes& bytes) {
  return bytes[1] & 15;
}

// Little-endian lanes, every one different, of one member in one step; or the sum of the first `members`.
Bytes lanes(uint32_t bytes, uint16_t slot, uint32_t round, uint16_t first, uint16_t members) {
  Bytes payload(bytes);
  for (uint32_t i = 0; i < bytes / 4; ++i) {
    uint32_t sum = 0;
    for (uint16_t m = first; m < first + members; ++m)
      sum += (m + 1u) * 1000003u + i * 7919u + round * 104729u + slot * 15485863u;
    for (uint32_t b = 0; b < 4; ++b) payload[4 * i + b] = static_cast<uint8_t>(sum >> 8 * b);
  }
  return payload;
}

// --- Registers -----------------------------------------------------------------------------------------------------

TEST(Registers, OneAccessInAPass) {
  Register<uint32_t> a(0, 4), b(1, 4);
  const auto count = [](uint32_t& value) { return ++value; };
  Pass first(1), second(2);
  EXPECT_EQ(a.access(&first, 2, count), 1u);
  EXPECT_EQ(b.access(&first, 2, count), 1u);
  EXPECT_EQ(a.access(&second, 2, count), 2u);
  EXPECT_DEATH(a.access(&second, 3, count), "last_pass_");
  EXPECT_EQ(a.accesses(), 2u);
}

TEST(Registers, StagesInOneDirection) {
  Register<uint32_t> a(0, 4), b(1, 4);
  const auto read = [](uint32_t& value) { return value; };
  Pass pass(1);
  b.access(&pass, 0, read);
  EXPECT_DEATH(a.access(&pass, 0, read), "stage");
}

// --- Passes --------------------------------------------------------------------------------------------------------

class PipelineTest : public testing::Test {
 protected:
  // The next epoch of the job, in the slots of the one before.
  void install(uint16_t members, uint32_t slots, uint32_t payload_bytes) {
    ++epoch_;
    members_ = members;
    payload_bytes_ = payload_bytes;
    pipeline_.set_job(kJob, {.epoch = epoch_,
                             .members = members,
                             .slots = slots,
                             .payload_bytes = payload_bytes,
                             .first_slot = 5});
    for (uint16_t m = 0; m < members; ++m) pipeline_.set_member(kJob, m, endpoint(m));
  }
  Bytes packet(uint8_t type, uint16_t slot, uint16_t member, uint32_t round, const Bytes& payload) const {
    return make_packet(epoch_, type, slot, member, round, payload);
  }
  void contribute(uint16_t member, uint32_t round, uint16_t slot = 0) {
    pipeline_.run_arrival({endpoint(member), packet(NETSUM_TYPE_CONTRIBUTION, slot, member, round,
                                                    lanes(payload_bytes_, slot, round, member, 1))});
  }
  void probe(uint16_t member, uint32_t round, uint16_t slot = 0) {
    pipeline_.run_arrival({endpoint(member), packet(NETSUM_TYPE_PROBE, slot, member, round, Bytes(8))});
  }
  uint64_t run() {
    uint64_t passes = 0;
    while (pipeline_.run_recirculated()) ++passes;
    return passes;
  }
  Bytes sum(uint32_t round, uint16_t slot = 0) const {
    return lanes(payload_bytes_, slot, round, 0, members_);
  }
  static Bytes payload(const Datagram& datagram) {
    return Bytes(datagram.bytes.begin() + NETSUM_HEADER_BYTES, datagram.bytes.end());
  }

  Pipeline pipeline_;
  uint16_t epoch_ = 0;
  uint16_t members_ = 0;
  uint32_t payload_bytes_ = 0;
};

TEST_F(PipelineTest, PassesOfARound) {
  for (const uint32_t groups : {1u, 2u, 3u, 4u}) {
    install(4, 1, groups * NETSUM_P4_PASS_BYTES);
    const uint64_t before = pipeline_.passes();
    for (uint16_t m = 0; m < 3; ++m) {
      contribute(m, 1);
      EXPECT_EQ(run(), groups - 1);
      EXPECT_TRUE(pipeline_.take_sent().empty());
    }
    contribute(3, 1);
    EXPECT_EQ(run(), 2 * groups - 1) << "the last one also harvests";
    const std::vector<Datagram> sent = pipeline_.take_sent();
    ASSERT_EQ(sent.size(), 4u);
    for (const Datagram& result : sent) EXPECT_EQ(payload(result), sum(1));
    EXPECT_EQ(pipeline_.passes() - before, 5 * groups);
  }
}

TEST_F(PipelineTest, ShortPacketsTakeFewerPasses) {
  install(1, 1, 1024);
  pipeline_.run_arrival({endpoint(0), packet(NETSUM_TYPE_CONTRIBUTION, 0, 0, 1, lanes(264, 0, 1, 0, 1))});
  EXPECT_EQ(run(), 3u);
  const std::vector<Datagram> sent = pipeline_.take_sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(payload(sent[0]), lanes(264, 0, 1, 0, 1));
  EXPECT_EQ(load(sent[0].bytes, 24, 8), kCookie) << "as in the contribution";
}

// The packet that completes a round is lost on its way to the second pass. Every PROBE is told AGAIN, and any contribution
// then completes the round.
TEST_F(PipelineTest, ALostHarvestIsMadeUpFor) {
  install(2, 1, 256);
  contribute(0, 1);
  contribute(1, 1);
  ASSERT_TRUE(pipeline_.lose_recirculated());
  probe(0, 1);
  const std::vector<Datagram> status = pipeline_.take_sent();
  ASSERT_EQ(status.size(), 1u);
  EXPECT_EQ(type_of(status[0].bytes), NETSUM_TYPE_STATUS);
  EXPECT_EQ(status[0].bytes[3], NETSUM_FLAG_AGAIN);
  EXPECT_EQ(load(status[0].bytes, 32, 8), 3u);
  contribute(0, 1);
  run();
  const std::vector<Datagram> sent = pipeline_.take_sent();
  ASSERT_EQ(sent.size(), 2u);
  for (const Datagram& result : sent) EXPECT_EQ(payload(result), sum(1));
  EXPECT_EQ(pipeline_.counter(NETSUM_P4_COUNT_ROUNDS_COMPLETED), 1u);
}

// A packet of several passes is lost between them: its words are missing for good, and the round never completes.
TEST_F(PipelineTest, ALostContributionNeverCompletes) {
  install(2, 1, 512);
  contribute(0, 1);
  ASSERT_TRUE(pipeline_.lose_recirculated());
  contribute(1, 1);
  run();
  contribute(0, 1);
  run();
  EXPECT_TRUE(pipeline_.take_sent().empty());
  EXPECT_EQ(pipeline_.counter(NETSUM_DROP_DUPLICATE), 1u);
}

// Two members disagree with the first at once: the round names the one whose second pass came first, to both.
TEST_F(PipelineTest, TheFirstToDisagreeIsNamed) {
  install(3, 1, 256);
  contribute(0, 1);
  for (uint16_t m = 1; m < 3; ++m) {
    Bytes other = packet(NETSUM_TYPE_CONTRIBUTION, 0, m, 1, lanes(256, 0, 1, m, 1));
    other[20] ^= 1;
    pipeline_.run_arrival({endpoint(m), other});
  }
  EXPECT_EQ(run(), 2u);
  const std::vector<Datagram> sent = pipeline_.take_sent();
  ASSERT_EQ(sent.size(), 4u) << "an ERROR to all, and one to the second";
  for (const Datagram& error : sent) {
    EXPECT_EQ(type_of(error.bytes), NETSUM_TYPE_ERROR);
    EXPECT_EQ(load(error.bytes, 34, 2), 1u);
  }
  EXPECT_EQ(member_at(sent[3].peer), 2u);
  EXPECT_EQ(pipeline_.counter(NETSUM_P4_COUNT_MISMATCHES), 1u);
}

// What is between two passes when the job's epoch ends is dropped.
TEST_F(PipelineTest, PassesOfAnEarlierEpochAreDropped) {
  install(1, 1, 256);
  contribute(0, 1);
  pipeline_.set_job(kJob, {.epoch = 2, .members = 1, .slots = 1, .payload_bytes = 256, .first_slot = 5});
  EXPECT_EQ(run(), 1u);
  EXPECT_TRUE(pipeline_.take_sent().empty());
  EXPECT_EQ(pipeline_.counter(NETSUM_P4_COUNT_LOST_PASS), 1u);
}

// Whatever a job has left behind, to the next epoch its slots are empty: no register is cleared between the two.
TEST_F(PipelineTest, SlotsAreEmptyToTheNextEpoch) {
  install(2, 1, 256);
  for (const uint32_t round : {1u, 2u, 3u}) {
    for (const uint16_t m : {0, 1}) contribute(m, round);
    run();
  }
  contribute(0, 4);  // open in bank 0, round 3 in bank 1
  pipeline_.take_sent();
  install(2, 1, 256);
  probe(0, 1);
  const std::vector<Datagram> status = pipeline_.take_sent();
  ASSERT_EQ(status.size(), 1u);
  EXPECT_EQ(load(status[0].bytes, 32, 8), 0u) << "nobody has contributed";
  for (const uint32_t round : {0u, 2u, 3u, 4u, 5u, 0xFFFFFFFFu}) {
    contribute(1, round);
    probe(1, round);
    run();
    EXPECT_TRUE(pipeline_.take_sent().empty()) << round;
  }
  contribute(0, 1);
  contribute(1, 0);  // the round before, of which this epoch has none
  contribute(1, 0xFFFFFFFF);
  run();
  EXPECT_TRUE(pipeline_.take_sent().empty());
  for (const uint32_t round : {1u, 2u}) {
    for (const uint16_t m : {0, 1}) contribute(m, round);
    run();
    const std::vector<Datagram> sent = pipeline_.take_sent();
    ASSERT_EQ(sent.size(), 2u);
    for (const Datagram& result : sent) EXPECT_EQ(payload(result), sum(round));
  }
}

// --- Interleaved passes ----------------------------------------------------------------------------------------------

// Members that follow section 7 of PROTOCOL.md, on a network that loses, repeats and reorders, and a pipeline that takes
// arrivals between the passes of other packets. Every result that arrives must be exact.
class Traffic : public PipelineTest {
 protected:
  struct Slot {
    uint32_t round = 1;  // of the step that is outstanding
    uint64_t told = 0;   // members of the STATUS packets
  };
  struct Shape {
    uint16_t members;
    uint16_t slots;
    uint32_t payload_bytes, rounds;
    double network_loss, pass_loss;
  };

  void start(const Shape& shape, uint64_t seed) {
    shape_ = shape;
    rng_ = Rng(seed);
    install(shape.members, shape.slots, shape.payload_bytes);
    states_.assign(shape.members, std::vector<Slot>(shape.slots));
    for (uint16_t m = 0; m < shape.members; ++m) {
      for (uint16_t s = 0; s < shape.slots; ++s) send(m, s);
    }
  }
  // False: not all steps finished in that many events.
  bool finish(int events) {
    for (int i = 0; i < events; ++i) {
      if (done()) return true;
      if (HasFailure()) return false;
      step();
    }
    return done();
  }

 private:
  bool done() const {
    return std::all_of(states_.begin(), states_.end(), [&](const auto& slots) {
      return std::all_of(slots.begin(), slots.end(),
                         [&](const Slot& slot) { return slot.round > shape_.rounds; });
    });
  }
  void send(uint16_t member, uint16_t slot) {
    const uint32_t round = states_[member][slot].round;
    if (round > shape_.rounds) return;
    up_.push_back({endpoint(member), packet(NETSUM_TYPE_CONTRIBUTION, slot, member, round,
                                            lanes(payload_bytes_, slot, round, member, 1))});
  }
  void step() {
    const double kind = rng_.unit();
    if (kind < 0.4) {
      take(&up_, [&](const Datagram& datagram) { pipeline_.run_arrival(datagram); });
    } else if (kind < 0.7) {
      rng_.chance(shape_.pass_loss) ? pipeline_.lose_recirculated() : pipeline_.run_recirculated();
    } else if (kind < 0.97) {
      take(&down_, [&](const Datagram& datagram) { deliver(datagram); });
    } else {  // some member becomes impatient
      const auto m = static_cast<uint16_t>(rng_.below(shape_.members));
      const auto s = static_cast<uint16_t>(rng_.below(shape_.slots));
      const uint32_t round = states_[m][s].round;
      if (round <= shape_.rounds)
        up_.push_back({endpoint(m), packet(NETSUM_TYPE_PROBE, s, m, round, Bytes(8))});
    }
    for (Datagram& sent : pipeline_.take_sent()) down_.push_back(std::move(sent));
  }
  // A packet of the link, any: lost, delivered, or delivered and kept.
  template <typename Deliver>
  void take(std::vector<Datagram>* link, Deliver deliver) {
    if (link->empty()) return;
    const size_t at = rng_.below(link->size());
    const Datagram datagram = (*link)[at];
    if (!rng_.chance(0.05)) link->erase(link->begin() + static_cast<long>(at));
    if (link->size() > 2000) link->erase(link->begin(), link->begin() + 1000);  // lost
    if (!rng_.chance(shape_.network_loss)) deliver(datagram);
  }
  void deliver(const Datagram& datagram) {
    const Bytes& bytes = datagram.bytes;
    const uint16_t m = member_at(datagram.peer);
    const auto s = static_cast<uint16_t>(load(bytes, 8, 2));
    Slot& slot = states_[m][s];
    if (load(bytes, 12, 4) != slot.round) return;
    if (type_of(bytes) == NETSUM_TYPE_RESULT) {
      EXPECT_EQ(payload(datagram), sum(slot.round, s)) << "slot " << s << " round " << slot.round;
      EXPECT_EQ(load(bytes, 16, 4), slot.round * 100u + s);
      slot = {.round = slot.round + 1, .told = 0};
      send(m, s);
    } else {
      ASSERT_EQ(type_of(bytes), NETSUM_TYPE_STATUS);
      const uint64_t seen = load(bytes, 32, 8);
      const bool reordered = (slot.told >> m & 1) != 0 && (seen >> m & 1) == 0;
      slot.told |= seen;
      if (bytes[3] == NETSUM_FLAG_AGAIN && !reordered) send(m, s);
    }
  }

  Shape shape_{};
  Rng rng_{0};
  std::vector<std::vector<Slot>> states_;
  std::vector<Datagram> up_, down_;
};

TEST_F(Traffic, FinishesWhateverTheNetworkDoes) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const auto members = static_cast<uint16_t>(1 + seed % 8);
    const uint32_t payload_bytes = 8 + 8 * static_cast<uint32_t>(seed * 37 % 128);
    start({members, 3, payload_bytes, 30, 0.02, 0}, seed);
    ASSERT_TRUE(finish(400000));
  }
}

// Packets of one pass may also be lost on their way to the second, which harvests.
TEST_F(Traffic, FinishesThoughPassesAreLost) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    start({static_cast<uint16_t>(1 + seed % 8), 3, NETSUM_P4_PASS_BYTES, 30, 0.02, 0.05}, seed);
    ASSERT_TRUE(finish(400000));
  }
}

TEST_F(Traffic, NoSumIsWrongWhenLongPacketsLosePasses) {
  int stuck = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    start({4, 3, 1024, 30, 0.02, 0.01}, seed);
    stuck += !finish(20000);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(stuck, 0) << "no pass of a contribution was lost";
}

// --- Hierarchy -------------------------------------------------------------------------------------------------------

// Two switches below a third, as Traffic: packets between them are lost, repeated and reordered, too, and all three take arrivals
// between passes.
class HierarchyTraffic : public testing::Test {
 protected:
  struct Shape {
    uint16_t members;  // of each rack
    uint32_t payload_bytes, rounds;
    double network_loss, pass_loss;
  };

  void start(const Shape& shape, uint64_t seed) {
    shape_ = shape;
    rng_ = Rng(seed);
    for (auto& round : rounds_) round.assign(shape.members, 1);
    in_flight_.clear();
    ++epoch_;
    spine_.set_job(kSpineJob, {.epoch = epoch_,
                               .members = kRacks,
                               .slots = 1,
                               .payload_bytes = shape.payload_bytes,
                               .cookie = kSpineCookie});
    for (uint16_t r = 0; r < kRacks; ++r) {
      spine_.set_member(kSpineJob, r, rack_at(r));
      racks_[r].set_job(kJob, {.epoch = epoch_,
                               .members = shape.members,
                               .slots = 1,
                               .payload_bytes = shape.payload_bytes,
                               .cookie = kCookie,
                               .parent = JobEntry::Parent{.ip = kSpine.ip,
                                                          .udp_port = kSpine.udp_port,
                                                          .job = kSpineJob,
                                                          .epoch = epoch_,
                                                          .member = r,
                                                          .cookie = kSpineCookie}});
      racks_[r].set_parent(kJob, kSpine.port);
      for (uint16_t m = 0; m < shape.members; ++m) {
        racks_[r].set_member(kJob, m, endpoint(m));
        contribute(r, m);
      }
    }
  }
  bool finish(int events) {
    for (int i = 0; i < events && !done() && !HasFailure(); ++i) step();
    return done();
  }

 private:
  static constexpr uint16_t kRacks = 2, kSpineJob = 9;
  static constexpr uint64_t kSpineCookie = 0x5555AAAA5555AAAA;
  static constexpr Endpoint kSpine{.ip = 0x0A010000, .udp_port = NETSUM_P4_DATA_PORT, .port = 60};
  static Endpoint rack_at(uint16_t rack) {
    return {.ip = 0x0A020000u + rack, .udp_port = NETSUM_P4_DATA_PORT, .port = rack};
  }
  enum class To { kSpine, kRack, kMember };
  struct Hop {
    To to;
    uint16_t rack;
    Datagram datagram;  // kMember: with the member's endpoint, otherwise the sender's
  };

  bool done() const {
    return std::all_of(rounds_.begin(), rounds_.end(), [&](const auto& rack) {
      return std::all_of(rack.begin(), rack.end(), [&](uint32_t round) { return round > shape_.rounds; });
    });
  }
  void contribute(uint16_t rack, uint16_t member) {
    const uint32_t round = rounds_[rack][member];
    if (round > shape_.rounds) return;
    const auto number = static_cast<uint16_t>(rack * shape_.members + member);
    in_flight_.push_back({To::kRack,
                          rack,
                          {endpoint(member), make_packet(epoch_, NETSUM_TYPE_CONTRIBUTION, 0, member, round,
                                                         lanes(shape_.payload_bytes, 0, round, number, 1))}});
  }
  void probe(uint16_t rack, uint16_t member) {
    const uint32_t round = rounds_[rack][member];
    if (round > shape_.rounds) return;
    in_flight_.push_back(
        {To::kRack,
         rack,
         {endpoint(member), make_packet(epoch_, NETSUM_TYPE_PROBE, 0, member, round, Bytes(8))}});
  }
  void step() {
    const double kind = rng_.unit();
    const size_t which = rng_.below(kRacks + 1);
    Pipeline& pipeline = which < kRacks ? racks_[which] : spine_;
    if (kind < 0.7) {  // most, or the passes that wait would be ever more
      rng_.chance(shape_.pass_loss) ? pipeline.lose_recirculated() : pipeline.run_recirculated();
    } else if (kind < 0.98) {
      carry();
    } else {
      probe(static_cast<uint16_t>(rng_.below(kRacks)), static_cast<uint16_t>(rng_.below(shape_.members)));
    }
    collect();
  }
  // Any packet: lost, delivered, or delivered and kept.
  void carry() {
    if (in_flight_.empty()) return;
    const size_t at = rng_.below(in_flight_.size());
    const Hop hop = in_flight_[at];
    if (!rng_.chance(0.05)) in_flight_.erase(in_flight_.begin() + static_cast<long>(at));
    if (in_flight_.size() > 2000) in_flight_.erase(in_flight_.begin(), in_flight_.begin() + 1000);
    if (rng_.chance(shape_.network_loss)) return;
    if (hop.to == To::kSpine) return spine_.run_arrival(hop.datagram);
    if (hop.to == To::kRack) return racks_[hop.rack].run_arrival(hop.datagram);
    deliver(hop);
  }
  void collect() {
    for (Datagram& sent : spine_.take_sent()) {
      const auto rack = static_cast<uint16_t>(sent.peer.ip & 0xFFFF);
      ASSERT_EQ(sent.peer, rack_at(rack));
      in_flight_.push_back({To::kRack, rack, {kSpine, std::move(sent.bytes)}});
    }
    for (uint16_t r = 0; r < kRacks; ++r) {
      for (Datagram& sent : racks_[r].take_sent()) {
        const bool up = sent.peer == kSpine;
        const Endpoint at = up ? rack_at(r) : sent.peer;
        in_flight_.push_back({up ? To::kSpine : To::kMember, r, {at, std::move(sent.bytes)}});
      }
    }
  }
  void deliver(const Hop& hop) {
    const Bytes& bytes = hop.datagram.bytes;
    const uint16_t m = member_at(hop.datagram.peer);
    uint32_t& round = rounds_[hop.rack][m];
    if (load(bytes, 12, 4) != round) return;
    EXPECT_EQ(load(bytes, 4, 2), kJob);
    EXPECT_EQ(load(bytes, 24, 8), kCookie);
    if (type_of(bytes) == NETSUM_TYPE_RESULT) {
      const auto all = static_cast<uint16_t>(kRacks * shape_.members);
      EXPECT_EQ(Bytes(bytes.begin() + NETSUM_HEADER_BYTES, bytes.end()),
                lanes(shape_.payload_bytes, 0, round, 0, all))
          << "round " << round;
      EXPECT_EQ(load(bytes, 16, 4), round * 100u);
      ++round;
      contribute(hop.rack, m);
    } else {
      ASSERT_EQ(type_of(bytes), NETSUM_TYPE_STATUS);
      EXPECT_EQ(load(bytes, 16, 4), round * 100u) << "as it was asked";
      if (bytes[3] == NETSUM_FLAG_AGAIN) contribute(hop.rack, m);
    }
  }

  Shape shape_{};
  Rng rng_{0};
  uint16_t epoch_ = 0;
  Pipeline spine_;
  std::array<Pipeline, kRacks> racks_;
  std::array<std::vector<uint32_t>, kRacks> rounds_;  // that members are in
  std::vector<Hop> in_flight_;
};

TEST_F(HierarchyTraffic, FinishesWhateverTheNetworkDoes) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    start({static_cast<uint16_t>(1 + seed % 5), 8 + 8 * static_cast<uint32_t>(seed * 37 % 128), 30, 0.02, 0},
          seed);
    ASSERT_TRUE(finish(400000));
  }
}

TEST_F(HierarchyTraffic, FinishesThoughPassesAreLost) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    start({static_cast<uint16_t>(1 + seed % 5), NETSUM_P4_PASS_BYTES, 30, 0.02, 0.05}, seed);
    ASSERT_TRUE(finish(400000));
  }
}

TEST_F(HierarchyTraffic, NoSumIsWrongWhenLongPacketsLosePasses) {
  int stuck = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    start({3, 1024, 30, 0.02, 0.01}, seed);
    stuck += !finish(20000);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(stuck, 0) << "no pass of a contribution was lost";
}

// Until the parent has answered, no member is welcome, and what it says reaches the control plane as a packet of the own job.
TEST(Hierarchy, HellosAndWelcomesGoToTheControlPlaneUntilTheParentHasAnswered) {
  const Endpoint parent{.ip = 0x0A010000, .udp_port = 5152, .port = 60};
  Pipeline pipeline;
  pipeline.set_job(
      kJob,
      {.epoch = 7,
       .members = 2,
       .slots = 1,
       .payload_bytes = 256,
       .cookie = kCookie,
       .parent = JobEntry::Parent{
           .ip = parent.ip, .udp_port = parent.udp_port, .job = 9, .epoch = 4, .member = 1, .cookie = 0x77}});
  pipeline.set_member(kJob, 0, endpoint(0));
  const Datagram hello{endpoint(0), make_packet(7, NETSUM_TYPE_HELLO, 0, 0, 1, Bytes(256))};
  pipeline.run_arrival(hello);
  std::vector<Datagram> taken = pipeline.take_for_control();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].bytes, hello.bytes);

  Bytes welcome = make_packet(4, NETSUM_TYPE_WELCOME, 0, 1, 1, Bytes(256));
  store(9, 4, 2, &welcome);
  pipeline.run_arrival({parent, welcome});
  EXPECT_EQ(pipeline.counter(NETSUM_DROP_BAD_CHECK), 1u) << "it has the cookie of another job";
  store(0x77, 24, 8, &welcome);
  pipeline.run_arrival({endpoint(1), welcome});
  EXPECT_EQ(pipeline.counter(NETSUM_DROP_BAD_TYPE), 1u) << "it is not the parent's";
  EXPECT_TRUE(pipeline.take_for_control().empty());
  pipeline.run_arrival({parent, welcome});
  taken = pipeline.take_for_control();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(load(taken[0].bytes, 4, 2), kJob);
  EXPECT_EQ(load(taken[0].bytes, 6, 2), 7u);
  EXPECT_EQ(load(taken[0].bytes, 24, 8), kCookie);

  pipeline.set_parent(kJob, parent.port);
  pipeline.run_arrival(hello);
  pipeline.run_arrival({parent, welcome});
  EXPECT_TRUE(pipeline.take_for_control().empty());
  const std::vector<Datagram> sent = pipeline.take_sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(type_of(sent[0].bytes), NETSUM_TYPE_WELCOME);
  Endpoint elsewhere = parent;
  elsewhere.port = 61;
  pipeline.run_arrival({elsewhere, welcome});
  EXPECT_EQ(pipeline.counter(NETSUM_DROP_UNKNOWN_PEER), 1u);
}

}  // namespace
}  // namespace netsum::p4::pipeline_test
