#include "src/faults/link_watch.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "src/base/rng.h"

namespace netsum::faults::link_watch_test {
namespace {

constexpr size_t kMembers = 8;
constexpr uint64_t kOperation = 16'384;  // packets of 16 MiB, each way

uint64_t first_seed() {
  const char* given = std::getenv("NETSUM_SIM_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 41;
}

// Members whose packets are lost at random.
class Job {
 public:
  explicit Job(uint64_t seed, double loss_everywhere = 0) : rng_(seed) {
    for (auto& member : loss_) member = {loss_everywhere, loss_everywhere};
  }

  double& loss(size_t member, Kind kind) { return loss_[member][static_cast<size_t>(kind)]; }
  // `looks` observations of as many packets each, up to `packets` in all.
  void run(uint64_t packets, int looks) {
    for (int look = 0; look < looks; ++look) {
      for (size_t member = 0; member < kMembers; ++member) {
        for (size_t direction = 0; direction < kDirections; ++direction) {
          const uint64_t now = packets / static_cast<uint64_t>(looks);
          const uint64_t lost = losses(now, loss_[member][direction]);
          totals_[member].lost[direction] += lost;
          totals_[member].kept[direction] += now - lost;
        }
      }
      watch.observe(totals_);
      if (!watch.faults().empty() && look_named == 0) look_named = look + 1;
    }
  }
  bool names_only(size_t member, Kind kind) const {
    const auto found = watch.faults();
    return found.size() == 1 && found[0].member == member && found[0].kind == kind;
  }

  LinkWatch watch;
  int look_named = 0;

 private:
  // Of `packets`, each lost with this probability: from one lost packet to the next.
  uint64_t losses(uint64_t packets, double loss) {
    if (loss == 0) return 0;
    uint64_t lost = 0;
    for (double at = 0;; ++lost) {
      at += 1 + std::floor(std::log(1 - rng_.unit()) / std::log(1 - loss));
      if (at > static_cast<double>(packets)) return lost;
    }
  }

  Rng rng_;
  std::array<std::array<double, kDirections>, kMembers> loss_;
  std::array<MemberTotals, kMembers> totals_;
};

TEST(Beginnings, TwoPartsAddUpToTheWhole) {
  Beginnings first, second, whole;
  for (uint64_t place = 1; place <= 9; ++place) {
    (place < 4 ? first : second).add(place, 7 * place + 100);
    whole.add(place, 7 * place + 100);
  }
  const auto sums = [](const Beginnings& of) { return std::tuple(of.count, of.x, of.y_us, of.xx, of.xy_us); };
  EXPECT_EQ(sums(whole - first), sums(second));
  first += second;
  EXPECT_EQ(sums(first), sums(whole));
}

TEST(LinkWatch, NamesALossyEdge) {
  for (const auto& [loss, operations, looks] : {std::tuple(0.005, 1u, 1), std::tuple(0.005, 1u, 14),
                                                std::tuple(0.001, 10u, 10), std::tuple(0.001, 10u, 100)}) {
    int named = 0;
    for (uint64_t seed = first_seed(); seed < first_seed() + 100; ++seed) {
      Job job(seed);
      const size_t member = seed % kMembers;
      const auto kind = static_cast<Kind>(seed / kMembers % kDirections);
      job.loss(member, kind) = loss;
      job.run(operations * kOperation, looks);
      named += job.names_only(member, kind) ? 1 : 0;
    }
    EXPECT_GE(named, 99) << loss << " in " << looks << " looks; replay: NETSUM_SIM_SEED=" << first_seed();
  }
}

TEST(LinkWatch, NamesNoneWhereAllLoseAlike) {
  for (const double loss : {0.0, 1e-4, 1e-3, 0.01}) {
    for (const int looks : {1000, 14'000}) {
      Job job(first_seed(), loss);
      job.run(1000 * kOperation, looks);
      EXPECT_EQ(job.look_named, 0) << loss << "; replay: NETSUM_SIM_SEED=" << first_seed();
    }
  }
}

TEST(LinkWatch, NamesTheWorstOfManyThatLose) {
  Job job(first_seed(), 0.001);
  job.loss(3, Kind::kLossDown) = 0.02;
  job.run(4 * kOperation, 4);
  ASSERT_TRUE(job.names_only(3, Kind::kLossDown));
  EXPECT_NEAR(job.watch.faults()[0].value, 0.02, 0.004);
  EXPECT_NEAR(job.watch.faults()[0].others, 0.001, 0.0005);
}

// In seconds in turn with 1 % of loss and with none.
TEST(LinkWatch, AnEdgeThatFlapsStaysNamed) {
  Job job(first_seed());
  int changes = 0;
  bool named = false;
  for (int second = 0; second < 40; ++second) {
    job.loss(5, Kind::kLossUp) = second % 2 == 0 ? 0.01 : 0;
    job.run(10'000, 10);
    const bool now = job.names_only(5, Kind::kLossUp);
    changes += now != named ? 1 : 0;
    named = now;
  }
  EXPECT_TRUE(named);
  EXPECT_EQ(changes, 1);
  job.loss(5, Kind::kLossUp) = 0;
  job.run(8 * kOperation, 10);
  EXPECT_TRUE(job.watch.faults().empty()) << "repaired";
}

TEST(LinkWatch, TotalsThatBeginAnewCountFromThere) {
  LinkWatch watch;
  std::array<MemberTotals, 2> totals;
  for (MemberTotals& member : totals)
    member = {.kept = {1'000'000, 1'000'000}, .lost = {5, 5}, .contributions = 1'000'000, .late_us = 900};
  watch.observe(totals);
  totals[0] = {.kept = {100, 100}, .lost = {4, 4}, .contributions = 100, .late_us = 100'000'000};
  watch.observe(totals);
  EXPECT_TRUE(watch.faults().empty());
  totals[0] = {.kept = {10'000, 10'000}, .lost = {104, 4}, .contributions = 100, .late_us = 100'000'000};
  watch.observe(totals);
  ASSERT_EQ(watch.faults().size(), 1u);
  EXPECT_EQ(watch.faults()[0].member, 0u);
  EXPECT_EQ(watch.faults()[0].kind, Kind::kLossUp);
}

TEST(LinkWatch, CountersThatWrapNameNobody) {
  constexpr uint64_t kMost = UINT64_MAX;
  LinkWatch watch;
  std::array<MemberTotals, 3> totals;
  for (MemberTotals& member : totals) {
    member.kept = {kMost - 50'000, kMost - 50'000};
    member.lost = {5, 5};
    member.contributions = member.late_us = member.receive_calls = member.packets_received = kMost - 5000;
    member.begin = {kMost - 50, kMost - 50, kMost - 50, kMost - 50, kMost - 50};
  }
  for (int look = 0; look < 100; ++look) {
    for (size_t i = 0; i < totals.size(); ++i) {
      for (size_t direction = 0; direction < kDirections; ++direction) {
        totals[i].kept[direction] += 10'000;
        totals[i].lost[direction] += i == 1 && look < 8 ? 1 : 0;
      }
      totals[i].contributions += 1000;
      totals[i].late_us += 1000;
      totals[i].receive_calls += 1000;
      totals[i].packets_received += 1000;
      for (int n = 0; n < 20; ++n) totals[i].begin.add(static_cast<uint64_t>(n), 1);
    }
    watch.observe(totals);
    EXPECT_TRUE(watch.faults().empty()) << "look " << look;
  }
}

TEST(LinkWatch, NothingAndOneMember) {
  LinkWatch watch;
  watch.observe({});
  EXPECT_TRUE(watch.faults().empty());
  std::array<MemberTotals, 1> one;
  one[0] = {.kept = {0, 10'000}, .lost = {0, 100}, .contributions = 10'000, .late_us = 100'000'000};
  watch.observe(one);
  ASSERT_EQ(watch.faults().size(), 1u) << "it has no others to be compared with";
  EXPECT_EQ(watch.faults()[0].kind, Kind::kLossDown);
}

// Contributions of 1000 each, with these mean times behind the first.
void add_late(std::array<MemberTotals, 4>* totals, const std::array<uint64_t, 4>& late_us) {
  for (size_t member = 0; member < totals->size(); ++member) {
    (*totals)[member].kept[0] += 1000;
    (*totals)[member].contributions += 1000;
    (*totals)[member].late_us += 1000 * late_us[member];
  }
}

TEST(LinkWatch, NamesASlowMemberUntilItIsNot) {
  LinkWatch watch;
  std::array<MemberTotals, 4> totals;
  for (int look = 0; look < 6; ++look) {
    add_late(&totals, {50, 60, 4000, 40});
    watch.observe(totals);
  }
  EXPECT_TRUE(watch.faults().empty()) << "6000 contributions are not enough";
  add_late(&totals, {50, 60, 4000, 40});
  watch.observe(totals);
  ASSERT_EQ(watch.faults().size(), 1u);
  EXPECT_EQ(watch.faults()[0].member, 2u);
  EXPECT_EQ(watch.faults()[0].kind, Kind::kSlow);
  EXPECT_DOUBLE_EQ(watch.faults()[0].value, 4000);
  EXPECT_DOUBLE_EQ(watch.faults()[0].others, 50);
  for (int look = 0; look < 20; ++look) {
    add_late(&totals, {50, 60, look % 2 == 0 ? 50u : 4000u, 40});
    watch.observe(totals);
    EXPECT_EQ(watch.faults().size(), 1u) << "it comes and goes";
  }
  for (int look = 0; look < 8; ++look) {
    add_late(&totals, {900, 800, 1000, 700});
    watch.observe(totals);
  }
  EXPECT_TRUE(watch.faults().empty()) << "all are late alike";
}

}  // namespace
}  // namespace netsum::faults::link_watch_test
