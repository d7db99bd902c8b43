#include "src/sparse/levels.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <set>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/sparse/or_by_sum.h"

namespace netsum::sparse::levels_test {
namespace {

std::set<uint64_t> random_set(Rng* rng, uint64_t positions) {
  std::set<uint64_t> set;
  const uint64_t count = rng->below(rng->chance(0.5) ? 5 : 400);
  const uint64_t cluster = 1 + rng->below(200);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = rng->below(positions);
    for (uint64_t j = 0; j < (rng->chance(0.2) ? cluster : 1); ++j)
      if (begin + j < positions) set.insert(begin + j);
  }
  if (rng->chance(0.2)) set.insert(positions - 1);
  return set;
}

BitSet bit_set(const std::set<uint64_t>& set) {
  BitSet bits;
  for (const uint64_t position : set) bits.add(position);
  return bits;
}

std::vector<uint64_t> positions_of(const BitSet& set) {
  std::vector<uint64_t> positions;
  set.for_each([&](uint64_t position) { positions.push_back(position); });
  return positions;
}

// What ranks do: one level after another, each with the blocks that any of them has set.
BitSet unite(const std::vector<BitSet>& sets, uint64_t positions, const Levels& levels, bool by_sum) {
  BitSet united;
  std::vector<std::vector<uint64_t>> blocks(levels.shifts.size());
  std::vector<Level> all;
  all.reserve(levels.shifts.size());
  for (size_t l = 0; l < levels.shifts.size(); ++l) {
    if (l == 0) {
      all.emplace_back(positions, levels.shifts[0]);
    } else {
      all.emplace_back(all.back(), blocks[l - 1], levels.shifts[l]);
    }
    std::vector<uint64_t> words(words_for(all.back().bits())), own(words.size(), ~uint64_t{0});
    const OrBySum adder(static_cast<int>(sets.size()));
    std::vector<int32_t> sum(adder.lanes(all.back().bits()));
    for (const BitSet& set : sets) {
      all.back().write(set, own.data());
      for (size_t w = 0; w < words.size(); ++w) words[w] |= own[w];
      std::vector<int32_t> lanes(sum.size());
      adder.spread(own, lanes.data());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += lanes[i];
    }
    if (by_sum) {
      std::vector<uint64_t> collected(words.size());
      adder.collect(sum, collected);
      EXPECT_EQ(collected, words);
    }
    const bool is_last = l + 1 == levels.shifts.size();
    EXPECT_TRUE(is_last ? all.back().read(words.data(), &united) : all.back().read(words.data(), &blocks[l]));
  }
  return united;
}

Levels random_levels(Rng* rng, uint64_t positions) {
  const auto top = static_cast<uint64_t>(std::max(1, static_cast<int>(std::bit_width(positions))));
  std::set<int, std::greater<>> shifts = {0};
  for (uint64_t i = rng->below(5); i > 0; --i) shifts.insert(static_cast<int>(rng->below(top)));
  if (positions > 1 << 20) shifts.insert(static_cast<int>(top) - 8);
  Levels levels;
  levels.shifts.assign(shifts.begin(), shifts.end());
  // Nobody sends a bitmap of everything.
  if (positions > 1 << 20) {
    int last = static_cast<int>(top);
    Levels finer;
    for (const int shift : levels.shifts) {
      while (last - shift > 6) finer.shifts.push_back(last -= 6);
      if (finer.shifts.empty() || shift < finer.shifts.back()) finer.shifts.push_back(shift);
      last = shift;
    }
    return finer;
  }
  return levels;
}

TEST(LevelsTest, AnyLevelsGiveTheUnion) {
  Rng rng(7);
  for (int round = 0; round < (soak() ? 20'000 : 1'000); ++round) {
    const uint64_t positions = rng.chance(0.1) ? uint64_t{1} << (20 + rng.below(21)) : 1 + rng.below(5'000);
    const size_t ranks = 1 + rng.below(5);
    std::set<uint64_t> expected;
    std::vector<BitSet> sets;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto set = random_set(&rng, positions);
      expected.insert(set.begin(), set.end());
      sets.push_back(bit_set(set));
    }
    const Levels levels = random_levels(&rng, positions);
    const BitSet united = unite(sets, positions, levels, true);
    ASSERT_EQ(positions_of(united), std::vector<uint64_t>(expected.begin(), expected.end()))
        << "round " << round << ", " << positions << " positions";
  }
}

TEST(LevelsTest, ReadRefusesPositionsThatDoNotExist) {
  const Level first(100, 4);  // 7 blocks
  std::vector<uint64_t> blocks;
  uint64_t word = uint64_t{1} << 6;
  EXPECT_TRUE(first.read(&word, &blocks));
  word = uint64_t{1} << 7;
  EXPECT_FALSE(first.read(&word, &blocks));
  blocks = {6};
  const Level middle(first, blocks, 2);  // blocks 24 to 27, of which only 24 exists
  std::vector<uint64_t> found;
  word = 1;
  EXPECT_TRUE(middle.read(&word, &found));
  EXPECT_THAT(found, testing::ElementsAre(24));
  word = 2;
  EXPECT_FALSE(middle.read(&word, &found));
  const Level last(first, blocks, 0);  // positions 96 to 111
  BitSet set;
  word = 1 << 3;
  EXPECT_TRUE(last.read(&word, &set));
  EXPECT_THAT(positions_of(set), testing::ElementsAre(99));
  word = 1 << 4;
  EXPECT_FALSE(last.read(&word, &set));
  word = 1 << 16;  // behind the last block
  EXPECT_FALSE(last.read(&word, &set));
}

TEST(LevelsTest, OccupancyCountsBlocksOfEverySize) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    const uint64_t positions = rng.chance(0.2) ? uint64_t{1} << kMaxShift : 1 + rng.below(3'000);
    const auto set = random_set(&rng, positions);
    Occupancy occupancy;
    occupancy.add(bit_set(set));
    for (int shift = 0; shift <= kMaxShift; ++shift) {
      std::set<uint64_t> blocks;
      for (const uint64_t position : set) blocks.insert(position >> shift);
      ASSERT_EQ(occupancy.blocks[static_cast<size_t>(shift)], static_cast<double>(blocks.size())) << shift;
    }
  }
}

