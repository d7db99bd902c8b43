#include "src/base/spin_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace netsum::spin_wait_test {
namespace {

constexpr int kEnoughWaits = 32;
constexpr int64_t kLongUs = 3'600'000'000;  // a test ends before that

// Keeps every processor core busy for as long as it exists.
class Others {
 public:
  Others() {
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
      threads_.emplace_back([this] {
        while (!stop_) continue;
      });
  }
  ~Others() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

void sleep_us(int64_t us) {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

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
  const Others others;
  int sleeps = 0;
  for (int round = 0; round < 20; ++round) {
    SpinWait spin;
    for (int i = 0; i < kEnoughWaits; ++i) spin.note(0);
    int looks = 0;
    spin.wait(
        -1, [&] { return ++looks > 1; }, [&] { ++sleeps; });
  }
  EXPECT_EQ(sleeps, 0);
}

TEST(SpinWait, SleepsWhenOthersNeedTheProcessorWhateverTimeItWasTold) {
  const Others others;
  SpinWait spin(kLongUs);
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

TEST(SpinWait, WatchesForTheLeastTimeThoughItsWaitsAreLong) {
  SpinWait spin(SpinWait::kSpinUs, SpinWait::kLeastUs);
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(kLongUs);
  EXPECT_FALSE(spin.pays());
  EXPECT_EQ(sleeps_of(&spin, true), 0);
  EXPECT_EQ(sleeps_of(&spin, false), 1);
  spin.wait(
      100, [] { return false; }, [] { sleep_us(100); });
  EXPECT_EQ(sleeps_of(&spin, true), 1) << "it has watched before the limit";
  EXPECT_EQ(sleeps_of(&spin, true), 0);
}

TEST(SpinWait, NeverWatchesIfNotAllowed) {
  SpinWait spin(0, SpinWait::kLeastUs);
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(0);
  EXPECT_EQ(sleeps_of(&spin, true), 1);
}

TEST(SpinWait, WatchesAfterLongWaitsIfTheTimeIsLong) {
  SpinWait spin(kLongUs);
  EXPECT_EQ(sleeps_of(&spin, true), 0) << "though nothing is known yet";
  for (int i = 0; i < kEnoughWaits; ++i) spin.note(kLongUs);
  EXPECT_EQ(sleeps_of(&spin, true), 0);
}

TEST(SpinWait, ALongTimeIsOneOfSeveralWaits) {
  SpinWait spin(1'000);
  int looks = 0;
  // Each ends by its limit, with nothing that it has waited for.
  const auto wait_in_vain = [&](int64_t limit_us) {
    looks = 0;
    spin.wait(
        limit_us,
        [&] {
          ++looks;
          return false;
        },
        [&] { sleep_us(limit_us); });
  };
  wait_in_vain(2'000);
  EXPECT_GT(looks, 0);
  wait_in_vain(1'000);
  EXPECT_EQ(looks, 0) << "it has watched for long enough";
  // Something comes while it sleeps.
  spin.wait(
      -1, [] { return true; }, [&] { ++looks; });
  EXPECT_EQ(looks, 1);
  wait_in_vain(100);
  EXPECT_GT(looks, 0);
}

}  // namespace
}  // namespace netsum::spin_wait_test
