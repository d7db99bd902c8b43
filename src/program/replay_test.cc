#include "src/program/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum::program::replay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Instruction compute(uint64_t ns) {
  return {Instruction::Kind::kCompute, ns};
}
constexpr Instruction submit(uint64_t operation) {
  return {Instruction::Kind::kSubmit, operation};
}
constexpr Instruction wait(uint64_t operation) {
  return {Instruction::Kind::kWait, operation};
}

Operation all_reduce(int64_t submitted_ns, int64_t done_ns) {
  Operation operation;
  operation.count = 1024;
  operation.submitted_ns = submitted_ns;
  operation.done_ns = done_ns;
  return operation;
}

// Two buckets: the first is summed beside the computation of the second.
Step of_two_buckets() {
  Step step;
  step.operations = {all_reduce(100, 400), all_reduce(250, 600)};
  step.threads = {{compute(100), submit(0), compute(150), submit(1), wait(0), wait(1), compute(50)}};
  step.duration_ns = 650;
  return step;
}

TEST(Replay, TheRecordedCompletionsGiveTheRecordedDuration) {
  const Step step = of_two_buckets();
  const auto times = replay(step, recorded_completions(step));
  ASSERT_TRUE(times.ok()) << times.status().to_string();
  EXPECT_EQ(times->duration_ns, step.duration_ns);
  EXPECT_EQ(times->compute_ns, 300);
  EXPECT_EQ(times->waited_ns, 350);
  EXPECT_THAT(times->submitted_ns, ElementsAre(100, 250));
  EXPECT_THAT(times->done_ns, ElementsAre(400, 600));
}

TEST(Replay, OnlyAWaitDelays) {
  const Step step = of_two_buckets();
  EXPECT_EQ(replay(step, {.after_submission = {0, 0}, .carried = {}})->duration_ns, 300);
  EXPECT_EQ(replay(step, {.after_submission = {150, 0}, .carried = {}})->duration_ns, 300);
  EXPECT_EQ(replay(step, {.after_submission = {151, 0}, .carried = {}})->duration_ns, 301);
  // The waits overlap: the longer one counts.
  EXPECT_EQ(replay(step, {.after_submission = {900, 800}, .carried = {}})->duration_ns, 1100);
}

TEST(Replay, AThreadWaitsForWhatAnotherSubmits) {
  Step step;
  step.operations = {all_reduce(10, 30), all_reduce(35, 50)};
  // The second thread submits its operation when the first operation has ended, the first one waits for it.
  step.threads = {{compute(10), submit(0), wait(1), compute(5)}, {wait(0), compute(5), submit(1)}};
  const auto times = replay(step, recorded_completions(step));
  EXPECT_EQ(times->duration_ns, 55);
  EXPECT_THAT(times->thread_end_ns, ElementsAre(55, 35));
  EXPECT_EQ(replay(step, {.after_submission = {120, 15}, .carried = {}})->duration_ns, 10 + 120 + 5 + 15 + 5);
}

TEST(Replay, CarriedOperations) {
  Step step;
  step.carried = {{.steps_back = 1, .operation = 0, .done_ns = 70},
                  {.steps_back = 2, .operation = 0, .done_ns = -5}};
  step.threads = {{compute(10), wait(0), wait(1), compute(10)}};
  EXPECT_EQ(replay(step, recorded_completions(step))->duration_ns, 80);
  EXPECT_EQ(replay(step, {.after_submission = {}, .carried = {0, 0}})->duration_ns, 20);
}

TEST(Replay, WaitsWithoutEndAreAnError) {
  Step step;
  step.operations = {all_reduce(0, 1), all_reduce(0, 1)};
  step.threads = {{wait(1), submit(0)}, {wait(0), submit(1)}};
  const auto times = replay(step, recorded_completions(step));
  EXPECT_EQ(times.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(times.status().message(),
              HasSubstr("thread 0 waits for operation 1, which is never submitted"));
}

TEST(Replay, CompletionsThatDoNotFit) {
  const Step step = of_two_buckets();
  for (const Completions& wrong : {Completions{}, Completions{.after_submission = {1, 2, 3}, .carried = {}},
                                   Completions{.after_submission = {1, 2}, .carried = {1}},
                                   Completions{.after_submission = {1, -1}, .carried = {}},
                                   Completions{.after_submission = {1, INT64_MAX}, .carried = {}}})
    EXPECT_EQ(replay(step, wrong).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace netsum::program::replay_test
