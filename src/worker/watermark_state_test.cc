#include "src/worker/watermark_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "src/worker/delivery.h"

namespace netsum::watermark_state_test {
namespace {

void deliver(Watermarks* watermarks, size_t core, size_t bytes) {
  watermarks->state().note_delivered(core, bytes);
  watermarks->state().report_delivered();
}

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Watermarks, AvailableOnlyRises) {
  Watermarks watermarks;
  int wakes = 0;
  watermarks.state().begin(1, [&] { ++wakes; });
  for (const size_t bytes : {10, 5, 10, 20}) watermarks.make_available(bytes);
  EXPECT_EQ(watermarks.available(), 20u);
  EXPECT_EQ(wakes, 2) << "only if there is more";
  watermarks.state().end();
  watermarks.make_available(30);
  EXPECT_EQ(wakes, 2) << "the engine may be gone";
}

TEST(Watermarks, AreOfOneOperation) {
  Watermarks watermarks;
  EXPECT_TRUE(watermarks.state().take());
  EXPECT_FALSE(watermarks.state().take());
}

TEST(Watermarks, TheFirstFailureCounts) {
  Watermarks watermarks;
  int wakes = 0;
  watermarks.state().begin(1, [&] { ++wakes; });
  EXPECT_FALSE(watermarks.state().failed());
  watermarks.fail({ErrorCode::kInternal, "the device has failed"});
  watermarks.fail({ErrorCode::kTimeout, "later"});
  EXPECT_TRUE(watermarks.state().failed());
  EXPECT_EQ(watermarks.state().failure().message(), "the device has failed");
  EXPECT_EQ(wakes, 1);
}

// A job with failover would move, and repeat the operation, which fails again.
TEST(Watermarks, AFailureIsNoLossOfAnAggregator) {
  for (const ErrorCode code : {ErrorCode::kOk, ErrorCode::kAggregatorLost, ErrorCode::kWrongSum}) {
    Watermarks watermarks;
    watermarks.fail({code, "why"});
    EXPECT_EQ(watermarks.state().failure().code(), ErrorCode::kAborted);
  }
}

TEST(Watermarks, TheListenerHearsStepsAndTheEnd) {
  std::vector<size_t> heard;
  Watermarks watermarks(100, [&](size_t bytes) { heard.push_back(bytes); });
  Watermarks::State& state = watermarks.state();
  for (const size_t bytes : {50, 99, 100, 150, 199, 350}) deliver(&watermarks, 0, bytes);
  EXPECT_THAT(heard, ElementsAre(100, 350));
  EXPECT_EQ(watermarks.delivered(), 350u);
  state.end_delivered(360);
  EXPECT_THAT(heard, ElementsAre(100, 350, 360));
  state.end_delivered(360);
  EXPECT_THAT(heard, ElementsAre(100, 350, 360)) << "once";
}

TEST(Watermarks, TheEndIsHeardOnceEvenOfNothing) {
  std::vector<size_t> heard;
  const auto note = [&](size_t bytes) { heard.push_back(bytes); };
  Watermarks nothing(100, note);
  nothing.state().end_delivered(0);
  EXPECT_THAT(heard, ElementsAre(0));
  heard.clear();
  Watermarks whole(0, note);
  deliver(&whole, 0, 7);
  whole.state().end_delivered(7);
  EXPECT_THAT(heard, ElementsAre(7));
}

TEST(Watermarks, DeliveredIsWhatAllCoresHaveDelivered) {
  std::vector<size_t> heard;
  Watermarks watermarks(0, [&](size_t bytes) { heard.push_back(bytes); });
  watermarks.state().begin(2, {});
  deliver(&watermarks, 0, 80);
  EXPECT_THAT(heard, IsEmpty());
  deliver(&watermarks, 1, 30);
  deliver(&watermarks, 1, 100);
  EXPECT_THAT(heard, ElementsAre(30, 80));
  // After a failover, results that the caller knows of are still there.
  watermarks.state().begin(2, {});
  deliver(&watermarks, 0, 10);
  deliver(&watermarks, 1, 10);
  EXPECT_EQ(watermarks.delivered(), 80u);
  EXPECT_THAT(heard, ElementsAre(30, 80));
}

TEST(Watermarks, InputIsKeptBeforeItCountsAsAvailable) {
  Watermarks watermarks;
  watermarks.make_available(5);
  std::vector<size_t> kept;
  watermarks.state().keep_input([&](size_t bytes) {
    kept.push_back(bytes);
    if (bytes > 5) {
      EXPECT_LT(watermarks.available(), bytes);
    }
  });
  watermarks.make_available(9);
  watermarks.state().keep_input({});
  watermarks.make_available(10);
  EXPECT_THAT(kept, ElementsAre(5, 9));
}

TEST(Watermarks, WaitsForInput) {
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(1); };
  const auto late = [] { return std::chrono::steady_clock::now() + std::chrono::minutes(1); };
  Watermarks watermarks;
  watermarks.make_available(3);
  const Status missing = watermarks.state().wait_available(4, soon());
  EXPECT_EQ(missing.code(), ErrorCode::kTimeout);
  EXPECT_THAT(missing.message(), HasSubstr("available 3 bytes of the input, and 4 are needed"));
  std::thread other([&] { watermarks.make_available(4); });
  EXPECT_TRUE(watermarks.state().wait_available(4, late()).ok());
  other.join();
  watermarks.fail({ErrorCode::kInternal, "the device has failed"});
  EXPECT_EQ(watermarks.state().wait_available(9, late()).code(), ErrorCode::kInternal);
}

// What several threads deliver is heard in ascending order, and all of it.
TEST(Watermarks, CoresAndCallersAreThreads) {
  constexpr size_t kBytes = 20'000, kCores = 3;
  size_t last = 0;  // not atomic: calls do not overlap
  bool ascends = true;
  Watermarks watermarks(7, [&](size_t bytes) {
    ascends &= bytes > last;
    last = bytes;
  });
  watermarks.state().begin(kCores, [] {});
  std::vector<uint8_t> input(kBytes);
  std::atomic<size_t> wrong{0};
  std::vector<std::thread> threads;
  for (size_t core = 0; core < kCores; ++core)
    threads.emplace_back([&, core] {
      for (size_t done = 0; done < kBytes;) {
        const size_t available = watermarks.state().available();
        for (; done < available; ++done) wrong += input[done] != 1;
        deliver(&watermarks, core, done);
      }
    });
  for (size_t bytes = 0; bytes < kBytes; ++bytes) {
    input[bytes] = 1;
    watermarks.make_available(bytes + 1);
  }
  for (std::thread& thread : threads) thread.join();
  watermarks.state().end_delivered(kBytes);
  EXPECT_TRUE(ascends);
  EXPECT_EQ(last, kBytes);
  EXPECT_EQ(wrong, 0u);
}

TEST(Delivery, IsThePrefixOfWholeChunks) {
  Delivery delivery(25, 10, 10);
  const auto none = [](size_t) { return false; };
  delivery.note(20, 1);
  EXPECT_EQ(delivery.advance(none), 0u);
  delivery.note(0, 2);
  EXPECT_EQ(delivery.advance(none), 0u) << "the chunk has another packet";
  delivery.note(0, 2);
  EXPECT_EQ(delivery.advance(none), 10u);
  EXPECT_EQ(delivery.advance([](size_t chunk) { return chunk == 1; }), 25u) << "the last chunk is shorter";
  EXPECT_TRUE(delivery.had(10));
  EXPECT_FALSE(delivery.had(11));
}

}  // namespace
}  // namespace netsum::watermark_state_test
