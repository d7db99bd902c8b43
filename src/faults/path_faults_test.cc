// Leaves and spines of plain switches: what is blamed for counts with known faults, and what trying all sets of links would blame.
#include "src/faults/path_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "src/base/soak.h"

namespace netsum::faults::path_faults_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kUsual = 1e-4;
constexpr size_t kLeaves = 4, kSpines = 2,
                 kRanks = 8;  // two ranks at each leaf; the aggregators are at leaf 0

// Links: a rank's, then those between leaves and spines. The last is the aggregator's, on all paths.
constexpr size_t kAggregatorLink = kRanks + kLeaves * kSpines, kLinks = kAggregatorLink + 1;
constexpr size_t between(size_t leaf, size_t spine) {
  return kRanks + leaf * kSpines + spine;
}

// Each rank has two stripes, whose packets take different spines.
std::vector<PathCount> paths() {
  std::vector<PathCount> all;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t spine = 0; spine < kSpines; ++spine) {
      PathCount path;
      path.links = {{rank, 1}, {kAggregatorLink, 1}};
      const size_t leaf = rank / 2;
      if (leaf != 0) path.links.insert(path.links.end(), {{between(leaf, spine), 1}, {between(0, spine), 1}});
      all.push_back(path);
    }
  }
  return all;
}

std::vector<PathCount> counted(const std::vector<double>& loss, uint64_t packets, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PathCount> all = paths();
  for (PathCount& path : all) {
    double passes = 1 - kUsual;
    for (const auto& [link, share] : path.links) passes *= 1 - loss[link];
    path.lost = std::binomial_distribution<uint64_t>(packets, 1 - passes)(random);
    path.kept = packets - path.lost;
  }
  return all;
}

// Of these links, with the losses that make the counts most likely: coordinate by coordinate, on a grid that becomes finer.
double best_evidence(const std::vector<PathCount>& all, const std::vector<size_t>& links) {
  std::vector<double> loss(kLinks, 0);
  const auto likelihood = [&] {
    double sum = 0;
    for (const PathCount& path : all) {
      double passes = 1 - kUsual;
      for (const auto& [link, share] : path.links) passes *= 1 - loss[link];
      sum += static_cast<double>(path.lost) * std::log((1 - passes) / kUsual) +
             static_cast<double>(path.kept) * std::log(passes / (1 - kUsual));
    }
    return sum;
  };
  double best = likelihood();
  for (int round = 0; round < 6; ++round) {
    for (const size_t link : links) {
      double best_loss = loss[link];
      const double center = loss[link];
      for (int i = 0; i <= 100; ++i) {
        const double step = i / 100.0;
        loss[link] = round == 0 ? 0.1 * step * step : std::max(0.0, center * (0.8 + 0.4 * step));
        if (const double now = likelihood(); now > best) {
          best = now;
          best_loss = loss[link];
        }
      }
      loss[link] = best_loss;
    }
  }
  return best;
}

TEST(PathFaults, TheLossyLinkIsBlamed) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const size_t bad = seed % kLinks;
    std::vector<double> loss(kLinks, 0);
    loss[bad] = 0.005;
    const std::vector<BadLink> found = bad_links(counted(loss, 16'384, seed), kLinks, kUsual);
    ASSERT_THAT(found, SizeIs(1)) << "seed " << seed;
    EXPECT_THAT(found[0].links, ElementsAre(bad)) << "seed " << seed;
    EXPECT_NEAR(found[0].loss, 0.005, 0.0025) << "seed " << seed;
  }
}

