#include "src/worker/share_balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace netsum::share_balancer_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

std::vector<double> shares(const ShareBalancer& balancer) {
  const auto weights = balancer.weights();
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> result;
  for (const uint32_t weight : weights) result.push_back(weight / sum);
  return result;
}

// A network in which stripe i needs cost[i] ns for each of its chunks and nothing else limits it. As in the simulator, a
// stripe is held back for almost all of the time if another one needs only a little longer.
class Network {
 public:
  explicit Network(std::vector<double> cost) : cost_(std::move(cost)) {}

  double ns_per_chunk(const std::vector<double>& shares) const {
    double worst = 0;
    for (size_t i = 0; i < shares.size(); ++i) worst = std::max(worst, shares[i] * cost_[i]);
    return worst;
  }
  std::vector<int32_t> sums(const ShareBalancer& balancer, int ranks) const {
    const std::vector<double> now = shares(balancer);
    const double worst = ns_per_chunk(now);
    constexpr int64_t kActiveUs = 1'000'000;
    std::vector<int64_t> held_us;
    for (size_t i = 0; i < now.size(); ++i) {
      const double spare = 1 - now[i] * cost_[i] / worst;
      held_us.push_back(static_cast<int64_t>(std::min(0.95, spare * 20) * kActiveUs));
    }
    std::vector<int32_t> sums =
        ShareBalancer::measurement(held_us, std::vector<int64_t>(held_us.size(), kActiveUs));
    for (int32_t& sum : sums) sum *= ranks;
    return sums;
  }
  double optimum() const {
    double rates = 0;
    for (const double cost : cost_) rates += 1 / cost;
    return 1 / rates;
  }

 private:
  const std::vector<double> cost_;
};

