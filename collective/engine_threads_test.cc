// An engine of several threads: how the parts of an operation become one, and whole jobs.
#include "collective/engine_thread_count.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "collective/engine.h"
#include "collective/placed_job.h"
#include "collective/scripted_core.h"
#include "src/base/clock.h"
#include "src/base/rng.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

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

// --- Jobs -----------------------------------------------------------------------------------------------------

struct Job {
  Place place;
  std::array<int, PlacedJob::kRanks> threads;  // by rank
};

class ThreadsOfJobTest : public ::testing::TestWithParam<Job> {};

std::string job_name(const testing::TestParamInfo<Job>& job) {
  std::string name = place_name({job.param.place, 0});
  for (const int threads : job.param.threads) name += "_" + std::to_string(threads);
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    EngineThreads, ThreadsOfJobTest,
    testing::Values(Job{Place::kShards, {2, 2, 2, 2}}, Job{Place::kShards, {1, 4, 3, 0}},
                    Job{Place::kLossyShards, {2, 1, 4, 3}}, Job{Place::kAggregator, {2, 2, 1, 2}},
                    Job{Place::kAggregators, {4, 2, 3, 1}}, Job{Place::kHierarchy, {2, 2, 2, 2}},
                    Job{Place::kOneHost, {2, 2, 2, 2}}, Job{Place::kTwoHosts, {2, 2, 1, 2}},
                    Job{Place::kFailover, {2, 1, 2, 2}}),
    job_name);

void sum_in_place(Communicator& communicator, std::vector<int32_t>* data, std::vector<Work>* works) {
  works->push_back(communicator.all_reduce(TensorView{data->data(), data->data(), data->size()},
                                           {.type = DataType::kInt32, .timeout = seconds(60)}));
}

