#include "src/worker/loss_balancer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace netsum::loss_balancer_test {
namespace {

constexpr double kPackets = 32'768;  // of all stripes in a period

// Stripes that sum a job's chunks, each with a loss. Chunks take longer by the share that is lost, and where too large a share has
// too slow a link. Noise is up to 1 %.
struct Job {
  explicit Job(size_t stripes, uint64_t seed = 1)
      : loss(stripes), rate(stripes, 1), balancer(stripes), random(seed) {}

  double share(size_t stripe) const {
    double all = 0;
    for (size_t i = 0; i < loss.size(); ++i) all += part(i) * rate[i];
    return std::max(1e-4, part(stripe) * rate[stripe] / all);
  }
  double part(size_t stripe) const {
    return static_cast<double>(balancer.part(stripe)) / LossBalancer::kWhole;
  }
  bool is_away(size_t stripe) const { return balancer.part(stripe) == 0; }
  double ns() const {
    double longest = 0, repairs = 0;
    for (size_t i = 0; i < loss.size(); ++i) {
      longest = std::max(longest, share(i) / rate[i]);
      repairs += share(i) * loss[i] * cost_of_loss;
    }
    return 1000 * longest * static_cast<double>(links_are_limits ? 1 : 0) + 1000 * (1 + repairs);
  }
  bool period() {
    std::vector<int64_t> lost, sent;
    for (size_t i = 0; i < loss.size(); ++i) {
      sent.push_back(std::llround(kPackets * share(i)));
      lost.push_back(std::binomial_distribution<int64_t>(sent.back(), loss[i])(random));
    }
    const double noise = std::uniform_real_distribution<double>(1, 1.01)(random);
    const bool changed = balancer.take(lost, sent, std::llround(ns() * noise));
    changes += changed ? 1 : 0;
    return changed;
  }
  void periods(int count) {
    for (int i = 0; i < count; ++i) period();
  }

  std::vector<double> loss, rate;
  bool links_are_limits = false;
  double cost_of_loss = 5;
  LossBalancer balancer;
  std::mt19937_64 random;
  int changes = 0;
};

TEST(LossBalancer, ALossyStripeLosesItsShareAtOnce) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Job job(2 + seed % 7, seed);
    job.periods(5);
    EXPECT_EQ(job.changes, 0);
    const size_t bad = seed % job.loss.size();
    job.loss[bad] = 0.01;
    EXPECT_TRUE(job.period()) << "seed " << seed;
    for (size_t i = 0; i < job.loss.size(); ++i) EXPECT_EQ(job.is_away(i), i == bad);
  }
}

// Of ranks that sum by themselves: all stripes lose what one rank's link loses, the stripe of its shard ranks - 1 times as much.
TEST(LossBalancer, OfRanksTheStripeWithTheLossyLinkIsFound) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Job job(3 + seed % 6, seed);
    int periods = 0;
    const size_t bad = seed % job.loss.size();
    for (size_t i = 0; i < job.loss.size(); ++i)
      job.loss[i] = 0.05 * static_cast<double>(i == bad ? job.loss.size() - 1 : 1) /
                    static_cast<double>(job.loss.size());
    while (!job.period() && job.changes == 0 && ++periods < 4) {
    }
    for (size_t i = 0; i < job.loss.size(); ++i) EXPECT_EQ(job.is_away(i), i == bad) << "seed " << seed;
  }
}

TEST(LossBalancer, LossesThatAllHaveMoveNothing) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    for (const double loss : {0.0, 1e-5, 0.001, 0.01, 0.1}) {
      Job job(2 + seed % 7, seed);
      std::fill(job.loss.begin(), job.loss.end(), loss);
      job.periods(100);
      EXPECT_EQ(job.changes, 0) << "seed " << seed << ", loss " << loss;
    }
  }
}