TEST(PathFaults, CleanNetworksBlameNobody) {
  for (uint64_t seed = 1; seed <= 1000; ++seed)
    EXPECT_THAT(bad_links(counted(std::vector<double>(kLinks, 0), 16'384, seed), kLinks, kUsual), IsEmpty())
        << "seed " << seed;
}

// All sets of up to two links, each link at the price of an alarm.
TEST(PathFaults, BlamesWhatTryingAllSetsWouldBlame) {
  for (uint64_t seed = 1; seed <= (soak() ? 60 : 3); ++seed) {
    std::vector<double> loss(kLinks, 0);
    const size_t one = seed % kLinks, other = (seed * 7 + 3) % kLinks;
    loss[one] = 0.01;
    if (seed % 2 == 0) loss[other] = 0.004;
    const std::vector<PathCount> all = counted(loss, 16'384, seed);
    double best = 0;
    std::vector<size_t> best_set;
    const auto consider = [&](const std::vector<size_t>& set) {
      const double worth = best_evidence(all, set) - kBlame * static_cast<double>(set.size());
      if (worth <= best) return;
      best = worth;
      best_set = set;
    };
    for (size_t a = 0; a < kLinks; ++a) {
      consider({a});
      for (size_t b = a + 1; b < kLinks; ++b) consider({a, b});
    }
    std::vector<size_t> blamed;
    for (const BadLink& bad : bad_links(all, kLinks, kUsual)) {
      ASSERT_THAT(bad.links, SizeIs(1)) << "seed " << seed;
      blamed.push_back(bad.links[0]);
    }
    std::sort(blamed.begin(), blamed.end());
    EXPECT_EQ(blamed, best_set) << "seed " << seed;
  }
}

TEST(PathFaults, LinksThatNoPathTellsApartAreBlamedTogether) {
  std::vector<PathCount> all(2);
  all[0] = {.links = {{0, 1}, {1, 1}, {3, 1}}, .kept = 16'000, .lost = 160};
  all[1] = {.links = {{2, 1}, {3, 1}}, .kept = 16'000, .lost = 1};
  const std::vector<BadLink> found = bad_links(all, 4, kUsual);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].links, ElementsAre(0, 1));
  std::vector<PathCount> probes(3);
  probes[0].links = {{0, 1}, {1, 1}};
  probes[1].links = {{2, 1}};
  EXPECT_EQ(path_that_tells(probes, 0, 1), probes.size()) << "none does";
  probes[2].links = {{1, 1}, {2, 1}};
  EXPECT_EQ(path_that_tells(probes, 0, 1), 2u);
}

// The switch of each leaf chooses the spine: which, is not known. Sums are made in all ranks, so many paths are over each link.
TEST(PathFaults, ALossyLinkIsBlamedWhereRoutesAreNotKnown) {
  constexpr size_t kUp = 0, kDown = kRanks, kToSpine = 2 * kRanks, kToLeaf = kToSpine + kLeaves * kSpines,
                   kAll = kToLeaf + kLeaves * kSpines;
  int no_more = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    const size_t bad = seed % kAll;
    std::vector<PathCount> all;
    for (size_t from = 0; from < kRanks; ++from) {
      for (size_t to = 0; to < kRanks; ++to) {
        if (from == to) continue;
        PathCount path;
        path.links = {{kUp + from, 1}, {kDown + to, 1}};
        bool over = bad == kUp + from || bad == kDown + to;
        const size_t taken = random() % kSpines;
        for (size_t spine = 0; spine < kSpines && from / 2 != to / 2; ++spine) {
          const size_t up = kToSpine + from / 2 * kSpines + spine, down = kToLeaf + to / 2 * kSpines + spine;
          path.links.insert(path.links.end(), {{up, 1.0 / kSpines}, {down, 1.0 / kSpines}});
          over |= spine == taken && (bad == up || bad == down);
        }
        path.lost = std::binomial_distribution<uint64_t>(8192, over ? 0.01 : kUsual)(random);
        path.kept = 8192 - path.lost;
        all.push_back(path);
      }
    }
    const std::vector<BadLink> found = bad_links(all, kAll, usual_loss(all));
    ASSERT_THAT(found, SizeIs(1)) << "seed " << seed;
    // That a leaf's link to the one spine loses packets is as likely as that the one to the other does.
    const size_t first = bad < kToSpine ? bad : bad - bad % kSpines;
    std::vector<size_t> group{first};
    if (bad >= kToSpine) group.push_back(first + 1);
    EXPECT_THAT(found[0].links, ::testing::IsSupersetOf(group)) << "seed " << seed;
    no_more += found[0].links == group ? 1 : 0;
  }
  // By chance, the packets that are lost may have in common that they are for one other leaf.
  EXPECT_GE(no_more, 95);
}

TEST(PathFaults, LossesOfAllPathsAreUsual) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const std::vector<PathCount> all = counted(std::vector<double>(kLinks, 0.0025), 16'384, seed);
    std::vector<PathCount> equal;
    for (const PathCount& path : all)
      if (path.links.size() == 4) equal.push_back(path);
    EXPECT_THAT(bad_links(equal, kLinks, usual_loss(equal)), IsEmpty()) << "seed " << seed;
  }
  EXPECT_EQ(usual_loss({}), kUsual);
}

TEST(PathFaults, NothingAndEverythingLost) {
  EXPECT_THAT(bad_links({}, 3, kUsual), IsEmpty());
  EXPECT_THAT(bad_links({}, 0, kUsual), IsEmpty());
  std::vector<PathCount> all(2);
  all[0] = {.links = {{0, 1}}, .kept = 0, .lost = 1000};
  all[1] = {.links = {{1, 1}}, .kept = 1000, .lost = 0};
  const std::vector<BadLink> found = bad_links(all, 2, kUsual);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].links, ElementsAre(0));
}

}  // namespace
}  // namespace netsum::faults::path_faults_test