TEST(ShareBalancer, AMeasurementSaysForWhichPartOfTheTimeAStripeIsHeldBack) {
  const std::vector<int64_t> held_us = {0, 250, 1000, 1001};
  const auto measurement = [&](std::vector<int64_t> active_us) {
    return ShareBalancer::measurement(held_us, active_us);
  };
  EXPECT_THAT(measurement({1000, 1000, 1000, 1000}), ElementsAre(0, 250, 1000, 1000, 1));
  EXPECT_THAT(measurement({1000, 500, 4000, 2002}), ElementsAre(0, 500, 250, 500, 1)) << "by different cores";
  EXPECT_THAT(measurement({0, 0, 0, 0}), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(measurement({1000, 1000, 0, 1000}), ElementsAre(0, 0, 0, 0, 0)) << "one core has nothing";
}

TEST(ShareBalancer, RanksThatHaveMeasuredNothingChangeNothing) {
  const std::vector<uint32_t> weights = {3, 1};
  ShareBalancer balancer(weights);
  EXPECT_FALSE(balancer.take(std::vector<int32_t>(3)));
  EXPECT_DOUBLE_EQ(shares(balancer)[0], 0.75);
}

TEST(ShareBalancer, ABalancedJobKeepsItsWeights) {
  const std::vector<uint32_t> weights = {3, 1, 1};
  ShareBalancer balancer(weights);
  const auto before = shares(balancer);
  for (const std::vector<int32_t>& held :
       {std::vector<int32_t>{0, 0, 0}, {950, 950, 950}, {450, 100, 770}, {310, 750, 0}}) {
    std::vector<int32_t> sums = held;
    sums.push_back(1);
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(balancer.take(sums));
  }
  EXPECT_EQ(shares(balancer), before);
}

// Of two trees, the slow one is never held back, and the other one less, the nearer they are.
TEST(ShareBalancer, ASmallerDifferenceOfTreesIsClear) {
  const std::vector<uint32_t> weights = {1, 1};
  for (const auto& [held, changes] : {std::pair(std::vector<int32_t>{0, 350, 1}, true),
                                      {{50, 350, 1}, true},
                                      {{0, 349, 1}, false},
                                      {{51, 350, 1}, false}}) {
    ShareBalancer balancer(weights, true), of_stars(weights);
    EXPECT_FALSE(balancer.take(held));
    EXPECT_EQ(balancer.tries(), changes);
    EXPECT_EQ(balancer.take(held), changes);
    EXPECT_EQ(shares(balancer)[0] < 0.5, changes);
    EXPECT_FALSE(of_stars.take(held) || of_stars.take(held) || of_stars.tries());
  }
}

TEST(ShareBalancer, WrongSharesConverge) {
  struct Case {
    std::vector<double> cost;
    std::vector<uint32_t> weights;
  };
  for (const Case& one : {
           Case{{1000, 1000}, {1, 1}},
           Case{{2000, 1000, 1000, 1000}, {1, 1, 1, 1}},  // one place is half as fast as planned
           Case{{500, 1000, 1000, 1000}, {1, 1, 1, 1}},   // and one twice
           Case{{10'000, 1000, 1000}, {5, 3, 2}},
           Case{{1000, 1000, 1000, 1000, 1000}, {1, 1, 1, 1, 3}},
       }) {
    const Network network(one.cost);
    ShareBalancer balancer(one.weights);
    for (int period = 0; period < 150; ++period) balancer.take(network.sums(balancer, 7));
    EXPECT_LT(network.ns_per_chunk(shares(balancer)), network.optimum() * 1.15)
        << ::testing::PrintToString(one.cost);
    EXPECT_THAT(balancer.weights(), Each(Ge(1u)));
  }
}

TEST(ShareBalancer, StepsGrowAndShrink) {
  const std::vector<uint32_t> weights = {1, 1, 1, 1, 1};
  ShareBalancer balancer(weights);
  const auto change = [&](const std::vector<int32_t>& sums) {
    const double before = shares(balancer)[0] / shares(balancer)[1];
    EXPECT_TRUE(balancer.take(sums));
    return shares(balancer)[0] / shares(balancer)[1] / before;
  };
  const std::vector<int32_t> too_large = {0, 900, 900, 900, 900, 1}, too_small = {900, 0, 0, 0, 0, 1};
  EXPECT_FALSE(balancer.take(too_large)) << "once may be chance";
  EXPECT_NEAR(change(too_large), 1 - 16.0 / 256, 0.01);
  EXPECT_NEAR(change(too_large), 1 - 24.0 / 256, 0.01);
  EXPECT_NEAR(change(too_large), 1 - 36.0 / 256, 0.01);
  EXPECT_FALSE(balancer.take(too_small));
  EXPECT_NEAR(change(too_small), 1 + 18.0 / 256, 0.01);
  EXPECT_FALSE(balancer.take(too_large));
  EXPECT_NEAR(change(too_large), 1 - 9.0 / 256, 0.01);
}

TEST(ShareBalancer, AStripeWithoutItsShareKeepsItsWeightAndHidesNoOther) {
  const std::vector<uint32_t> weights = {4, 1, 1, 1, 1};
  ShareBalancer balancer(weights);
  const std::vector<int32_t> sums = {ShareBalancer::kNotMeasured, 0, 1800, 1800, 1800, 2};
  EXPECT_THAT(balancer.holding_back(sums), ElementsAre(false, true, false, false, false));
  EXPECT_FALSE(balancer.take(sums));
  EXPECT_TRUE(balancer.take(sums));
  EXPECT_NEAR(shares(balancer)[0] / shares(balancer)[2], 4, 0.01);
  EXPECT_LT(shares(balancer)[1], 0.95 * shares(balancer)[2]);
  EXPECT_THAT(balancer.holding_back(std::vector<int32_t>{0, 900, 900, 900, 900, 1}),
              ElementsAre(true, false, false, false, false));
  EXPECT_THAT(balancer.holding_back(std::vector<int32_t>{0, 500, 500, 500, 500, 1}), Each(false))
      << "not clear";
  EXPECT_THAT(balancer.holding_back(std::vector<int32_t>{0, 0, 0, 0, 0, 0}), Each(false))
      << "nothing measured";
}

TEST(ShareBalancer, AWeightNeverBecomesZero) {
  const std::vector<uint32_t> weights = {1, 1};
  ShareBalancer balancer(weights);
  for (int i = 0; i < 200; ++i) balancer.take(std::vector<int32_t>{0, 950, 1});
  EXPECT_GE(balancer.weights()[0], 1u);
  EXPECT_LT(shares(balancer)[0], 0.001);
}

}  // namespace
}  // namespace netsum::share_balancer_test
