#include "src/worker/link_balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"

namespace netsum {
namespace {

using ::testing::Each;

constexpr uint64_t kSums = 300;  // of all shards in a period
constexpr size_t kNobody = SIZE_MAX;
constexpr double kUsualNs = 10'000;  // for a chunk, if each link carried it once

// Ranks that sum by themselves, each with a link of this part of the usual rate. Time is what their slowest link needs; noise is
// up to 1 %. Those whose links are the slowest, nearly, are the last in turns.
class Job {
 public:
  Job(size_t ranks, uint64_t seed) : rates(ranks, 1.0), balancer(ranks), rng_(seed) {}

  double share(size_t rank) const {
    double sum = 0;
    for (size_t other = 0; other < rates.size(); ++other) sum += weight(other);
    return weight(rank) / sum;
  }
  double time(size_t rank) const {
    return (1 + (static_cast<double>(rates.size()) - 2) * share(rank)) / rates[rank];
  }
  double time() const {
    double longest = 0;
    for (size_t rank = 0; rank < rates.size(); ++rank) longest = std::max(longest, time(rank));
    return longest;
  }
  double bound() const {
    double sum = 0, slowest = 1;
    for (const double rate : rates) {
      sum += rate;
      slowest = std::min(slowest, rate);
    }
    return std::max(1 / slowest, 2 * (static_cast<double>(rates.size()) - 1) / sum);
  }
  bool is_whole() const {
    for (size_t rank = 0; rank < rates.size(); ++rank)
      if (balancer.part(rank) != LinkBalancer::kWhole) return false;
    return true;
  }

  bool period() {
    const size_t ranks = rates.size();
    std::vector<int32_t> last(ranks), own_share(ranks), ns(ranks);
    std::vector<size_t> slowest;
    for (size_t rank = 0; rank < ranks; ++rank) {
      own_share[rank] = static_cast<int32_t>(share(rank) * 1000);
      if (rank == straggler || (straggler == kNobody && time(rank) > 0.98 * time())) slowest.push_back(rank);
      if (rank == often_last && time(rank) > 0.98 * time()) slowest.insert(slowest.end(), 3 * ranks, rank);
    }
    for (size_t shard = 0; shard < ranks; ++shard) {
      for (auto sums = static_cast<uint64_t>(share(shard) * kSums); sums > 0; --sums) {
        size_t rank = rng_.chance(0.9) ? slowest[rng_.below(slowest.size())] : rng_.below(ranks);
        while (rank == shard) rank = rng_.below(ranks);
        ++last[rank];
      }
    }
    for (int32_t& each : ns) each = static_cast<int32_t>(time() * kUsualNs * (1 + 0.01 * rng_.unit()));
    for (size_t rank = 0; rank < ranks && straggler != kNobody; ++rank)
      if (rank != straggler) ns[rank] += static_cast<int32_t>(kUsualNs);
    const bool changed = balancer.take(last, own_share, ns);
    changes += changed ? 1 : 0;
    return changed;
  }

  std::vector<double> rates;
  LinkBalancer balancer;
  int changes = 0;
  size_t straggler = kNobody;
  size_t often_last = kNobody;  // though its link is as fast as the others'

 private:
  double weight(size_t rank) const {
    return std::max(0.0001, balancer.part(rank) * 1.0 / LinkBalancer::kWhole);
  }

