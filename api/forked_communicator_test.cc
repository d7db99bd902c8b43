// A child that was forked while its parent has a communicator.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "netsum/sparse.h"
#include "session/job_testing.h"

namespace netsum::forked_communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Bits of a child's exit status.
enum Wrong {
  kAllReduce = 1,
  kBarrier = 2,
  kSparse = 4,
  kRegroup = 8,
  kStatus = 16,
  kDescription = 32,
  kWait = 64,
  kEnded = 128
};

bool is_refused(const Status& status) {
  return status.code() == ErrorCode::kAborted &&
         status.message().find("was forked since") != std::string::npos;
}

bool waits_are_refused(const Work& work) {
  Status later;
  work.on_done([&](const Status& status) { later = status; });
  return work.done() && is_refused(work.wait()) && is_refused(work.wait(seconds(5))) && is_refused(later);
}

// Returns what went wrong in a child that calls everything, or -1 if it had not ended by the deadline. `unfinished` is an operation of
// the parent's that cannot end meanwhile, and `ended` one that has.
int in_a_child(std::unique_ptr<Communicator>& communicator, const Work& unfinished, const Work& ended) {
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    std::vector<float> data(1000, 1.0f);
    const TensorView tensor{data.data(), data.data(), data.size()};
    if (!is_refused(communicator->all_reduce(tensor, {}).wait(seconds(5)))) wrong |= kAllReduce;
    if (!is_refused(communicator->start_barrier(seconds(5)).wait(seconds(5)))) wrong |= kBarrier;
    if (!is_refused(sparse_all_reduce(*communicator, tensor, {}).wait(seconds(5)))) wrong |= kSparse;
    if (!is_refused(communicator->regroup({}).status())) wrong |= kRegroup;
    if (!is_refused(communicator->status())) wrong |= kStatus;
    if (communicator->describe().find("was forked") == std::string::npos) wrong |= kDescription;
    if (!waits_are_refused(unfinished)) wrong |= kWait;
    if (!ended.done() || !ended.wait().ok() || !ended.wait(seconds(5)).ok()) wrong |= kEnded;
    communicator->abort("a child's");
    communicator.reset();
    _exit(wrong);
  }
  for (int waited_ms = 0; waited_ms < 60'000; waited_ms += 10) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    std::this_thread::sleep_for(milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

// All calls are refused there, the child ends, and the parent's job goes on.
void expect_refusals(CommunicatorOptions options) {
  options.timeout = options.connect_timeout = seconds(120);
  std::atomic<bool> child_ended = false;
  run_ranks(2, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    std::vector<float> data(1000, 1.0f);
    const TensorView tensor{data.data(), data.data(), data.size()};
    const Work ended = communicator->all_reduce(tensor, {});
    ASSERT_TRUE(ended.wait().ok());
    if (rank == 0) {
      const Work unfinished = communicator->start_barrier(seconds(120));
      EXPECT_EQ(in_a_child(communicator, unfinished, ended), 0);
      child_ended = true;
      EXPECT_TRUE(unfinished.wait().ok());
    } else {
      while (!child_ended) std::this_thread::sleep_for(milliseconds(10));
      EXPECT_TRUE(communicator->start_barrier(seconds(120)).wait().ok());
    }
    // Before the last sum: after it, the rank where the others meet may have gone.
    EXPECT_TRUE(communicator->status().ok()) << communicator->status().to_string();
    sum_and_check(*communicator, 1000);
  });
}

TEST(ForkedCommunicator, RefusesCallsWithAnAggregator) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options;
  options.aggregators = {aggregator->control_address()};
  options.shared_memory = false;
  expect_refusals(options);
}

TEST(ForkedCommunicator, RefusesCallsWithFailover) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options;
  options.aggregators = {aggregator->control_address()};
  options.on_failure = FailurePolicy::kFailover;
  expect_refusals(options);
}

TEST(ForkedCommunicator, RefusesCallsInSharedMemory) {
  CommunicatorOptions options;
  options.root = "127.0.0.1:0";
  expect_refusals(options);
}

}  // namespace
}  // namespace netsum::forked_communicator_test
