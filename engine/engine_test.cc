// The engine's loop, with a core that the test holds in its hand.
#include "engine/engine.h"

#include <gmock/gmock.h>

#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "engine/failure_notifier.h"
#include "engine/scripted_core_testing.h"
#include "src/base/clock.h"

namespace netsum::engine_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class EngineTest : public ::testing::Test {
 protected:
  void start() {
    engine_.emplace(std::make_unique<ScriptedCore>(&script_), [this](const Status& status) {
      script_.change([&] { script_.calls.push_back("report: " + status.message()); });
    });
    ASSERT_TRUE(engine_->start().ok());
  }
  Work submit(milliseconds timeout = kPatience, OnEnd on_end = {}) {
    OperationSpec spec;
    spec.deadline_us = monotonic_us() + timeout.count() * 1000;
    return engine_->submit(std::move(spec), std::move(on_end));
  }

  Script script_;
  std::optional<Engine> engine_;
};

TEST_F(EngineTest, OperationsEndInAnyOrderWithTheirOwnStatus) {
  start();
  const Work first = submit(), second = submit();
  ASSERT_TRUE(script_.comes_true([&] { return script_.submitted.size() == 2; }));
  script_.change([&] {
    script_.ends = {{1, Status()}};
    script_.arrivals = 1;
  });
  EXPECT_TRUE(second.wait(kPatience).ok());
  EXPECT_FALSE(first.done());
  script_.change([&] {
    script_.ends = {{0, Status(ErrorCode::kOverflow, "too large")}};
    script_.arrivals = 1;
  });
  EXPECT_EQ(first.wait(kPatience).code(), ErrorCode::kOverflow);
  EXPECT_TRUE(engine_->status().ok());
}

TEST_F(EngineTest, OperationsInARowWakeTheEnginesThreadOnce) {
  constexpr int kOperations = 16;
  start();
  std::promise<void> busy, go_on;
  script_.change([&] {
    script_.asked_if_idle = [&] {
      script_.change([&] {
        script_.asked_if_idle = nullptr;
        script_.wakes = 0;
      });
      busy.set_value();
      go_on.get_future().get();
    };
  });
  ASSERT_EQ(busy.get_future().wait_for(kPatience), std::future_status::ready);
  std::vector<Work> works;
  for (int i = 0; i < kOperations; ++i) works.push_back(submit());
  script_.change([&] {
    EXPECT_EQ(script_.wakes, 1);
    script_.echoes = true;
  });
  go_on.set_value();
  for (const Work& work : works) EXPECT_TRUE(work.wait(kPatience).ok());
  EXPECT_TRUE(submit().wait(kPatience).ok()) << "the next one is heard again";
}

TEST_F(EngineTest, ASpecificationReachesTheCoreWhole) {
  start();
  const auto chunk_map = std::make_shared<const ChunkMap>(3);
  float value = 0;
  OperationSpec spec;
  spec.type = DataType::kFloat16;
  spec.op = ReduceOp::kAvg;
  spec.tensors = {{&value, &value, 1, 77}};
  spec.role = {.collective = Collective::kReduce,
               .parameter = 5,
               .contributors = Ranks::owners(),
               .receivers = Ranks::one(3),
               .rank = 4,
               .chunk_map = chunk_map};
  spec.deadline_us = monotonic_us() + 60'000'000;
  spec.joint = {.more_inputs = {&value}, .context = 6, .first_offset = 7};
  engine_->submit(OperationSpec(spec));
  ASSERT_TRUE(script_.comes_true([&] { return script_.submitted.size() == 1; }));
  const std::lock_guard lock(script_.mutex);
  const OperationSpec& got = script_.latest_spec;
  EXPECT_EQ(got.type, spec.type);
  EXPECT_EQ(got.op, spec.op);
  ASSERT_EQ(got.tensors.size(), 1u);
  EXPECT_EQ(got.tensors[0].id, 77u);
  EXPECT_EQ(got.role.collective, Collective::kReduce);
  EXPECT_EQ(got.role.parameter, 5u);
  EXPECT_EQ(got.role.contributors.of(9), 9);
  EXPECT_EQ(got.role.receivers.of(9), 3);
  EXPECT_EQ(got.role.rank, 4);
  EXPECT_EQ(got.role.chunk_map, chunk_map);
  EXPECT_EQ(got.deadline_us, spec.deadline_us);
  EXPECT_EQ(got.joint.more_inputs, spec.joint.more_inputs);
  EXPECT_EQ(got.joint.context, 6u);
  EXPECT_EQ(got.joint.first_offset, 7u);
}

