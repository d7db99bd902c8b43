// An engine of several threads: how many, and how the parts of an operation become one.
#include "engine/engine_thread_count.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted_core_testing.h"
#include "src/base/clock.h"

namespace netsum::engine_threads_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(EngineThreads, OneUnlessAskedFor) {
  const EngineThreadCount threads =
      EngineThreadCount::choose({.asked = 1, .stripes = 8, .cores = 64, .link_bps = 400e9});
  EXPECT_EQ(threads.count, 1u);
  EXPECT_EQ(threads.note, "");
}

TEST(EngineThreads, AutomaticallyByLinkAndCores) {
  const auto count = [](size_t stripes, size_t cores, size_t ranks, double bps) {
    const EngineThreadCount threads = EngineThreadCount::choose(
        {.asked = 0, .stripes = stripes, .cores = cores, .ranks_here = ranks, .link_bps = bps});
    EXPECT_THAT(threads.note, AllOf(HasSubstr("(automatically)"), Not(HasSubstr("WARNING"))));
    return threads.count;
  };
  EXPECT_EQ(count(8, 64, 1, 0), 1u) << "unknown";
  EXPECT_EQ(count(8, 64, 1, 1e9), 1u);
  EXPECT_EQ(count(8, 64, 1, 25e9), 4u);
  EXPECT_EQ(count(8, 64, 1, 100e9), 8u) << "stripes";
  EXPECT_EQ(count(64, 16, 1, 400e9), 8u) << "half of the cores";
  EXPECT_EQ(count(64, 64, 8, 200e9), 4u) << "each rank's part of the link";
  EXPECT_EQ(count(64, 32, 8, 400e9), 2u) << "each rank's part of the cores";
  EXPECT_EQ(count(64, 2, 8, 400e9), 1u);
}

TEST(EngineThreads, MoreThanStripesOrCoresIsSaid) {
  const EngineThreadCount stripes = EngineThreadCount::choose({.asked = 4, .stripes = 1, .cores = 8});
  EXPECT_EQ(stripes.count, 1u);
  EXPECT_EQ(stripes.note, "1 engine thread, WARNING: 4 were asked for, and 1 stripe can be divided");
  const EngineThreadCount cores = EngineThreadCount::choose({.asked = 4, .stripes = 8, .cores = 2});
  EXPECT_EQ(cores.count, 4u);
  EXPECT_EQ(cores.note, "4 engine threads, WARNING: they share 2 processor cores");
  const EngineThreadCount queue =
      EngineThreadCount::choose({.asked = 4, .stripes = 8, .cores = 8, .one_queue = true});
  EXPECT_EQ(queue.count, 1u);
  EXPECT_THAT(queue.note, HasSubstr("AF_XDP has one queue"));
}

// --- Parts of an operation, with cores that the test controls --------------------------------------------------

class PartsTest : public ::testing::Test {
 protected:
  static constexpr size_t kCores = 2;

  PartsTest() {
    std::vector<std::unique_ptr<EngineCore>> cores;
    for (Script& script : scripts_) cores.push_back(std::make_unique<ScriptedCore>(&script));
    engine_.emplace(std::move(cores), [this](const Status& status) {
      scripts_[0].change([&] { scripts_[0].calls.push_back("report: " + status.message()); });
    });
    EXPECT_TRUE(engine_->start().ok());
  }
  Work submit(OnEnd on_end = {}, uint32_t tag = 0, milliseconds timeout = kPatience) {
    OperationSpec spec;
    spec.role.tag = tag;
    spec.deadline_us = monotonic_us() + timeout.count() * 1000;
    return engine_->submit(std::move(spec), std::move(on_end));
  }
  void end(size_t core, uint64_t id, const Status& status = Status()) {
    Script& script = scripts_[core];
    ASSERT_TRUE(script.comes_true([&] { return script.tags.size() > id; }));
    script.change([&] {
      script.ends.emplace_back(id, status);
      ++script.arrivals;
    });
  }
  int reports() {
    int count = 0;
    scripts_[0].change([&] {
      for (const std::string& call : scripts_[0].calls) count += call.rfind("report", 0) == 0;
    });
    return count;
  }

  std::array<Script, kCores> scripts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ended_ = 0;
  std::optional<Engine> engine_;
};

TEST_F(PartsTest, AnOperationEndsWithItsLastPart) {
  for (const size_t first : {0, 1}) {
    std::atomic<bool> ended{false};
    const Work work = submit([&](const Status&, uint64_t) { ended = true; });
    const uint64_t id = first;
    end(first, id);
    EXPECT_EQ(work.wait(milliseconds(30)).code(), ErrorCode::kTimeout);
    EXPECT_FALSE(ended);
    end(1 - first, id);
    EXPECT_TRUE(work.wait(kPatience).ok());
    EXPECT_TRUE(ended);
  }
}

TEST_F(PartsTest, OneErrorIsTheOperations) {
  const Work work = submit();
  end(0, 0, Status(ErrorCode::kOverflow, "too large"));
  end(1, 0);
  EXPECT_EQ(work.wait(kPatience).code(), ErrorCode::kOverflow);
  EXPECT_TRUE(engine_->status().ok());
}

