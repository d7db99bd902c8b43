// A failover at the worst moment: threads are held up where the order of events matters.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "api/job_communicator.h"
#include "session/job_testing.h"

namespace netsum::failover_order_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Only a hang makes it this long.
constexpr seconds kPatience{60};

CommunicatorOptions options_for(int rank, const Aggregator& first, const Aggregator& second) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = 2;
  options.job = "order";
  options.aggregators = {first.control_address()};
  options.fallback_aggregators = {second.control_address()};
  options.on_failure = FailurePolicy::kFailover;
  return options;
}

// Two ranks at one of two aggregators; either rank may have hooks.
struct TwoRanks {
  std::unique_ptr<Aggregator> first = start_aggregator_at("127.0.0.1:0");
  std::unique_ptr<Aggregator> second = start_aggregator_at("127.0.0.1:0");
  std::unique_ptr<Communicator> ranks[2];

  // `edit` may change the options of a rank.
  void connect(const FailoverHooks& hooks0, const FailoverHooks& hooks1,
               const std::function<void(CommunicatorOptions&)>& edit = nullptr) {
    const auto connect_rank = [&](int rank, const FailoverHooks& hooks) {
      CommunicatorOptions options = options_for(rank, *first, *second);
      if (edit) edit(options);
      return JobCommunicator::connect(options, hooks);
    };
    auto one = std::async(std::launch::async, [&] { return connect_rank(1, hooks1); });
    auto zero = connect_rank(0, hooks0);
    auto connected = one.get();
    ASSERT_TRUE(zero.ok()) << zero.status().to_string();
    ASSERT_TRUE(connected.ok()) << connected.status().to_string();
    ranks[0] = std::move(zero).value();
    ranks[1] = std::move(connected).value();
  }
};

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

Work sum_in_place(Communicator& communicator, std::vector<float>& data, milliseconds timeout = kPatience) {
  AllReduceOptions options;
  options.timeout = timeout;
  return communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, options);
}