  Rng rng_;
};

constexpr int kWarmUp = 5;

void run(Job* job, int periods) {
  for (int i = 0; i < periods; ++i) job->period();
}

std::vector<uint64_t> seeds() {
  std::vector<uint64_t> all(soak() ? 50 : 2);
  std::iota(all.begin(), all.end(), uint64_t{1});
  return all;
}

TEST(LinkBalancer, EqualRanksKeepTheirShares) {
  for (const size_t ranks : {3u, 4u, 8u, 64u}) {
    Job job(ranks, ranks);
    run(&job, 300);
    EXPECT_EQ(job.changes, 0) << ranks;
  }
}

TEST(LinkBalancer, OneOfThemMayOftenBeTheLast) {
  Job job(8, 8);
  job.often_last = 3;
  run(&job, 300);
  EXPECT_EQ(job.changes, 0);
}

TEST(LinkBalancer, SharesLeaveASlowLinkAndComeBack) {
  for (const uint64_t seed : seeds()) {
    for (const size_t ranks : {3u, 4u, 8u, 16u}) {
      for (const double rate : {0.75, 0.5, 0.25}) {
        const std::string which = std::to_string(ranks) + " ranks, one at " + std::to_string(rate) +
                                  "; seed " + std::to_string(seed);
        Job job(ranks, seed);
        run(&job, kWarmUp);
        job.rates[seed % ranks] = rate;
        job.period();
        EXPECT_LT(job.time(), 1.1 * job.bound()) << which << ": at once, as the slowdown is clear";
        run(&job, 40);
        EXPECT_LT(job.time(), 1.1 * job.bound()) << which;
        job.rates[seed % ranks] = 1;
        run(&job, 80);  // pauses have grown meanwhile
        EXPECT_TRUE(job.is_whole()) << which;
        EXPECT_LT(job.changes, 20) << which;
      }
    }
  }
}

TEST(LinkBalancer, SlowFirstOperationsAreNotUsual) {
  Job job(8, 1);
  job.balancer.take(std::vector<int32_t>(8, 100), std::vector<int32_t>(8, 125),
                    std::vector<int32_t>(8, 90'000));
  run(&job, 2);
  job.rates[6] = 0.75;
  job.period();
  EXPECT_LT(job.time(), 1.1 * job.bound());
}

TEST(LinkBalancer, ALinkThatBecomesSlowWithinAPeriodIsFound) {
  LinkBalancer balancer(8);
  const auto take = [&](std::vector<int32_t> last, int32_t ns) {
    balancer.take(last, std::vector<int32_t>(8, 125), std::vector<int32_t>(8, ns));
  };
  take({100, 100, 100, 100, 100, 100, 100, 100}, 200'000);
  take({10, 10, 10, 400, 10, 400, 10, 10}, 500'000);  // 3 has become slow, 5 was often the last before
  EXPECT_EQ(balancer.part(3), 0u);
  take({10, 10, 10, 800, 10, 10, 10, 10}, 490'000);
  EXPECT_EQ(balancer.part(3), 0u);
  EXPECT_EQ(balancer.part(5), LinkBalancer::kWhole);
}

TEST(LinkBalancer, SharesLeaveTwoSlowLinks) {
  for (const uint64_t seed : seeds()) {
    for (const double second : {0.5, 0.6, 0.75}) {
      Job job(8, seed);
      run(&job, kWarmUp);
      job.rates[seed % 8] = 0.5;
      job.rates[(seed + 3) % 8] = second;
      run(&job, 3);
      EXPECT_LT(job.time(), 1.1 * job.bound()) << second << "; seed " << seed;
      run(&job, 40);
      EXPECT_LT(job.time(), 1.1 * job.bound()) << second << "; seed " << seed;
    }
  }
}

TEST(LinkBalancer, ALinkThatIsSlowFromTheBeginningIsFound) {
  for (const uint64_t seed : seeds()) {
    Job job(8, seed);
    job.rates[5] = 0.5;
    run(&job, kWarmUp + 3);
    EXPECT_LT(job.time(), 1.1 * job.bound()) << seed;
  }
}

TEST(LinkBalancer, ARankThatBeginsLateKeepsItsShareButForFewTrials) {
  for (const uint64_t seed : seeds()) {
    Job job(8, seed);
    run(&job, kWarmUp);
    job.straggler = seed % 8;
    int with_less = 0;
    const int periods = soak() ? 1000 : 300;
    for (int i = 0; i < periods; ++i) {
      job.period();
      with_less += job.is_whole() ? 0 : 1;
      EXPECT_LT(job.time(), 1.07 * job.bound());
    }
    EXPECT_LE(with_less, 20) << seed;
  }
}

TEST(LinkBalancer, ALinkThatFlapsMovesSharesLessAndLess) {
  for (const uint64_t seed : seeds()) {
    for (const int every : soak() ? std::vector<int>{1, 2, 3, 7} : std::vector<int>{1, 3}) {
      Job job(8, seed);
      run(&job, kWarmUp);
      std::vector<int> changes;
      for (int part = 0; part < 4; ++part) {
        const int before = job.changes;
        for (int i = 0; i < 250; ++i) {
          if (i % every == 0) job.rates[2] = job.rates[2] < 1 ? 1 : 0.5;
          job.period();
        }
        changes.push_back(job.changes - before);
      }
      EXPECT_LE(changes.front(), 30) << every << "; seed " << seed;
      EXPECT_LE(changes.back(), 10) << every << "; seed " << seed;
    }
  }
}

TEST(LinkBalancer, RanksThatHaveMeasuredNothingChangeNothing) {
  LinkBalancer balancer(4);
  const std::vector<int32_t> last = {900, 30, 30, 40}, own_share(4, 250);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(balancer.take(last, own_share, std::vector<int32_t>{0, 1, 1, 1}));
}

}  // namespace
}  // namespace netsum
