// Randomised runs of the slot machine against simple members on a bad network, beside a naive model that
// remembers everything: a map from (slot, round) to who has contributed and the exact sum.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <queue>
#include <vector>

#include "aggregator/slot/slot_bench.h"
#include "src/base/rng.h"

namespace netsum::slot_model_test {
namespace {

constexpr uint32_t kPayload = 16;
constexpr uint32_t kMaxLanes = kPayload;  // of 8 bits

struct Network {
  double loss, duplicate, straggle;
  uint64_t delay, long_delay;
};

struct Scenario {
  uint16_t members;
  uint32_t slots, steps, first_round;
  uint32_t lane_bytes;  // 1, 2 or 4
  Network network;
};

struct Packet {
  uint64_t time;
  uint64_t order;  // makes equal times deterministic
  bool to_aggregator;
  uint16_t member;  // sender, or addressee
  netsum_fields fields;
  std::vector<uint8_t> payload;
  bool operator>(const Packet& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

// The value that `member` contributes in lane `i` of `step`: 64 of them fit a lane.
int32_t value_of(const Scenario& run, uint16_t member, uint32_t step, uint32_t i) {
  const int32_t range = run.lane_bytes == 1 ? 3 : run.lane_bytes == 2 ? 1009 : 1000003;
  return static_cast<int32_t>((member + 1) * 7919u + step * 104729u + i * 31u) % range - range / 2;
}
int32_t sum_of(const Scenario& run, uint32_t step, uint32_t i) {
  int32_t sum = 0;
  for (uint16_t m = 0; m < run.members; ++m) sum += value_of(run, m, step, i);
  return sum;
}

class Simulation {
 public:
  Simulation(const Scenario& run, uint64_t seed)
      : run_(run), rng_(seed), bench_(run.members, run.slots, kPayload), members_(run.members) {
    for (uint32_t s = 0; s < run.slots; ++s) {
      if (run.first_round == 1) break;
      bench_.slot(s).current = run.first_round - 1;
      bench_.slot(s).rounds[(run.first_round - 1) & 1].state = NETSUM_ROUND_COMPLETE;
    }
    for (auto& member : members_) member.outstanding.resize(run.slots);
  }

  // True if every member has every result before the time is up.
  bool run() {
    for (uint16_t m = 0; m < run_.members; ++m) {
      for (uint32_t slot = 0; slot < run_.slots; ++slot) start_step(m, slot);
    }
    for (uint64_t tick = 0; tick < 200'000; ++tick) {
      now_ = tick;
      while (!wires_.empty() && wires_.top().time <= now_) {
        Packet packet = wires_.top();
        wires_.pop();
        packet.to_aggregator ? at_aggregator(packet) : at_member(packet);
        if (testing::Test::HasFatalFailure()) return false;
      }
      if (done_ == uint64_t{run_.members} * run_.steps) return true;
      for (uint16_t m = 0; m < run_.members; ++m) on_tick(m);
    }
    return false;
  }

  uint64_t stale_drops() const { return stale_drops_; }
  uint64_t repeats() const { return repeats_; }

 private:
  struct Step {
    bool busy = false;
    uint32_t step = 0;
    uint64_t deadline = 0;
  };
  struct Member {
    std::vector<Step> outstanding;  // by slot
  };
  struct Model {
    uint64_t contributors = 0;
    int64_t sums[kMaxLanes] = {};
  };

  uint32_t lanes() const { return kPayload / run_.lane_bytes; }
  int32_t lane(const std::vector<uint8_t>& payload, uint32_t i) const {
    const uint8_t* at = &payload[run_.lane_bytes * i];
    if (run_.lane_bytes == 1) return static_cast<int8_t>(*at);
    if (run_.lane_bytes == 4) return static_cast<int32_t>(netsum_load32(at));
    return static_cast<int16_t>(at[0] | at[1] << 8);
  }

  uint32_t round_of(uint32_t step) const { return run_.first_round + step / run_.slots; }

  netsum_fields fields_of(uint16_t m, uint32_t step, uint8_t type) const {
    netsum_fields f = bench_.contribution(m, round_of(step), step % run_.slots);
    f.type = type;
    if (run_.lane_bytes == 1) f.format = NETSUM_FORMAT_SUM_I8;
    if (run_.lane_bytes == 2) f.format = NETSUM_FORMAT_SUM_I16;
    f.chunk = step;
    f.payload_bytes = type == NETSUM_TYPE_CONTRIBUTION ? kPayload : 0;
    return f;
  }

  void send(bool to_aggregator, uint16_t member, const netsum_fields& fields, std::vector<uint8_t> payload) {
    const Network& net = run_.network;
    int copies = rng_.chance(net.loss) ? 0 : 1;
    if (rng_.chance(net.duplicate)) ++copies;
    for (int i = 0; i < copies; ++i) {
      uint64_t delay = 1 + rng_.below(net.delay);
      if (rng_.chance(net.straggle)) delay += rng_.below(net.long_delay);
      wires_.push({now_ + delay, order_++, to_aggregator, member, fields, payload});
    }
  }

  void send_contribution(uint16_t m, uint32_t step) {
    std::vector<uint8_t> payload(kPayload);
    for (uint32_t i = 0; i < lanes(); ++i) {
      const int32_t value = value_of(run_, m, step, i);
      std::memcpy(&payload[run_.lane_bytes * i], &value, run_.lane_bytes);
    }
    send(true, m, fields_of(m, step, NETSUM_TYPE_CONTRIBUTION), payload);
  }

  void start_step(uint16_t m, uint32_t step) {
    if (step >= run_.steps) return;
    members_[m].outstanding[step % run_.slots] = {true, step, now_ + timeout()};
    send_contribution(m, step);
  }

  // Sometimes shorter than a round trip, so that needless retransmissions are common.
  uint64_t timeout() { return 2 + rng_.below(4 * run_.network.delay); }

  void on_tick(uint16_t m) {
    for (Step& step : members_[m].outstanding) {
      if (!step.busy || step.deadline > now_) continue;
      step.deadline = now_ + timeout();
      if (rng_.chance(0.5)) {
        send(true, m, fields_of(m, step.step, NETSUM_TYPE_PROBE), {});
      } else {
        send_contribution(m, step.step);
      }
    }
  }

  void at_aggregator(const Packet& packet) {
    const netsum_fields& f = packet.fields;
    const SlotOutcome outcome = bench_.feed(f, packet.payload);
    Model& model = model_[{f.slot, f.round}];
    const uint64_t bit = 1ull << f.member;
    switch (outcome.action) {
      case NETSUM_ACT_STORE:
      case NETSUM_ACT_ADD:
        ASSERT_EQ(outcome.action == NETSUM_ACT_STORE, model.contributors == 0);
        ASSERT_EQ(model.contributors & bit, 0u) << "counted twice";
        model.contributors |= bit;
        for (uint32_t i = 0; i < lanes(); ++i) model.sums[i] += lane(packet.payload, i);
        ASSERT_EQ(outcome.completed, model.contributors == netsum_all_members(run_.members));
        if (outcome.completed) {
          for (uint16_t m = 0; m < run_.members; ++m) send_result(m, f.slot, f.round);
        }
        return;
      case NETSUM_ACT_REPLY_RESULT:
        ++repeats_;
        send_result(f.member, f.slot, f.round);
        return;
      case NETSUM_ACT_REPLY_STATUS: {
        ASSERT_EQ(outcome.seen, model.contributors);
        std::vector<uint8_t> seen(8);
        netsum_store64(seen.data(), outcome.seen);
        netsum_fields status = f;
        status.type = NETSUM_TYPE_STATUS;
        status.flags = outcome.flags;
        send(false, f.member, status, seen);
        return;
      }
      case NETSUM_ACT_DROP:
        // Honest members are never ahead, and only what is over or already counted is refused.
        ASSERT_TRUE(outcome.drop == NETSUM_DROP_STALE_ROUND || outcome.drop == NETSUM_DROP_DUPLICATE)
            << int{outcome.drop};
        if (outcome.drop == NETSUM_DROP_DUPLICATE) {
          ASSERT_NE(model.contributors & bit, 0u);
        } else {
          ++stale_drops_;
        }
        return;
      default:
        FAIL() << "action " << int{outcome.action} << " in a run where all members agree";
    }
  }

  void send_result(uint16_t m, uint16_t slot, uint32_t round) {
    const Model& model = model_[{slot, round}];
    ASSERT_EQ(model.contributors, netsum_all_members(run_.members));
    const std::vector<uint8_t>& sums = bench_.lanes(slot, round);
    for (uint32_t i = 0; i < lanes(); ++i) ASSERT_EQ(lane(sums, i), model.sums[i]);
    netsum_fields f = bench_.contribution(m, round, slot);
    f.type = NETSUM_TYPE_RESULT;
    f.chunk = bench_.slot(slot).rounds[round & 1].chunk;
    send(false, m, f, sums);
  }

  void at_member(const Packet& packet) {
    const netsum_fields& f = packet.fields;
    Step& step = members_[packet.member].outstanding[f.slot];
    if (!step.busy || round_of(step.step) != f.round) return;  // an answer to an old probe
    if (f.type == NETSUM_TYPE_STATUS) {
      if (f.flags & NETSUM_FLAG_AGAIN) send_contribution(packet.member, step.step);
      return;
    }
    ASSERT_EQ(f.chunk, step.step);
    for (uint32_t i = 0; i < lanes(); ++i) {
      ASSERT_EQ(lane(packet.payload, i), sum_of(run_, step.step, i));
    }
    ++done_;
    step.busy = false;
    start_step(packet.member, step.step + run_.slots);
  }

  const Scenario run_;
  Rng rng_;
  SlotBench bench_;
  std::vector<Member> members_;
  std::map<std::pair<uint32_t, uint32_t>, Model> model_;
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> wires_;
  uint64_t now_ = 0, order_ = 0, done_ = 0, stale_drops_ = 0, repeats_ = 0;
};

Scenario random_run(Rng& rng) {
  Scenario run;
  run.members = static_cast<uint16_t>(1 + rng.below(5));
  if (rng.chance(0.01)) run.members = NETSUM_MAX_MEMBERS;
  run.slots = static_cast<uint32_t>(1 + rng.below(3));
  run.steps = static_cast<uint32_t>(1 + rng.below(20));
  run.first_round = rng.chance(0.1) ? 0xFFFFFFFCu : 1;
  run.lane_bytes = 1u << rng.below(3);
  run.network.loss = rng.chance(0.3) ? 0 : 0.3 * rng.unit();
  run.network.duplicate = 0.3 * rng.unit();
  run.network.straggle = 0.2 * rng.unit();
  run.network.delay = 1 + rng.below(10);
  run.network.long_delay = 1 + rng.below(500);
  return run;
}

// NETSUM_SEED=<n> repeats one run.
TEST(SlotModel, EverySumIsExactOnABadNetwork) {
  const char* only = std::getenv("NETSUM_SEED");
  const uint64_t first = only ? std::strtoull(only, nullptr, 0) : 1;
  const uint64_t count = only ? 1 : 4000;
  uint64_t stale = 0, repeats = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const Scenario run = random_run(rng);
    Simulation simulation(run, rng.next());
    const bool finished = simulation.run();
    if (HasFatalFailure()) return;
    ASSERT_TRUE(finished) << run.members << " members, " << run.slots << " slots, " << run.steps << " steps";
    stale += simulation.stale_drops();
    repeats += simulation.repeats();
  }
  // The network was bad enough to try the rules.
  if (!only) {
    EXPECT_GT(stale, count);
    EXPECT_GT(repeats, count);
  }
}

}  // namespace
}  // namespace netsum::slot_model_test