TEST_F(EngineTest, AFailureFromOutsideWaitsForWhatHasArrived) {
  start();
  const Work summed = submit(), lost = submit();
  ASSERT_TRUE(script_.comes_true([&] { return script_.submitted.size() == 2; }));
  script_.change([&] { script_.never_empty = true; });
  ASSERT_TRUE(script_.comes_true([&] { return script_.handled > 0; }));
  engine_->fail(Status(ErrorCode::kPeerLost, "rank 1 is gone", 1));
  int handled = 0;
  script_.change([&] { handled = script_.handled; });
  ASSERT_TRUE(script_.comes_true([&] { return script_.handled > handled + 3; }));
  EXPECT_FALSE(summed.done());
  script_.change([&] { script_.ends = {{0, Status()}}; });
  EXPECT_TRUE(summed.wait(kPatience).ok());
  EXPECT_FALSE(lost.done());
  script_.change([&] { script_.never_empty = false; });
  EXPECT_EQ(lost.wait(kPatience).code(), ErrorCode::kPeerLost);
  EXPECT_EQ(engine_->status().rank(), 1);
  engine_.reset();
  EXPECT_THAT(script_.calls, ::testing::ElementsAre("fail: rank 1 is gone", ::testing::_))
      << "whoever calls fail() needs no report; the last one is the end";
}

TEST_F(EngineTest, TheCoresOwnFailureIsReportedOnceAfterTheOperationsHaveEnded) {
  start();
  const OnEnd note = [this](const Status&, const auto&) {
    script_.change([&] { script_.calls.push_back("end"); });
  };
  submit(kPatience, note);
  submit(kPatience, note);
  ASSERT_TRUE(script_.comes_true([&] { return script_.submitted.size() == 2; }));
  script_.change([&] {
    script_.own_failure = Status(ErrorCode::kMismatch, "different sizes");
    script_.arrivals = 1;
  });
  ASSERT_TRUE(script_.comes_true([&] { return script_.calls.size() == 3; }));
  EXPECT_EQ(submit().wait(kPatience).code(), ErrorCode::kMismatch);
  engine_->fail(Status(ErrorCode::kPeerLost, "later"));
  engine_.reset();
  EXPECT_THAT(script_.calls, ::testing::ElementsAre("end", "end", "report: different sizes", ::testing::_));
}

TEST_F(EngineTest, ADeadlineHoldsThoughPacketsNeverStopArriving) {
  script_.never_empty = true;
  start();
  const Status status = submit(milliseconds(50)).wait(kPatience);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("by the core"));
}

TEST_F(EngineTest, OperationsThatNeedARankThatHasLeftEndAndTheEngineSleeps) {
  start();
  Script other_script;
  other_script.progresses = true;
  Engine other(std::make_unique<ScriptedCore>(&other_script), [](const Status&) {});
  ASSERT_TRUE(other.start().ok());
  OperationSpec spec;
  spec.deadline_us = monotonic_us() + 2 * std::chrono::microseconds(kPatience).count();
  const Work late = other.submit(std::move(spec));
  other.peer_left(3);
  const Work work = submit();
  engine_->peer_left(3);
  const Status status = work.wait(kPatience);
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(status.rank(), 3);
  EXPECT_THAT(status.message(), HasSubstr("rank 3 has left the job"));
  EXPECT_FALSE(late.done()) << "its results still come";
  other.stop();
  // The failed operation stays with the core, and the time at which it failed is past.
  int before = 0;
  script_.change([&] { before = script_.idle_waits; });
  std::this_thread::sleep_for(milliseconds(100));
  script_.change([&] { EXPECT_LE(script_.idle_waits, before + 1); });
}

TEST_F(EngineTest, StopEndsWhatIsInProgress) {
  start();
  const Work work = submit();
  engine_->stop();
  EXPECT_EQ(work.wait(kPatience).code(), ErrorCode::kAborted);
  engine_->stop();
}

TEST_F(EngineTest, AFailureThatTheControlPlaneReportedBeforeThereWasAnEngineReachesIt) {
  FailureNotifier failures;
  failures.job_failed(Status(ErrorCode::kPeerLost, "rank 2 is gone", 2));
  failures.job_failed(Status(ErrorCode::kAggregatorLost, "later"));
  EXPECT_EQ(failures.failure().rank(), 2);
  start();
  const Work work = submit();
  failures.attach(&*engine_);
  EXPECT_EQ(work.wait(kPatience).message(), "rank 2 is gone");
  failures.attach(nullptr);
  engine_.reset();
  failures.job_failed(Status(ErrorCode::kPeerLost, "nobody is told"));
}

TEST_F(EngineTest, ARankThatLeftBeforeThereWasAnEngineIsKnownToIt) {
  FailureNotifier failures;
  failures.rank_left(1);
  EXPECT_TRUE(failures.failure().ok());
  start();
  const Work work = submit();
  failures.attach(&*engine_);
  EXPECT_EQ(work.wait(kPatience).rank(), 1);
  failures.attach(nullptr);
}

}  // namespace
}  // namespace netsum::engine_test
