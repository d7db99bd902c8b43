#include "src/base/spin_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace netsum {
namespace {

constexpr int kEnoughWaits = 32;

int sleeps_of(SpinWait* spin, bool ready) {
  int sleeps = 0;
  spin->wait(
      -1, [&] { return ready; }, [&] { ++sleeps; });
  return sleeps;
}

TEST(SpinWait, WatchesOnlyWhileMostWaitsAreBrief) {
  SpinWait spin;
  EXPECT_FALSE(spin.pays()) << "nothing is known yet";
  EXPECT_EQ(sleeps_of(&spin, true), 1);
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(SpinWait::kBriefUs);
  EXPECT_TRUE(spin.pays());
  EXPECT_EQ(sleeps_of(&spin, true), 0);
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(SpinWait::kBriefUs + 1);
  EXPECT_FALSE(spin.pays());
  EXPECT_EQ(sleeps_of(&spin, true), 1);
}

TEST(SpinWait, SleepsWhenNothingHasCome) {
  SpinWait spin;
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(0);
  EXPECT_EQ(sleeps_of(&spin, false), 1);
}

TEST(SpinWait, LooksAgainWhenOthersHaveRun) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
    others.emplace_back([&] {
      while (!stop) continue;
    });
  int sleeps = 0;
  for (int round = 0; round < 20; ++round) {
    SpinWait spin;
    for (int i = 0; i < kEnoughWaits; ++i) spin.note(0);
    int looks = 0;
    spin.wait(
        -1, [&] { return ++looks > 1; }, [&] { ++sleeps; });
  }
  EXPECT_EQ(sleeps, 0);
  stop = true;
  for (std::thread& other : others) other.join();
}

TEST(SpinWait, WatchesNoLongerThanTheWaitMayLast) {
  SpinWait spin;
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(0);
  int looks = 0;
  spin.wait(
      0, [&] { return ++looks > 0; }, [] {});
  EXPECT_EQ(looks, 0);
}

TEST(SpinWait, NeverWatchesIfNotAllowed) {
  SpinWait spin(false);
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(0);
  EXPECT_EQ(sleeps_of(&spin, true), 1);
}

}  // namespace
}  // namespace netsum