// The figures of docs/sparse.md: bits for each position of a random set.
TEST(LevelsTest, ChosenLevelsNeedFewBits) {
  constexpr uint64_t kPositions = 25'000'000;
  constexpr double kLevelCost = 100'000;
  const struct {
    double density, most_bits;
  } kCases[] = {{0.03, 9.2}, {0.01, 12.2}, {0.001, 23}, {0.5, 2.1}, {1, 1.01}};
  for (const auto& one : kCases) {
    const double count = one.density * kPositions;
    const Occupancy occupancy = Occupancy::of_random_set(kPositions, count);
    const Levels levels = Levels::choose(kPositions, occupancy, kLevelCost);
    EXPECT_LE(levels.bits(kPositions, occupancy) / count, one.most_bits) << one.density;
    EXPECT_LE(levels.bits(kPositions, occupancy), 1.01 * kPositions);
  }
}

TEST(LevelsTest, ARealSetNeedsTheBitsThatItsOccupancyForetells) {
  constexpr uint64_t kPositions = 400'000;
  Rng rng(11);
  BitSet set;
  for (uint64_t i = 0; i < kPositions; ++i)
    if (rng.chance(0.01)) set.add(i);
  Occupancy occupancy;
  occupancy.add(set);
  const Levels levels = Levels::choose(kPositions, occupancy, 0);
  ASSERT_GT(levels.shifts.size(), 1u);
  double bits = 0;
  std::vector<std::vector<uint64_t>> blocks(levels.shifts.size());
  std::vector<Level> all;
  for (size_t l = 0; l < levels.shifts.size(); ++l) {
    all.push_back(l == 0 ? Level(kPositions, levels.shifts[0])
                         : Level(all[l - 1], blocks[l - 1], levels.shifts[l]));
    bits += static_cast<double>(all[l].bits());
    std::vector<uint64_t> words(words_for(all[l].bits()));
    all[l].write(set, words.data());
    ASSERT_TRUE(all[l].read(words.data(), &blocks[l]));
  }
  EXPECT_EQ(bits, levels.bits(kPositions, occupancy));
}

}  // namespace
}  // namespace netsum::sparse::levels_test
