#include "src/base/spin_wait.h"

#include <gtest/gtest.h>

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
