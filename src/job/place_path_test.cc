#include "src/job/place_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum::place_path_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlaceInfo place(uint64_t id) {
  PlaceInfo place;
  place.set_id(id);
  place.set_address("10.0.0." + std::to_string(id) + ":5151");
  return place;
}

// From the topmost one down.
PlaceInfo path(std::initializer_list<uint64_t> ids) {
  PlaceInfo top;
  PlaceInfo* lowest = nullptr;
  for (const uint64_t id : ids) {
    lowest = lowest == nullptr ? &top : lowest->add_below();
    *lowest = place(id);
  }
  return top;
}

TEST(PlacePath, ItsLowestIsWhereTheMemberJoins) {
  PlaceInfo three = path({1, 2, 3});
  EXPECT_EQ(lowest_of(&three)->id(), 3u);
  PlaceInfo one = path({1});
  EXPECT_EQ(lowest_of(&one)->id(), 1u);
}

TEST(PlacePath, OwnPlaceTakesTheAddressThatWasAskedAndTheSenderBelow) {
  PlaceInfo asked;
  EXPECT_EQ(path_from(place(1), asked).SerializeAsString(), place(1).SerializeAsString());
  asked.set_address("spine:5151");
  *asked.add_below() = place(2);
  const PlaceInfo own = path_from(place(1), asked);
  EXPECT_EQ(own.id(), 1u);
  EXPECT_EQ(own.address(), "spine:5151");
  ASSERT_EQ(own.below_size(), 1);
  EXPECT_EQ(own.below(0).id(), 2u);
}

TEST(PlacePath, ThePathsOfAllRanksMakeATree) {
  PlaceInfo tree = top_of(path({1, 2, 3}));
  for (const auto& one :
       {path({1, 2, 3}), path({1, 2, 3}), path({1, 2, 4}), path({1, 5}), path({1}), path({1, 2})})
    EXPECT_TRUE(add_rank(one, &tree));
  EXPECT_EQ(tree.ranks(), 1u);
  ASSERT_EQ(tree.below_size(), 2);
  EXPECT_EQ(tree.below(0).id(), 2u);
  EXPECT_EQ(tree.below(0).ranks(), 1u);
  ASSERT_EQ(tree.below(0).below_size(), 2);
  EXPECT_EQ(tree.below(0).below(0).ranks(), 2u);
  EXPECT_EQ(tree.below(0).below(1).ranks(), 1u);
  EXPECT_EQ(tree.below(1).ranks(), 1u);
}

TEST(PlacePath, ARankBelowAnotherAggregatorIsNotAdded) {
  PlaceInfo tree = top_of(path({1, 2}));
  const std::string before = tree.SerializeAsString();
  EXPECT_FALSE(add_rank(path({2}), &tree));
  EXPECT_EQ(tree.SerializeAsString(), before);
}

TEST(PlacePath, RefusesTreesAndBadAddresses) {
  EXPECT_TRUE(check_path(path({1, 2, 3}), "rank 0").ok());
  PlaceInfo tree = path({1, 2});
  *tree.mutable_below(0)->add_below() = place(3);
  *tree.mutable_below(0)->add_below() = place(4);
  EXPECT_THAT(check_path(tree, "rank 0").message(),
              AllOf(HasSubstr("rank 0 names 2 aggregators below 10.0.0.2:5151")));
  PlaceInfo bad = path({1, 2});
  bad.mutable_below(0)->set_address("a\nb");
  EXPECT_THAT(check_path(bad, "rank 0").message(), HasSubstr("not printable"));
}

}  // namespace
}  // namespace netsum::place_path_test
