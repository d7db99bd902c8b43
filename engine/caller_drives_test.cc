// Callers that drive the engine: what they take over, and when the engine's thread goes on.
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted_core_testing.h"
#include "src/base/clock.h"
#include "src/base/rng.h"

namespace {

// Called after each write() of this thread, which is how a driver that leaves wakes the engine's thread.
thread_local std::function<void()> after_write;

}  // namespace

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  const ssize_t written = syscall(SYS_write, fd, data, size);
  if (after_write) std::exchange(after_write, nullptr)();
  return written;
}

// What is used after it was freed is no longer what it was.
void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t size) noexcept {
  if (memory != nullptr) explicit_bzero(memory, size);
  std::free(memory);
}

namespace netsum::caller_drives_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class CallerDrivesTest : public ::testing::Test {
 protected:
  CallerDrivesTest() { start(); }

  void start() {
    engine_.emplace(std::make_unique<ScriptedCore>(&script_), [this](const Status&) {
      script_.change([&] { reporter_ = std::this_thread::get_id(); });
    });
    ASSERT_TRUE(engine_->start().ok());
  }
  Work submit(milliseconds timeout = kPatience, size_t elements = 0) {
    OperationSpec spec;
    spec.deadline_us = monotonic_us() + timeout.count() * 1000;
    spec.tensors = {{nullptr, nullptr, elements}};
    return engine_->submit(std::move(spec));
  }
  // Ends the operation that was submitted last, with the next burst.
  void end_latest() {
    script_.change([&] {
      script_.ends = {{script_.submitted.back(), Status()}};
      script_.arrivals = 1;
    });
  }
  bool is_mine(const std::thread::id& who) {
    const std::lock_guard lock(script_.mutex);
    return who == std::this_thread::get_id();
  }
  // An operation in progress which this thread has submitted to the core itself: the engine's thread sleeps. Not valid if
  // that does not come about.
  Work submit_as_driver(milliseconds timeout = kPatience) {
    const int64_t end_us = monotonic_us() + int64_t{1'000} * milliseconds(kPatience).count();
    while (monotonic_us() < end_us) {
      script_.change([&] { script_.echoes = true; });
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(submit().wait().ok());
      size_t before = 0;
      script_.change([&] {
        script_.echoes = false;
        script_.submitter = {};
        before = script_.submitted.size();
      });
      Work work = submit(timeout);
      if (is_mine(script_.submitter)) return work;
      if (!script_.comes_true([&] { return script_.submitted.size() > before; })) break;
      end_latest();
      (void)work.wait();
    }
    return Work();
  }

  Script script_;
  std::thread::id reporter_;
  std::optional<Engine> engine_;
};

TEST_F(CallerDrivesTest, AThreadThatWaitsAtOnceSubmitsAndEndsItsOperationsItself) {
  const Work work = submit_as_driver();
  ASSERT_TRUE(work.valid());
  end_latest();
  EXPECT_TRUE(work.wait().ok());
  // The watchdog may have been faster, but not always.
  script_.change([&] { script_.echoes = true; });
  bool mine = false;
  for (int i = 0; i < 100'000 && !mine; ++i) {
    EXPECT_TRUE(submit().wait().ok());
    mine = is_mine(script_.driver);
  }
  EXPECT_TRUE(mine);
}

// As on a machine with more ranks than cores, where others run once packets have been sent to them.
TEST_F(CallerDrivesTest, TimeThatSubmittingTakesIsNotTheCallers) {
  script_.change([&] {
    script_.echoes = true;
    script_.submission = std::chrono::microseconds(2 * CoreLock::kPromptUs);
  });
  int in_a_row = 0;
  for (int i = 0; i < 10'000 && in_a_row < 20; ++i) {
    EXPECT_TRUE(submit().wait().ok());
    in_a_row = is_mine(script_.submitter) ? in_a_row + 1 : 0;
  }
  EXPECT_EQ(in_a_row, 20);
}

TEST_F(CallerDrivesTest, AThreadThatPollsEndsItsOperationsItself) {
  script_.change([&] { script_.echoes = true; });
  bool mine = false;
  for (int i = 0; i < 100'000 && !mine; ++i) {
    const Work work = submit();
    while (!work.done()) (void)work.wait(milliseconds(0));
    EXPECT_TRUE(work.wait().ok());
    mine = is_mine(script_.driver);
  }
  EXPECT_TRUE(mine);
}

TEST_F(CallerDrivesTest, TheEnginesThreadEndsWhatNobodyWaitsFor) {
  const Work work = submit_as_driver();
  ASSERT_TRUE(work.valid());
  std::promise<std::thread::id> ended;
  work.on_done([&](const Status&) { ended.set_value(std::this_thread::get_id()); });
  end_latest();
  auto ender = ended.get_future();
  ASSERT_EQ(ender.wait_for(kPatience), std::future_status::ready);
  EXPECT_NE(ender.get(), std::this_thread::get_id());
}

TEST_F(CallerDrivesTest, OperationsThatNobodyWaitsForKeepTheEnginesThreadAwake) {
  ASSERT_TRUE(submit_as_driver().valid());
  end_latest();
  script_.change([&] { script_.echoes = true; });
  // True if this thread has submitted it to the core itself.
  const auto submit_only = [&] {
    size_t before = 0;
    script_.change([&] { before = script_.submitted.size(); });
    submit();
    EXPECT_TRUE(script_.comes_true([&] { return script_.submitted.size() > before; }));
    return is_mine(script_.submitter);
  };
  int mine = 0;
  while (submit_only()) ASSERT_LT(++mine, 100'000);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(submit_only());
}

TEST_F(CallerDrivesTest, LargeOperationsAreTheEnginesThreads) {
  ASSERT_TRUE(submit_as_driver().valid());
  end_latest();
  script_.change([&] { script_.submitter = {}; });
  const Work work = submit(kPatience, 1 << 20);
  EXPECT_TRUE(script_.comes_true([&] { return script_.submitter != std::thread::id(); }));
  EXPECT_FALSE(is_mine(script_.submitter));
}

TEST_F(CallerDrivesTest, ADeadlineHoldsWhileACallerDrives) {
  const Work work = submit_as_driver(milliseconds(50));
  ASSERT_TRUE(work.valid());
  const Status status = work.wait();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("by the core"));
  ASSERT_TRUE(script_.comes_true([&] { return reporter_ != std::thread::id(); }))
      << "the failure is reported";
  EXPECT_FALSE(is_mine(reporter_)) << "by the engine's thread, because it takes time";
}

TEST_F(CallerDrivesTest, ADeadlineHoldsWhileNobodyWaits) {
  const Work work = submit_as_driver(milliseconds(50));
  ASSERT_TRUE(work.valid());
  std::promise<Status> ended;
  work.on_done([&](const Status& status) { ended.set_value(status); });
  auto status = ended.get_future();
  ASSERT_EQ(status.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(status.get().code(), ErrorCode::kTimeout);
}

TEST_F(CallerDrivesTest, TheEnginesThreadGoesOnWhenAWaitIsOver) {
  const Work work = submit_as_driver();
  ASSERT_TRUE(work.valid());
  EXPECT_EQ(work.wait(milliseconds(20)).code(), ErrorCode::kTimeout);
  std::promise<void> ended;
  work.on_done([&](const Status&) { ended.set_value(); });
  end_latest();
  EXPECT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(CallerDrivesTest, TheEnginesThreadGoesOnForAnotherThreadThatWaits) {
  const Work mine = submit_as_driver();
  ASSERT_TRUE(mine.valid());
  const uint64_t my_id = script_.submitted.back();
  std::thread other([&] { EXPECT_TRUE(submit().wait().ok()); });
  std::thread arrival([&] {
    ASSERT_TRUE(script_.comes_true([&] { return script_.submitted.back() > my_id; }));
    std::this_thread::sleep_for(milliseconds(5));  // the watchdog has found a driver
    script_.change([&] {
      script_.ends = {{my_id, Status()}};
      script_.arrivals = 1;
    });
  });
  EXPECT_TRUE(mine.wait().ok());
  arrival.join();
  end_latest();
  other.join();
}

TEST_F(CallerDrivesTest, ACallbackMayStartOperations) {
  const Work work = submit_as_driver();
  ASSERT_TRUE(work.valid());
  Work next;
  std::promise<void> called;
  work.on_done([&](const Status&) {
    script_.change([&] { script_.echoes = true; });
    next = submit();
    called.set_value();
  });
  end_latest();
  EXPECT_TRUE(work.wait().ok());
  called.get_future().get();
  EXPECT_TRUE(next.wait().ok());
}

TEST_F(CallerDrivesTest, AFailureEndsAWaitThatDrives) {
  const Work work = submit_as_driver();
  ASSERT_TRUE(work.valid());
  std::thread control([&] {
    std::this_thread::sleep_for(milliseconds(5));
    engine_->fail(Status(ErrorCode::kPeerLost, "rank 1 is gone", 1));
  });
  EXPECT_EQ(work.wait().rank(), 1);
  control.join();
}

TEST_F(CallerDrivesTest, TheEndOfTheEngineEndsAWaitThatDrives) {
  for (int round = 0; round < 5; ++round) {
    std::promise<void> submitted;
    std::thread caller([&] {
      const Work work = submit_as_driver();
      submitted.set_value();
      ASSERT_TRUE(work.valid());
      EXPECT_EQ(work.wait().code(), ErrorCode::kAborted);
      EXPECT_EQ(work.wait(milliseconds(1)).code(), ErrorCode::kAborted) << "the handle outlives the engine";
    });
    submitted.get_future().get();
    if (round > 0) std::this_thread::sleep_for(milliseconds(round));
    engine_.reset();
    caller.join();
    start();
  }
}

// One that polls leaves while another thread closes, and goes on when the engine is freed.
TEST_F(CallerDrivesTest, TheEngineMayBeFreedAsSoonAsAPollingThreadHasLeft) {
  std::promise<void> leaving;
  bool freed = false;
  std::thread poller([&] {
    bool left = false;
    const auto leave = [&, poller = std::this_thread::get_id()] {
      if (std::this_thread::get_id() != poller) return;
      left = true;
      after_write = [&] { EXPECT_TRUE(script_.comes_true([&] { return freed; })); };
      int before = 0;
      script_.change([&] {
        script_.asked_if_idle = nullptr;
        before = script_.wakes;
        leaving.set_value();
      });
      EXPECT_TRUE(script_.comes_true([&] { return script_.wakes > before; })) << "to stop";
    };
    while (true) {
      const Work work = submit_as_driver();
      ASSERT_TRUE(work.valid());
      script_.change([&] { script_.asked_if_idle = leave; });
      (void)work.wait(milliseconds(0));
      if (left) {
        EXPECT_EQ(work.wait().code(), ErrorCode::kAborted);
        return;
      }
      // The watchdog was faster.
      script_.change([&] { script_.asked_if_idle = nullptr; });
      end_latest();
      (void)work.wait();
    }
  });
  leaving.get_future().get();
  engine_.reset();
  script_.change([&] { freed = true; });
  poller.join();
}

// Otherwise the other ranks would only be told that this one has left.
TEST_F(CallerDrivesTest, AFailureIsReportedThoughTheCallerThatSawItClosesAtOnce) {
  for (int round = 0; round < 20; ++round) {
    reporter_ = {};
    const Work work = submit_as_driver();
    ASSERT_TRUE(work.valid());
    std::thread network([&] {
      std::this_thread::sleep_for(milliseconds(2));  // the caller drives
      script_.change([&] {
        script_.own_failure = Status(ErrorCode::kWrongSum, "a sum is wrong");
        script_.arrivals = 1;
      });
    });
    EXPECT_EQ(work.wait().code(), ErrorCode::kWrongSum);
    engine_.reset();
    network.join();
    EXPECT_NE(reporter_, std::thread::id()) << "round " << round;
    script_.change([&] { script_.own_failure = Status(); });
    start();
  }
}

TEST_F(CallerDrivesTest, ThreadsThatWaitInAllWaysAllEnd) {
  script_.change([&] { script_.echoes = true; });
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      Rng rng(seed);
      for (int i = 0; i < 300; ++i) {
        const bool often_small = rng.below(8) != 0;
        const Work work = submit(kPatience, often_small ? 1 : 1 << 20);
        switch (rng.below(6)) {
          case 0:
            (void)work.wait(milliseconds(0));
            break;
          case 1: {
            std::promise<void> ended;
            work.on_done([&](const Status&) { ended.set_value(); });
            ASSERT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
            break;
          }
          case 2: {
            const Work second = submit();
            EXPECT_TRUE(second.wait().ok());
            break;
          }
          default:
            break;
        }
        EXPECT_TRUE(work.wait().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CoreLockTest, TheWatchdogWakesTheEnginesThread) {
  CoreLock lock(nullptr, std::make_shared<WaitPredictor>());
  lock.unlock({.watched = true});
  lock.sleep();  // hangs without
}

TEST(CoreLockTest, TheWatchdogTicksOnlyWhileThereAreOperations) {
  CoreLock lock(nullptr, std::make_shared<WaitPredictor>());
  for (int i = 0; i < 3; ++i) {
    lock.unlock({.watched = true});
    (void)lock.try_lock();  // a driver comes in time
    lock.unlock({});
    lock.sleep();  // hangs if it ticks for ever, or if it has not started again
  }
}

TEST(CoreLockTest, ACallWhileTheSeatIsTakenIsHeardWhenItIsFree) {
  CoreLock lock(nullptr, std::make_shared<WaitPredictor>());
  EXPECT_FALSE(lock.notify());
  lock.unlock({});
  lock.sleep();  // hangs without
  EXPECT_TRUE(lock.notify());
  lock.sleep();
}

TEST(CoreLockTest, CallersAreExpectedOnlyWhileNearlyAllWait) {
  CoreLock lock(nullptr, std::make_shared<WaitPredictor>());
  EXPECT_FALSE(lock.callers_wait());
  const auto operation = [&](bool waited) {
    lock.predictor().note_submission();
    if (waited) lock.predictor().note_prompt_wait();
  };
  for (int i = 0; i < 100; ++i) operation(true);
  EXPECT_TRUE(lock.callers_wait());
  for (int i = 0; i < 3; ++i) operation(false);
  EXPECT_FALSE(lock.callers_wait());
  for (int i = 0; i < 100; ++i) operation(i % 2 == 0);
  EXPECT_FALSE(lock.callers_wait());
}

}  // namespace
}  // namespace netsum::caller_drives_test
