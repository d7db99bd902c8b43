#include "src/plan/interleave.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "src/base/rng.h"

namespace netsum::plan::interleave_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Jobs = std::vector<PeriodicJob>;
using Offsets = std::vector<int64_t>;

PeriodicJob job(int64_t period, int64_t busy, std::vector<size_t> links = {0}, int64_t rate = kUnlimited) {
  return {.name = "j", .period = period, .busy = busy, .links = std::move(links), .rate = rate};
}

// By the definition, one unit of time after the other.
Fraction naive_score(const Jobs& jobs, const Offsets& offsets, size_t link, int64_t rate) {
  int64_t common = 1, excess = 0;
  for (const PeriodicJob& each : jobs) common = std::lcm(common, each.period);
  for (int64_t time = 0; time < common; ++time) {
    int64_t demand = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const bool uses = std::count(jobs[i].links.begin(), jobs[i].links.end(), link) > 0;
      const int64_t phase = (time - offsets[i] + 1000 * jobs[i].period) % jobs[i].period;
      if (uses && phase < jobs[i].busy) demand += std::min(jobs[i].rate, rate);
    }
    excess += std::max<int64_t>(0, demand - rate);
  }
  return Fraction(1) - Fraction(excess, rate * common);
}

// The largest sum of the scores of all links, over all offsets.
Fraction best_sum(const Jobs& jobs, const std::vector<int64_t>& rates) {
  Offsets offsets(jobs.size());
  Fraction best = -1000;
  for (;;) {
    Fraction sum = 0;
    for (size_t link = 0; link < rates.size(); ++link)
      sum = sum + naive_score(jobs, offsets, link, rates[link]);
    best = std::max(best, sum);
    size_t at = 1;  // the first one stays at 0
    while (at < jobs.size() && ++offsets[at] == jobs[at].period) offsets[at++] = 0;
    if (at >= jobs.size()) return best;
  }
}

Fraction found_sum(const Jobs& jobs, const std::vector<int64_t>& rates) {
  const Result<Interleaving> found = interleave(jobs, rates);
  EXPECT_TRUE(found.ok()) << found.status().message();
  Fraction sum = 0;
  for (size_t link = 0; link < rates.size(); ++link) {
    EXPECT_EQ(found->scores[link].after, naive_score(jobs, found->offsets, link, rates[link]));
    EXPECT_EQ(found->scores[link].before, naive_score(jobs, Offsets(jobs.size()), link, rates[link]));
    EXPECT_TRUE(found->scores[link].exact);
    sum = sum + found->scores[link].after;
  }
  return sum;
}

TEST(Interleave, TwoJobsThatFit) {
  const Jobs jobs = {job(100, 40), job(100, 40)};
  EXPECT_EQ(link_score(jobs, Offsets{0, 0}, 0, 1), Fraction(3, 5));
  EXPECT_EQ(link_score(jobs, Offsets{0, 40}, 0, 1), Fraction(1));
  EXPECT_EQ(link_score(jobs, Offsets{0, 30}, 0, 1), Fraction(9, 10));
  const Result<Interleaving> found = interleave(jobs, std::vector<int64_t>{1});
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->offsets, ElementsAre(0, 50));  // between 40 and 60: the middle
  EXPECT_EQ(found->scores[0].before, Fraction(3, 5));
  EXPECT_EQ(found->scores[0].after, Fraction(1));
  EXPECT_TRUE(found->scores[0].exact);
}

TEST(Interleave, TwoJobsThatDoNotFit) {
  const Jobs jobs = {job(100, 60), job(100, 60)};
  EXPECT_EQ(link_score(jobs, Offsets{0, 0}, 0, 1), Fraction(2, 5));
  EXPECT_EQ(link_score(jobs, Offsets{0, 40}, 0, 1), Fraction(4, 5));
  EXPECT_EQ(interleave(jobs, std::vector<int64_t>{1})->scores[0].after, Fraction(4, 5));
}

TEST(Interleave, PeriodsForWhichNoShiftHelps) {
  const Jobs jobs = {job(40, 20), job(60, 30)};
  for (int64_t shift = 0; shift < 60; ++shift)
    EXPECT_EQ(link_score(jobs, Offsets{0, shift}, 0, 1), Fraction(3, 4)) << shift;
  const Result<Interleaving> found = interleave(jobs, std::vector<int64_t>{1});
  EXPECT_EQ(found->scores[0].before, Fraction(3, 4));
  EXPECT_EQ(found->scores[0].after, Fraction(3, 4));
}

TEST(Interleave, TwoJobsAvoidEachOtherIfTheirTimesFitTheCommonDivisor) {
  Rng rng(20261129);
  int avoid = 0;
  for (int run = 0; run < 300; ++run) {
    const int64_t unit = 1 + static_cast<int64_t>(rng.below(6));
    const auto draw = [&](int64_t period) {
      return job(period,
                 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(std::min<int64_t>(period, 5)))));
    };
    const Jobs jobs = {draw(unit * (1 + static_cast<int64_t>(rng.below(6)))),
                       draw(unit * (1 + static_cast<int64_t>(rng.below(6))))};
    const bool possible = best_sum(jobs, {1}) == Fraction(1);
    EXPECT_EQ(can_avoid(jobs[0], jobs[1]), possible) << "run " << run;
    EXPECT_EQ(interleave(jobs, std::vector<int64_t>{1})->scores[0].after == Fraction(1), possible)
        << "run " << run;
    avoid += possible;
  }
  EXPECT_GT(avoid, 50);
  EXPECT_LT(avoid, 250);
}