// While it is away, nothing is known of it. The pauses before it is tried again double: 2, 4, ... 128 periods.
TEST(LossBalancer, TheShareIsTriedAfterGrowingPausesAndStaysAfterRepair) {
  Job job(4);
  job.loss[2] = 0.01;
  std::vector<int> away_for;
  int since = -1;
  for (int period = 0; period < 800; ++period) {
    const bool before = job.is_away(2);
    job.period();
    if (job.is_away(2) && !before) since = period;
    if (!job.is_away(2) && before) away_for.push_back(period - since);
  }
  ASSERT_GE(away_for.size(), 7u);
  for (size_t i = 1; i < away_for.size(); ++i) {
    EXPECT_GE(away_for[i] + 1, away_for[i - 1]);
    EXPECT_LE(away_for[i], 130);
  }
  EXPECT_GE(away_for.back(), 128);
  job.loss[2] = 0;
  job.periods(130);
  EXPECT_FALSE(job.is_away(2));
  const int before = job.changes;
  job.periods(1000);
  EXPECT_EQ(job.changes, before);
  // And then it is as any other.
  job.loss[2] = 0.01;
  job.period();
  EXPECT_TRUE(job.is_away(2));
  job.loss[2] = 0;
  job.periods(4);
  EXPECT_FALSE(job.is_away(2));
}

TEST(LossBalancer, APartOfTheShareShowsWhetherTheLinkIsRepaired) {
  Job job(4);
  job.loss[2] = 0.01;
  job.period();
  ASSERT_TRUE(job.is_away(2));
  std::vector<double> parts;
  for (int period = 0; period < 30; ++period) {
    if (period == 15) job.loss[2] = 0;
    job.period();
    if (parts.empty() || parts.back() != job.part(2)) parts.push_back(job.part(2));
  }
  // Twice in vain.
  EXPECT_EQ(parts, (std::vector<double>{0, 0.25, 0, 0.25, 0, 0.25, 1}));
}

TEST(LossBalancer, NothingChangesWhileAnotherChangeIsNotJudged) {
  LossBalancer balancer(2);
  const std::vector<int64_t> lost{500, 0}, sent{10'000, 10'000};
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(balancer.take(lost, sent, 1000, false));
  EXPECT_FALSE(balancer.tries());
  EXPECT_TRUE(balancer.take(lost, sent, 1000));
  EXPECT_TRUE(balancer.tries());
  EXPECT_EQ(balancer.part(0), 0u);
}

TEST(LossBalancer, SharesDoNotFollowAnEdgeThatFlaps) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Job job(8, seed);
    const int half = 1 + static_cast<int>(seed % 20);
    int late = 0;
    for (int period = 0; period < 2000; ++period) {
      job.loss[3] = period / half % 2 == 0 ? 0.02 : 0;
      const int before = job.changes;
      job.period();
      if (period >= 1000) late += job.changes - before;
    }
    EXPECT_GE(job.changes, 2) << "seed " << seed;
    EXPECT_LE(job.changes, 64) << "seed " << seed;
    EXPECT_LE(late, 27) << "seed " << seed;
  }
}

// The lossy one has the faster link: without it, chunks take four times as long.
TEST(LossBalancer, TheShareStaysWhereTheOthersAreSlower) {
  Job job(2);
  job.rate = {3, 1};
  job.links_are_limits = true;
  job.loss[0] = 0.01;
  int away = 0;
  for (int period = 0; period < 1000; ++period) {
    job.period();
    away += job.is_away(0) ? 1 : 0;
  }
  EXPECT_GE(away, 2);
  EXPECT_LE(away, 12) << "it is tried after pauses that grow";
  job.cost_of_loss = 10'000;  // so long that the slow link is better
  away = 0;
  for (int period = 0; period < 1000; ++period) {
    job.period();
    away += job.is_away(0) ? 1 : 0;
  }
  EXPECT_GT(away, 500);
}

TEST(LossBalancer, AtMostAThirdIsAwayAndNeverAll) {
  for (size_t stripes = 1; stripes <= 9; ++stripes) {
    Job job(stripes);
    for (size_t i = 0; i < stripes / 2; ++i) job.loss[i] = 0.05;
    for (int period = 0; period < 300; ++period) {
      job.period();
      size_t away = 0;
      for (size_t i = 0; i < stripes; ++i) away += job.is_away(i) ? 1 : 0;
      ASSERT_LE(away, std::max<size_t>(1, stripes / 3));
      ASSERT_LT(away, stripes);
    }
  }
}

TEST(LossBalancer, APeriodWithoutAMeasurementChangesNothing) {
  LossBalancer balancer(2);
  const std::vector<int64_t> lost{5000, 0}, sent{10'000, 10'000};
  EXPECT_FALSE(balancer.take(lost, sent, 0));
  EXPECT_TRUE(balancer.take(lost, sent, 1000));
}

}  // namespace
}  // namespace netsum::loss_balancer_test
