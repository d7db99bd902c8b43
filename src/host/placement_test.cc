#include "src/host/placement.h"

#include <gtest/gtest.h>

namespace netsum {
namespace {

TEST(Placement, ThisHostHasAName) {
  EXPECT_FALSE(this_host().empty());
  EXPECT_EQ(this_host(), this_host());
}

TEST(Placement, RanksOfEqualNamesShareAHost) {
  const std::vector<std::string> names = {"a", "b", "a", "b", "a"};
  const Placement placement = place(names, 3);
  EXPECT_EQ(placement.hosts, (std::vector<std::vector<int>>{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(placement.host, 1u);
  EXPECT_EQ(placement.local, 1u);
  EXPECT_EQ(placement.owners, 2u);  // the smaller host's
  EXPECT_TRUE(placement.shares_memory());
  EXPECT_TRUE(placement.is_owner());
  EXPECT_EQ(placement.counterparts(), (std::vector<int>{2, 3}));
  EXPECT_FALSE(place(names, 4).is_owner());
}

TEST(Placement, RanksWithoutANameShareWithNobody) {
  const std::vector<std::string> names = {"", "", "a"};
  EXPECT_FALSE(place(names, 0).shares_memory());
  EXPECT_EQ(place(names, 1).hosts.size(), 3u);
}

}  // namespace
}  // namespace netsum