TEST_F(PartsTest, WhatAllRanksHaveFinishedIsWhatAllPartsProve) {
  for (Script& script : scripts_) script.change([&] { script.has_no_part = true; });
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(submit().wait(kPatience).ok());
  scripts_[1].change([&] { scripts_[1].has_no_part = false; });
  std::atomic<uint64_t> everywhere{77};
  const Work work = submit([&](const Status&, uint64_t known) { everywhere = known; });
  end(1, 5);  // proves nothing; the other part has proven 5
  EXPECT_TRUE(work.wait(kPatience).ok());
  EXPECT_EQ(everywhere, 0u);
}

TEST_F(PartsTest, TheFailureOfOneCoreEndsAllAndIsReportedOnce) {
  const Work first = submit(), second = submit();
  end(0, 1);
  ASSERT_TRUE(scripts_[1].comes_true([&] { return scripts_[1].submitted.size() == 2; }));
  scripts_[1].change([&] {
    scripts_[1].own_failure = Status(ErrorCode::kMismatch, "different sizes");
    scripts_[1].arrivals = 1;
  });
  EXPECT_EQ(first.wait(kPatience).code(), ErrorCode::kMismatch);
  EXPECT_EQ(second.wait(kPatience).code(), ErrorCode::kMismatch);
  EXPECT_EQ(submit().wait(kPatience).code(), ErrorCode::kMismatch);
  EXPECT_EQ(engine_->status().code(), ErrorCode::kMismatch);
  ASSERT_TRUE(scripts_[0].comes_true([&] {
    return std::count(scripts_[0].calls.begin(), scripts_[0].calls.end(), "report: different sizes") == 1;
  }));
  engine_.reset();
  EXPECT_EQ(reports(), 1);
}

TEST_F(PartsTest, AFailureFromOutsideEndsAllWithoutAReport) {
  const Work work = submit();
  end(0, 0);
  engine_->fail(Status(ErrorCode::kPeerLost, "rank 1 is gone", 1));
  EXPECT_EQ(work.wait(kPatience).rank(), 1);
  engine_.reset();
  EXPECT_EQ(reports(), 0);
}

TEST_F(PartsTest, ARankThatHasLeftEndsThePartsThatNeedIt) {
  const Work work = submit();
  end(0, 0);
  engine_->peer_left(3);
  EXPECT_EQ(work.wait(kPatience).rank(), 3);
}

TEST_F(PartsTest, StopEndsWhatIsInProgress) {
  const Work work = submit();
  end(1, 0);
  engine_->stop();
  EXPECT_EQ(work.wait(kPatience).code(), ErrorCode::kAborted);
}

TEST_F(PartsTest, ADeadlineOfOnePartIsTheOperations) {
  const Work work = submit({}, 0, milliseconds(50));
  end(0, 0);
  const Status status = work.wait(kPatience);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("by the core"));
}

TEST_F(PartsTest, AllCoresGetTheOperationsOfAllThreadsInOneOrder) {
  for (Script& script : scripts_) script.change([&] { script.has_no_part = true; });
  constexpr uint32_t kThreads = 4, kOperations = 500;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kOperations; ++i) {
        const Work work = submit({}, 1 + t * kOperations + i);
        if (i % 3 != 0) {
          EXPECT_TRUE(work.wait(kPatience).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Script& script : scripts_)
    ASSERT_TRUE(script.comes_true([&] { return script.tags.size() == kThreads * kOperations; }));
  EXPECT_EQ(scripts_[0].tags, scripts_[1].tags);
}

// An operation that has ended everywhere by the time that submit() returns: its callback may need a lock of the caller's.
TEST_F(PartsTest, NothingEndsWithinSubmit) {
  for (Script& script : scripts_) script.change([&] { script.has_no_part = true; });
  for (int i = 0; i < 1000; ++i) {
    Work work;
    {
      const std::lock_guard lock(mutex_);
      work = submit([this](const Status&, uint64_t) {
        const std::lock_guard inner(mutex_);  // hangs within submit()
        ++ended_;
        changed_.notify_all();
      });
    }
    if (i % 2 == 0) {
      EXPECT_TRUE(work.wait(kPatience).ok());
    }
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, [&] { return ended_ == i + 1; }));
  }
}

TEST_F(PartsTest, ACallerDrivesThePartThatIsNotEmpty) {
  scripts_[0].change([&] { scripts_[0].has_no_part = true; });
  scripts_[1].change([&] { scripts_[1].echoes = true; });
  bool mine = false;
  for (int i = 0; i < 100'000 && !mine; ++i) {
    EXPECT_TRUE(submit().wait().ok());
    scripts_[1].change([&] { mine = scripts_[1].driver == std::this_thread::get_id(); });
  }
  EXPECT_TRUE(mine);
}

TEST_F(PartsTest, WhileACallerDrivesOnePartTheThreadsRunTheOthers) {
  for (Script& script : scripts_) script.change([&] { script.echoes = true; });
  bool mine = false;
  for (int i = 0; i < 100'000 && !mine; ++i) {
    EXPECT_TRUE(submit().wait().ok());
    scripts_[0].change([&] { mine = scripts_[0].driver == std::this_thread::get_id(); });
  }
  EXPECT_TRUE(mine);
  scripts_[1].change([&] { EXPECT_NE(scripts_[1].driver, std::this_thread::get_id()); });
}

}  // namespace
}  // namespace netsum::engine_threads_test