// Many in flight, small and large, sums and moved bytes.
TEST_P(ThreadsOfJobTest, AllOperationsHaveTheirResults) {
  PlacedJob job(GetParam().place);
  job.edit([&](CommunicatorOptions& options) {
    options.engine_threads = GetParam().threads[static_cast<size_t>(options.rank)];
  });
  job.run([&](Communicator& communicator) {
    Rng rng(7);  // the same on all ranks
    const int rank = communicator.rank(), world = communicator.world_size();
    for (int round = 0; round < 6; ++round) {
      std::vector<std::vector<int32_t>> sums(12);
      std::vector<std::vector<uint8_t>> moved(4);
      std::vector<Work> works;
      for (size_t i = 0; i < sums.size(); ++i) {
        const size_t count = rng.below(4) == 0 ? 1 + rng.below(200'000) : rng.below(2'000);
        sums[i].assign(count, static_cast<int32_t>(i) + rank);
        sum_in_place(communicator, &sums[i], &works);
        if (i % 3 != 0) continue;
        const int root = static_cast<int>(rng.below(static_cast<uint64_t>(world)));
        auto& bytes = moved[i / 3];
        bytes.assign(1 + rng.below(50'000), static_cast<uint8_t>(rank == root ? 40 + i : 1));
        const BufferView view{bytes.data(), bytes.data(), bytes.size()};
        works.push_back(communicator.broadcast(std::span(&view, 1), root, {.timeout = seconds(60)}));
      }
      for (const Work& work : works) {
        const Status status = work.wait();
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        const int32_t expected = world * static_cast<int32_t>(i) + world * (world - 1) / 2;
        for (const int32_t one : sums[i]) ASSERT_EQ(one, expected) << "sum " << i;
      }
      for (size_t i = 0; i < moved.size(); ++i)
        for (const uint8_t one : moved[i]) ASSERT_EQ(one, 40 + 3 * i) << "broadcast " << i;
      ASSERT_TRUE(communicator.barrier(seconds(60)).ok());
    }
    const CommunicatorStats stats = communicator.stats();
    EXPECT_EQ(stats.operations, stats.operations_submitted);
    uint64_t ended = 0;
    for (const auto& bucket : stats.completed.buckets) ended += bucket.count;
    if (GetParam().place != Place::kFailover) {
      EXPECT_GE(ended, stats.operations) << "each is counted once";
    }
    for (const auto& stripe : stats.stripes) EXPECT_GT(stripe.bytes_received, 0u) << stripe.address;
  });
}

TEST(EngineThreadsOfJob, DescribeSaysHowManyAndWhyNotMore) {
  PlacedJob job(Place::kAggregator);  // two stripes
  job.edit([](CommunicatorOptions& options) { options.engine_threads = options.rank + 1; });
  job.run([](Communicator& communicator) {
    const std::string text = communicator.describe();
    if (communicator.rank() == 0) {
      EXPECT_THAT(text, Not(HasSubstr("engine thread")));
    } else if (communicator.rank() == 1) {
      EXPECT_THAT(text, HasSubstr("; 2 engine threads"));
    } else {
      EXPECT_THAT(text, HasSubstr("2 engine threads, WARNING: " + std::to_string(communicator.rank() + 1) +
                                  " were asked for, and 2 stripes can be divided"));
    }
  });
}

TEST(EngineThreadsOfJob, OutOfRangeIsRefused) {
  for (const int bad : {-1, 65, 1'000'000}) {
    CommunicatorOptions options;
    options.aggregators = {"127.0.0.1:1"};
    options.engine_threads = bad;
    const Status status = Communicator::connect(options).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("engine_threads is " + std::to_string(bad)));
  }
}

// With and without threads the bits are the same: chunks and their order do not depend on them.
TEST(EngineThreadsOfJob, TheBitsAreThoseOfOneThread) {
  std::array<std::vector<float>, 2> results;
  for (const int threads : {1, 2}) {
    PlacedJob job(Place::kAggregators);
    job.edit([&](CommunicatorOptions& options) { options.engine_threads = threads; });
    job.run([&](Communicator& communicator) {
      Rng rng(static_cast<uint64_t>(communicator.rank()) + 1);
      std::vector<float> data(100'000);
      for (float& one : data) one = static_cast<float>(rng.unit() - 0.5);
      for (int step = 0; step < 3; ++step) {
        const Status status =
            communicator
                .all_reduce(TensorView{data.data(), data.data(), data.size()}, {.timeout = seconds(60)})
                .wait();
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      if (communicator.rank() == 0) results[static_cast<size_t>(threads - 1)] = data;
    });
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  ASSERT_FALSE(results[0].empty());
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0);
}

// Ranks correct the weights of a plan: at one core of a rank the answer arrives, and all need it.
TEST(EngineThreadsOfJob, AllThreadsTakePartInCorrections) {
  CommunicatorOptions options;
  options.job = "corrected";
  options.root = "127.0.0.1:0";
  options.shared_memory = false;
  options.timeout = options.connect_timeout = options.liveness_timeout = seconds(60);
  // Rates far from what loopback is: the correction may have something to do.
  run_ranks(
      4, options,
      [](int, std::unique_ptr<Communicator>& communicator) {
        // The ranks ask each other after every 2 048 chunks.
        for (int step = 0; step < 60; ++step) sum_and_check(*communicator, 400'000);
        const CommunicatorStats stats = communicator->stats();
        double all = 0;
        for (const auto& stripe : stats.stripes) all += stripe.share;
        EXPECT_NEAR(all, 1, 1e-9) << "all stripes have their share of one and the same map";
        ASSERT_TRUE(communicator->barrier(seconds(60)).ok());
      },
      [](CommunicatorOptions& one) {
        one.link_rate_bps = one.rank == 0 ? 1e9 : 20e9;
        one.engine_threads = 1 + one.rank % 3;
      });
}

TEST(EngineThreadsOfJob, FailoverLosesNothing) {
  PlacedJob job(Place::kFailover);
  job.edit([](CommunicatorOptions& options) { options.engine_threads = 2; });
  std::barrier together(PlacedJob::kRanks);
  job.run([&](Communicator& communicator) {
    for (int step = 0; step < 30; ++step) {
      if (step == 10) together.arrive_and_wait();
      if (step == 10 && communicator.rank() == 0) job.end_aggregator();
      sum_and_check(communicator, step % 2 == 0 ? 50'000 : 100);
    }
    EXPECT_EQ(communicator.stats().failovers, 1u);
    together.arrive_and_wait();
  });
}

TEST(EngineThreadsOfJob, SurvivorsRegroup) {
  CommunicatorOptions options;
  options.job = "regroup";
  options.root = "127.0.0.1:0";
  options.shared_memory = false;
  options.engine_threads = 2;
  options.timeout = options.connect_timeout = seconds(60);
  std::barrier summed(3), ended(3), again(2);
  run_ranks(3, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    sum_and_check(*communicator, 50'000);
    summed.arrive_and_wait();
    if (rank == 1) communicator->abort("dies");
    EXPECT_FALSE(communicator->barrier(seconds(60)).ok());
    ended.arrive_and_wait();
    if (rank == 1) return;
    const auto regrouped = communicator->regroup({.gather = milliseconds(300)});
    ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
    EXPECT_EQ(regrouped->world_size, 2);
    sum_and_check(*communicator, 50'000);
    again.arrive_and_wait();
  });
}

}  // namespace
}  // namespace netsum