TEST(Interleave, ThreeJobsOnALinkAgainstAllOffsets) {
  Rng rng(7);
  for (int run = 0; run < 60; ++run) {
    const int64_t rate = 4;
    Jobs jobs;
    for (int i = 0; i < 3; ++i) {
      const int64_t period = std::vector<int64_t>{4, 6, 8, 9, 12}[rng.below(5)];
      jobs.push_back(job(period, 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(period))), {0},
                         1 + static_cast<int64_t>(rng.below(4))));
    }
    ASSERT_EQ(found_sum(jobs, {rate}), best_sum(jobs, {rate})) << "run " << run;
  }
}

// Four jobs in a row, of which each link has two. Each link is as good as if it were alone.
TEST(Interleave, ATreeOfLinks) {
  const Jobs jobs = {job(100, 40, {0}), job(100, 50, {0, 1}), job(50, 10, {1, 2}), job(100, 20, {2})};
  const std::vector<int64_t> rates = {1, 1, 1};
  const Result<Interleaving> found = interleave(jobs, rates);
  ASSERT_TRUE(found.ok());
  for (size_t link = 0; link < 3; ++link) {
    const Jobs pair = {job(jobs[link].period, jobs[link].busy),
                       job(jobs[link + 1].period, jobs[link + 1].busy)};
    EXPECT_EQ(found->scores[link].after, best_sum(pair, {1})) << link;
    EXPECT_EQ(found->scores[link].after, naive_score(jobs, found->offsets, link, 1)) << link;
    EXPECT_TRUE(found->scores[link].exact);
  }
}

TEST(Interleave, CyclesAreSearchedTogether) {
  Rng rng(11);
  for (int run = 0; run < 40; ++run) {
    const auto draw = [&](std::vector<size_t> links) {
      const int64_t period = std::vector<int64_t>{6, 8, 12}[rng.below(3)];
      return job(period, 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(period))),
                 std::move(links));
    };
    // A triangle; and two jobs that share two links of different rates.
    const Jobs triangle = {draw({0, 2}), draw({0, 1}), draw({1, 2})};
    ASSERT_EQ(found_sum(triangle, {1, 5, 2}), best_sum(triangle, {1, 5, 2})) << "run " << run;
    Jobs twice = {draw({0, 1}), draw({0, 1})};
    for (PeriodicJob& each : twice) each.rate = 2;
    ASSERT_EQ(found_sum(twice, {2, 3}), best_sum(twice, {2, 3})) << "run " << run;
  }
}

TEST(Interleave, ManyJobsFillALink) {
  Jobs jobs;
  for (int i = 0; i < 8; ++i) jobs.push_back(job(1000, 125));
  const Result<Interleaving> found = interleave(jobs, std::vector<int64_t>{1});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->scores[0].before, Fraction(1, 8));
  EXPECT_EQ(found->scores[0].after, Fraction(1));
  EXPECT_FALSE(found->scores[0].exact);  // not proved by enumeration
  EXPECT_EQ(std::set<int64_t>(found->offsets.begin(), found->offsets.end()).size(), 8u);
}

TEST(Interleave, JobsThatShareNothingStay) {
  const Result<Interleaving> found =
      interleave(Jobs{job(7, 7, {0}), job(9, 9, {1}), job(11, 3, {})}, std::vector<int64_t>{1, 1, 1});
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->offsets, ElementsAre(0, 0, 0));
  for (const Interleaving::Score& score : found->scores) EXPECT_EQ(score.after, Fraction(1));
}

TEST(Interleave, WrongJobs) {
  const std::vector<int64_t> rates = {10};
  const auto message = [&](PeriodicJob wrong) {
    wrong.line = 3;
    const Result<Interleaving> found = interleave(Jobs{job(5, 1), wrong}, rates);
    return found.ok() ? "ok" : found.status().message();
  };
  EXPECT_THAT(message(job(0, 1)), HasSubstr("line 3: job 'j' has no period"));
  EXPECT_THAT(message(job(10, 0)), HasSubstr("busy"));
  EXPECT_THAT(message(job(10, 11)), HasSubstr("busy"));
  EXPECT_THAT(message(job(10, 1, {0}, 11)), HasSubstr("faster than one of its links"));
  EXPECT_THAT(message(job(10, 1, {0}, 0)), HasSubstr("faster than one of its links"));
  const Result<Interleaving> huge =
      interleave(Jobs{job(999'999'937, 1), job(999'999'929, 1), job(999'999'893, 1)}, rates);
  EXPECT_EQ(huge.status().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(huge.status().message(), HasSubstr("round them"));
}

TEST(Interleave, WorkPerCommunicationOrdersJobs) {
  Jobs jobs = {job(100, 40), job(100, 10), job(50, 10)};
  jobs[0].work = 60;
  jobs[1].work = 90;
  jobs[2].work = 40;
  EXPECT_THAT(by_intensity(jobs), ElementsAre(1, 2, 0));
  EXPECT_EQ(intensity(jobs[0]), Fraction(3, 2));
}

}  // namespace
}  // namespace netsum::plan::interleave_test
