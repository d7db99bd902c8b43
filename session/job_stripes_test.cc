#include "session/job_stripes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

namespace netsum::job_stripes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;

// An aggregator's cores, and the shards of `shards` ranks.
Membership membership(size_t cores, size_t shards, std::initializer_list<uint32_t> weights = {}) {
  Membership membership;
  for (size_t core = 0; core < cores; ++core) membership.stripes.push_back({"10.0.0.9:1", kNoRank, false, 0});
  for (size_t rank = 0; rank < shards; ++rank)
    membership.stripes.push_back({"10.0.0.1:1", static_cast<int>(rank), true, 0});
  for (const uint32_t weight : weights) membership.plan.add_weights(weight);
  return membership;
}

TEST(JobStripes, ShardsComeAfterAllAggregators) {
  const Membership first = membership(2, 2, {5, 0, 3, 1, 2}), second = membership(1, 0);
  const Membership* all[] = {&first, &second};
  EXPECT_THAT(*job_stripes(all),
              ElementsAre(FieldsAre(0, 0, 5), FieldsAre(1, 0, 3), FieldsAre(0, 2, 1), FieldsAre(0, 3, 2)))
      << "a stripe without a share is left out";
}

TEST(JobStripes, WithoutAPlanAllAreEqual) {
  const Membership first = membership(1, 0), second = membership(2, 0);
  const Membership* all[] = {&first, &second};
  EXPECT_THAT(*job_stripes(all), ElementsAre(FieldsAre(0, 0, 1), FieldsAre(1, 0, 1), FieldsAre(1, 1, 1)));
}

TEST(JobStripes, RefusesAPlanOfOtherStripes) {
  const Membership first = membership(2, 1, {1, 1}), none = membership(1, 1, {0, 0});
  const Membership* all[] = {&first};
  EXPECT_THAT(job_stripes(all).status().message(),
              HasSubstr("2 shares, and its aggregators and shards have 3"));
  const Membership* nothing[] = {&none};
  EXPECT_THAT(job_stripes(nothing).status().message(), HasSubstr("gives no stripe a share"));
}

}  // namespace
}  // namespace netsum::job_stripes_test
