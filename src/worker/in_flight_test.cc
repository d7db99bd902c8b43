#include "src/worker/in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "src/base/rng.h"

namespace netsum::in_flight_test {
namespace {

TEST(InFlight, TheNearestDeadlineIsKnownHoweverOperationsBeginAndEnd) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    InFlight<uint64_t> in_flight;
    std::map<uint64_t, int64_t> expected;  // by place
    for (int i = 0; i < 2'000; ++i) {
      if (expected.empty() || rng.below(100) < (i < 1'000 ? 60u : 40u)) {
        const uint64_t place = in_flight.next_place();
        const auto deadline = static_cast<int64_t>(rng.below(50));
        in_flight.add(place, deadline);
        expected[place] = deadline;
      } else {
        const auto which =
            std::next(expected.begin(), static_cast<std::ptrdiff_t>(rng.below(expected.size())));
        ASSERT_EQ(in_flight.at(which->first), which->first);
        ASSERT_EQ(in_flight.end(which->first), which->first);
        expected.erase(which);
      }
      ASSERT_EQ(in_flight.size(), expected.size());
      ASSERT_EQ(in_flight.empty(), expected.empty());
      int64_t nearest = INT64_MAX;
      for (const auto& [place, deadline] : expected) nearest = std::min(nearest, deadline);
      ASSERT_EQ(in_flight.next_deadline_us(), nearest);
      if (expected.empty()) continue;
      ASSERT_EQ(in_flight.front(), expected.begin()->first);
      ASSERT_EQ(in_flight.due(nearest - 1), nullptr);
      ASSERT_NE(in_flight.due(nearest), nullptr);
      ASSERT_EQ(expected[*in_flight.due(nearest)], nearest);
    }
    std::vector<uint64_t> places, visited;
    for (const auto& [place, deadline] : expected) places.push_back(place);
    in_flight.for_each([&](uint64_t place) { visited.push_back(place); });
    EXPECT_EQ(visited, places) << "in the order in which they began";
  }
}

// With an order of deadlines that is the worst for a heap.
TEST(InFlight, WhatAnOperationCostsHardlyDependsOnHowManyThereAre) {
  const auto visits_for_each = [](uint64_t count) {
    InFlight<uint64_t> in_flight;
    for (uint64_t i = 0; i < count; ++i) in_flight.add(i, -static_cast<int64_t>(i));
    for (uint64_t i = 0; i < count; ++i) in_flight.end(i % 2 == 0 ? count / 2 + i / 2 : i / 2);
    EXPECT_TRUE(in_flight.empty());
    return static_cast<double>(in_flight.visited()) / static_cast<double>(count);
  };
  EXPECT_LT(visits_for_each(65'536), 4 * visits_for_each(64)) << "a heap of 16 levels instead of 6";
}

}  // namespace
}  // namespace netsum::in_flight_test