// A hook waits for it until the test sets it, or until the time limit if the test has failed before.
class Event {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// Rank 0's all_reduce() is held up while its operation completes, the aggregator is lost and a session begins
// at the second one. Rank 1 is held up there, so that whatever rank 0 repeats is under way when its operation
// has ended.
TEST(FailoverOrderTest, NothingIsWrittenToATensorAfterItsWorkHasEnded) {
  Event moved, ended;
  TwoRanks job;
  job.connect({.submitted = [&] { moved.wait(); }}, {.met = [&] { ended.wait(); }});
  std::vector<float> mine(1000, 1.0f), theirs(1000, 2.0f);
  auto work = std::async(std::launch::async, [&] { return sum_in_place(*job.ranks[0], mine); });
  ASSERT_TRUE(sum_in_place(*job.ranks[1], theirs).wait().ok());
  // The first one is connect()'s.
  ASSERT_TRUE(comes_true([&] { return job.ranks[0]->stats().completed.count() > 1; }));
  job.first.reset();
  ASSERT_TRUE(comes_true([&] { return job.ranks[0]->stats().failovers == 1; }));

  moved.set();
  const Status status = work.get().wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(mine, std::vector<float>(1000, 3.0f));
  const std::vector<float> next(1000, -7.0f);
  mine = next;  // the caller's again
  ended.set();
  auto barrier = std::async(std::launch::async, [&] { return job.ranks[1]->barrier(kPatience); });
  EXPECT_TRUE(job.ranks[0]->barrier(kPatience).ok());
  EXPECT_TRUE(barrier.get().ok());
  EXPECT_EQ(mine, next);
}

// Rank 0 has two operations in flight when its session is lost. The second one's report comes when the session has been
// taken out already.
TEST(FailoverOrderTest, ALaterReportIsNoLossOfTheNextSession) {
  TwoRanks job;
  std::atomic<int> reports = 0;
  const auto failing = [&] {
    if (++reports != 2) return;
    EXPECT_TRUE(
        comes_true([&] { return job.ranks[0]->describe().find("looking for") != std::string::npos; }));
  };
  job.connect({.failing = failing}, {});
  std::vector<float> mine[2] = {std::vector<float>(1000, 1.0f), std::vector<float>(1000, 1.0f)};
  std::vector<float> theirs[2] = {std::vector<float>(1000, 2.0f), std::vector<float>(1000, 2.0f)};
  const Work works[2] = {sum_in_place(*job.ranks[0], mine[0]), sum_in_place(*job.ranks[0], mine[1])};
  job.first.reset();
  ASSERT_TRUE(comes_true([&] { return job.ranks[1]->stats().failovers == 1; }));
  for (std::vector<float>& data : theirs) {
    const Status status = sum_in_place(*job.ranks[1], data).wait();
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  for (const Work& work : works) EXPECT_TRUE(work.wait().ok()) << work.wait().to_string();
  EXPECT_GE(reports, 2);
  for (const auto& rank : job.ranks) EXPECT_EQ(rank->stats().failovers, 1u);
}

// Of the packets for rank 1 half are lost, so that mostly some operation has ended on rank 0 only, which has to repeat it
// for rank 1.
TEST(FailoverOrderTest, WhatHasEndedOnOneRankIsRepeatedForTheOther) {
  for (uint64_t round = 0; round < 6; ++round) {
    TwoRanks job;
    job.connect({}, {}, [&](CommunicatorOptions& options) {
      if (options.rank == 1) options.inject = {.loss = 0.5, .seed = 10 * round};
    });
    constexpr size_t kOperations = 3, kElements = 1000;
    std::vector<std::vector<float>> mine(kOperations), theirs(kOperations);
    std::vector<Work> works, others;
    for (size_t i = 0; i < kOperations; ++i) {
      mine[i].assign(kElements, static_cast<float>(i + 1));
      theirs[i].assign(kElements, 100.0f);
      works.push_back(sum_in_place(*job.ranks[0], mine[i]));
      others.push_back(sum_in_place(*job.ranks[1], theirs[i]));
    }
    for (const Work& work : works) ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
    job.first.reset();
    for (size_t i = 0; i < kOperations; ++i) {
      EXPECT_EQ(mine[i], std::vector<float>(kElements, static_cast<float>(i + 101)));
      mine[i].assign(kElements, -7.0f);  // the caller's again
    }
    for (size_t i = 0; i < kOperations; ++i) {
      const Status status = others[i].wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(theirs[i], std::vector<float>(kElements, static_cast<float>(i + 101)));
    }
    auto barrier = std::async(std::launch::async, [&] { return job.ranks[1]->barrier(kPatience); });
    EXPECT_TRUE(job.ranks[0]->barrier(kPatience).ok());
    EXPECT_TRUE(barrier.get().ok());
    for (const auto& tensor : mine) EXPECT_EQ(tensor, std::vector<float>(kElements, -7.0f));
    for (const auto& rank : job.ranks) {
      EXPECT_EQ(rank->stats().operations, kOperations);
      EXPECT_EQ(rank->stats().failovers, 1u);
    }
  }
}

TEST(FailoverOrderTest, OperationsAreCountedWhenTheyEndAndOnceHoweverOftenTheyAreRepeated) {
  TwoRanks job;
  job.connect({}, {});
  std::vector<float> mine(1000, 1.0f), theirs(1000, 2.0f);
  const Work work = sum_in_place(*job.ranks[0], mine);
  CommunicatorStats stats = job.ranks[0]->stats();
  EXPECT_EQ(stats.operations_submitted, 1u);
  EXPECT_EQ(stats.operations + stats.operations_failed, 0u);
  job.first.reset();
  ASSERT_TRUE(comes_true([&] { return job.ranks[0]->stats().failovers == 1; }));
  ASSERT_TRUE(sum_in_place(*job.ranks[1], theirs).wait().ok());
  ASSERT_TRUE(work.wait().ok());
  stats = job.ranks[0]->stats();
  EXPECT_EQ(stats.operations_submitted, 1u);
  EXPECT_EQ(stats.operations, 1u);
  EXPECT_EQ(stats.operations_failed, 0u);

  job.ranks[0]->abort("enough");
  EXPECT_EQ(sum_in_place(*job.ranks[0], mine).wait().code(), ErrorCode::kAborted);
  stats = job.ranks[0]->stats();
  EXPECT_EQ(stats.operations_submitted, 2u);
  EXPECT_EQ(stats.operations, 1u);
  EXPECT_EQ(stats.operations_failed, 1u);
}

// A loss leaves an operation the deadline that it had: rank 0's first one is due before its second one, which
// was submitted long after it.
TEST(FailoverOrderTest, TheDeadlineCountsFromSubmissionThroughAFailover) {
  TwoRanks job;
  job.connect({}, {});
  std::vector<float> early(10, 1.0f), late(20, 1.0f);
  const Work first = sum_in_place(*job.ranks[0], early, seconds(12));
  std::this_thread::sleep_for(seconds(3));
  job.first.reset();
  ASSERT_TRUE(comes_true([&] { return job.ranks[0]->stats().failovers == 1; }));
  const Work second = sum_in_place(*job.ranks[0], late, seconds(11));
  const Status status = second.wait();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("float32[10]"));
  EXPECT_EQ(first.wait().code(), ErrorCode::kTimeout);
}

TEST(FailoverOrderTest, TheDeadlineEndsAnOperationWhileAnotherPlaceIsSought) {
  TwoRanks job;
  job.connect({}, {});
  std::vector<float> data(10, 1.0f);
  job.first.reset();
  job.second.reset();
  std::vector<float> patient(20, 1.0f);
  const Work later = sum_in_place(*job.ranks[0], patient);
  const Status status = sum_in_place(*job.ranks[0], data, seconds(2)).wait();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
  EXPECT_THAT(status.message(),
              HasSubstr("all_reduce (float32[10]) is not finished by its deadline, 2000 ms"));
  EXPECT_EQ(job.ranks[0]->status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(later.wait().code(), ErrorCode::kTimeout);
  EXPECT_EQ(sum_in_place(*job.ranks[0], data).wait().code(), ErrorCode::kTimeout);
}

TEST(FailoverOrderTest, AbortEndsTheSearchForAnotherPlace) {
  TwoRanks job;
  job.connect({}, {}, [](CommunicatorOptions& options) { options.failover_timeout = 2 * kPatience; });
  job.first.reset();
  job.second.reset();
  ASSERT_TRUE(comes_true([&] { return job.ranks[0]->describe().find("looking for") != std::string::npos; }));
  job.ranks[0]->abort("enough");
  // It waits for the end of the search.
  auto regroup = std::async(std::launch::async, [&] {
    RegroupOptions options;
    options.timeout = milliseconds(100);
    return job.ranks[0]->regroup(options).status();
  });
  EXPECT_EQ(regroup.wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(regroup.get().ok());
}

TEST(FailoverOrderTest, AbortEndsOperationsWhileAnotherPlaceIsSoughtOnAllRanks) {
  Event aborted;
  TwoRanks job;
  job.connect({.met = [&] { aborted.wait(); }}, {});
  std::vector<float> mine(1000, 1.0f), theirs(1000, 2.0f);
  const Work work = sum_in_place(*job.ranks[0], mine);
  job.first.reset();
  ASSERT_TRUE(comes_true([&] { return job.ranks[1]->stats().failovers == 1; }));
  const Work other = sum_in_place(*job.ranks[1], theirs);
  job.ranks[0]->abort("enough");
  EXPECT_EQ(work.wait(kPatience / 2).code(), ErrorCode::kAborted);  // before the time limit of the hook
  aborted.set();
  const Status status = other.wait();
  EXPECT_EQ(status.code(), ErrorCode::kAborted) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 0"));
}

// The operations have ended in the session, and wait for the next one, when abort() comes between the loss and the search.
TEST(FailoverOrderTest, AbortEndsWhatALossHasEndedBeforeTheSearchBegins) {
  Event aborted;
  std::atomic<int> reports = 0;
  TwoRanks job;
  job.connect({.failing = [&] { ++reports; }, .lost = [&] { aborted.wait(); }}, {});
  std::vector<float> first(1000, 1.0f), second(1000, 1.0f);
  const Work work = sum_in_place(*job.ranks[0], first), later = sum_in_place(*job.ranks[0], second);
  job.first.reset();
  ASSERT_TRUE(comes_true([&] { return reports == 2; }));  // the first has been reported
  job.ranks[0]->abort("enough");
  aborted.set();
  EXPECT_EQ(work.wait(kPatience / 2).code(), ErrorCode::kAborted);
  EXPECT_EQ(later.wait(kPatience / 2).code(), ErrorCode::kAborted);
  EXPECT_EQ(sum_in_place(*job.ranks[0], first).wait().code(), ErrorCode::kAborted);
  const CommunicatorStats stats = job.ranks[0]->stats();
  EXPECT_EQ(stats.operations_submitted, stats.operations_failed);
}

TEST(FailoverOrderTest, OtherThreadsNeedNotWaitWhileAbortTellsTheOtherRanks) {
  Event asked;
  TwoRanks job;
  job.connect({.aborting = [&] { asked.wait(); }}, {});
  std::vector<float> mine(1000, 1.0f);
  const Work work = sum_in_place(*job.ranks[0], mine);
  auto abort = std::async(std::launch::async, [&] { job.ranks[0]->abort("enough"); });
  EXPECT_EQ(work.wait(kPatience / 2).code(), ErrorCode::kAborted);  // before the time limit of the hook
  auto status = std::async(std::launch::async, [&] { return job.ranks[0]->status(); });
  EXPECT_EQ(status.wait_for(kPatience / 2), std::future_status::ready);
  auto refused = std::async(std::launch::async, [&] { return sum_in_place(*job.ranks[0], mine).wait(); });
  EXPECT_EQ(refused.wait_for(kPatience / 2), std::future_status::ready);
  asked.set();
  abort.get();
  EXPECT_EQ(status.get().code(), ErrorCode::kAborted);
  EXPECT_EQ(refused.get().code(), ErrorCode::kAborted);
  EXPECT_TRUE(comes_true([&] { return job.ranks[1]->status().code() == ErrorCode::kAborted; }));
}

// The session that abort() uses must not be closed under it.
TEST(FailoverOrderTest, ARegroupWaitsForAnAbortInProgress) {
  Event asked;
  TwoRanks job;
  job.connect({.aborting = [&] { asked.wait(); }}, {});
  auto abort = std::async(std::launch::async, [&] { job.ranks[0]->abort("enough"); });
  ASSERT_TRUE(comes_true([&] { return !job.ranks[0]->status().ok(); }));
  auto regroup = std::async(std::launch::async, [&] {
    RegroupOptions options;
    options.timeout = milliseconds(100);
    return job.ranks[0]->regroup(options).status();
  });
  EXPECT_EQ(regroup.wait_for(milliseconds(200)), std::future_status::timeout);
  asked.set();
  abort.get();
  EXPECT_FALSE(regroup.get().ok());  // rank 1 does not come
}

}  // namespace
}  // namespace netsum::failover_order_test
