// Every state that slot.h itself can reach: a slot, its members and the network between them, with and
// without a hierarchy. wire/model/slot.pml checks the rules of PROTOCOL.md; this checks the code that
// implements them.
//
// The network remembers every packet that was ever sent and may deliver any of them at any time, any number
// of times or never. That covers loss, duplication, reordering and delay without a bound. Members follow
// rules 1, 5 and 6 of PROTOCOL.md, section 7: one outstanding round, an AGAIN is not obeyed if an earlier
// STATUS knew more, and answers are taken only if they name that round.
//
// In every state: what an aggregator sends is the exact sum of one round, marked as overflowed only if a
// contribution of that round says so, and never answers a packet without lanes by such with lanes; and PROBEs that pass undisturbed, without any other packet, bring every
// member to its last result. Where one rank disagrees on a round, nobody gets that round's result, and PROBEs
// bring everybody the ERROR; elsewhere nobody gets one.
#include <gtest/gtest.h>

#include <iostream>
#include <unordered_set>
#include <utility>

#include "aggregator/slot/slot_world.h"
#include "src/base/soak.h"

namespace netsum::slot_explore_test {
namespace {

// 128 bits of hash stand for a state: two different states among 10^8 share one with a chance below 10^-22.
struct Fingerprint {
  uint64_t low, high;
  bool operator==(const Fingerprint&) const = default;
};
struct FingerprintHash {
  size_t operator()(const Fingerprint& f) const { return f.low; }
};

Fingerprint fingerprint(const State& state) {
  static_assert(sizeof state % 8 == 0);
  uint64_t words[sizeof state / 8];
  std::memcpy(words, &state, sizeof state);
  Fingerprint f{0x9E3779B97F4A7C15ull, 0xC2B2AE3D27D4EB4Full};
  for (const uint64_t word : words) {
    f.low = (f.low ^ word) * 0xFF51AFD7ED558CCDull;
    f.low ^= f.low >> 32;
    f.high = (f.high + word) * 0xD6E8FEB86659FD93ull;
    f.high ^= f.high >> 29;
  }
  return f;
}

struct Step {  // how a state was first reached
  size_t from;
  Event event;
};

std::string trace(const std::vector<Step>& steps, size_t id) {
  std::vector<std::string> lines;
  for (; id != 0; id = steps[id].from) lines.push_back(describe(steps[id].event));
  std::string text;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += "\n  " + *line;
  return text;
}

void explore(const Shape& shape) {
  World world(shape);
  std::unordered_set<Fingerprint, FingerprintHash> known;
  std::vector<Step> steps;
  std::vector<std::pair<State, size_t>> open;  // depth first: few wait at a time
  size_t ends = 0;
  const auto reach = [&](const State& state, const Step& step) {
    if (!known.insert(fingerprint(state)).second) return;
    steps.push_back(step);
    open.emplace_back(state, steps.size() - 1);
    ends += world.all_done(state);
  };
  reach(world.start(), {});
  while (!open.empty()) {
    const auto [state, id] = open.back();
    open.pop_back();
    ASSERT_TRUE(world.finishes_by_asking(state))
        << "stuck. " << world.wrong() << "; after" << trace(steps, id);
    for (const Event& event : world.events(state)) {
      State next = state;
      world.apply(event, &next);
      ASSERT_EQ(world.wrong(), "") << "after" << trace(steps, id) << "\n  " << describe(event);
      reach(next, {id, event});
    }
  }
  EXPECT_GT(ends, 0u);
  std::cout << shape.name << ": " << known.size() << " states" << std::endl;
}

class SlotShapes : public testing::TestWithParam<Shape> {};
TEST_P(SlotShapes, EverySumIsExactAndNobodyIsStuck) {
  explore(GetParam());
}

std::string name_of(const testing::TestParamInfo<Shape>& info) {
  return info.param.name;
}

constexpr uint32_t kBeforeWrap = 0xFFFFFFFEu;  // rounds 2^32 - 2, 2^32 - 1, 0, 1, ...

using Nodes = std::vector<NodeShape>;
const Nodes kTwoRacks{{-1, 0}, {0, 2}, {0, 2}};
const Nodes kUnequalRacks{{-1, 0}, {0, 3}, {0, 1}};
const Nodes kRankBesideRack{{-1, 1}, {0, 2}};
const Nodes kThreeLevels{{-1, 1}, {0, 1}, {1, 2}};
const Nodes kThreeRacks{{-1, 0}, {0, 2}, {0, 2}, {0, 2}};
const Nodes kFourLevels{{-1, 1}, {0, 1}, {1, 1}, {2, 2}};

INSTANTIATE_TEST_SUITE_P(Flat, SlotShapes,
                         testing::Values(Shape{"one_rank", {{-1, 1}}, 6}, Shape{"three_ranks", {{-1, 3}}, 6},
                                         Shape{"only_numbers_differ", {{-1, 4}}, 6, 1, false},
                                         Shape{"rounds_wrap", {{-1, 4}}, 6, kBeforeWrap, false},
                                         Shape{"one_disagrees", {{-1, 3}}, 4, 1, false, 1},
                                         Shape{"five_ranks", {{-1, 5}}, soak() ? 5u : 3u, 1, false}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Hierarchy, SlotShapes,
    testing::Values(Shape{"two_racks", kTwoRacks, 4}, Shape{"only_numbers_differ", kTwoRacks, 4, 1, false},
                    Shape{"unequal_racks", kUnequalRacks, 4, kBeforeWrap, false},
                    Shape{"rank_beside_rack", kRankBesideRack, 4, 1, false},
                    Shape{"one_disagrees", kRankBesideRack, 4, 1, false, 0},
                    Shape{"three_levels", kThreeLevels, 4, 1, false},
                    Shape{"three_levels_wrap", kThreeLevels, 4, kBeforeWrap},
                    // In four rounds they take longer than all other shapes together.
                    Shape{"six_ranks", kThreeRacks, soak() ? 4u : 1u, kBeforeWrap, false},
                    Shape{"four_levels", kFourLevels, soak() ? 6u : 4u, 1, false}),
    name_of);

// Ranks without lanes: broadcasts, one from each rank, and a round of zeros alone.
INSTANTIATE_TEST_SUITE_P(
    WithoutLanes, SlotShapes,
    testing::Values(Shape{"flat", {{-1, 3}}, 4, 1, false, -1, true},
                    Shape{"flat_wrap", {{-1, 3}}, 5, kBeforeWrap, false, -1, true},
                    Shape{"flat_asks", {{-1, 3}}, 4, 1, false, -1, true, false},
                    Shape{"flat_asks_wrap", {{-1, 4}}, 4, kBeforeWrap, false, -1, true, false},
                    Shape{"two_racks", kTwoRacks, 3, 1, false, -1, true},
                    Shape{"two_racks_ask", kTwoRacks, 3, 1, false, -1, true, false},
                    Shape{"rank_beside_rack_asks", kRankBesideRack, 4, 1, true, -1, true, false},
                    Shape{"three_levels_ask", kThreeLevels, 3, 1, false, -1, true, false}),
    name_of);

// One rank needs each result, in turn: those of the others have no lanes.
INSTANTIATE_TEST_SUITE_P(
    ResultsWithoutLanes, SlotShapes,
    testing::Values(Shape{"flat", {{-1, 3}}, 4, 1, false, -1, false, true, true},
                    Shape{"flat_sparse", {{-1, 3}}, 4, kBeforeWrap, false, -1, true, true, true},
                    Shape{"flat_asks", {{-1, 3}}, 4, 1, false, -1, true, false, true},
                    Shape{"two_racks", kTwoRacks, 3, 1, false, -1, true, true, true},
                    Shape{"two_racks_ask", kTwoRacks, 3, 1, false, -1, true, false, true},
                    Shape{"three_levels_ask", kThreeLevels, 3, 1, false, -1, true, false, true}),
    name_of);

// The long form has more than a million states.
TEST(SlotExplore, ManyRanks) {
  explore({"ranks", {{-1, soak() ? 8 : 5}}, soak() ? 4u : 3u, 1, false});
  explore({"two_racks", {{-1, 0}, {0, 3}, {0, soak() ? 3 : 2}}, soak() ? 5u : 3u, kBeforeWrap});
}

}  // namespace
}  // namespace netsum::slot_explore_test
