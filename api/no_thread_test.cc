// No thread is to be had, as in a container that limits processes: an error of the call, on any thread of the library.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "netsum/sparse.h"
#include "session/job_testing.h"

namespace {

constexpr int kNever = -1;

// How many threads can be had from now on; kNever: no limit.
std::atomic<int> threads_left{kNever};

// gRPC, which has ways of its own to start threads, cannot do without them.
bool is_of_std_thread(void* (*body)(void*)) {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(body), &info) != 0 &&
         std::string(info.dli_fname).find("libstdc++") != std::string::npos;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left != kNever && is_of_std_thread(body) && threads_left-- <= 0) {
    threads_left = 0;
    return EAGAIN;
  }
  return create(thread, attributes, body, argument);
}

namespace netsum::no_thread_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// `start` needs some threads; with fewer, it must say so.
int expect_an_error_without_threads(const std::function<Status()>& start) {
  for (int threads = 0; threads < 100; ++threads) {
    threads_left = threads;
    const Status status = start();
    const bool had_all = threads_left > 0 || status.ok();
    threads_left = kNever;
    if (had_all) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      return threads;
    }
    EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("cannot start a thread"));
  }
  return -1;
}

CommunicatorOptions alone() {
  CommunicatorOptions options;
  options.world_size = 1;
  options.job = "alone";
  options.root = "127.0.0.1:0";
  return options;
}

TEST(NoThreadTest, ConnectingWithShards) {
  const int needed = expect_an_error_without_threads([] { return Communicator::connect(alone()).status(); });
  EXPECT_GE(needed, 3) << "service, shard, engine";
}

TEST(NoThreadTest, ConnectingToAnAggregatorAndMoving) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = alone();
  options.root.clear();
  options.aggregators = {aggregator->control_address()};
  options.liveness_timeout = seconds(60);
  options.on_failure = FailurePolicy::kFailover;
  const int needed = expect_an_error_without_threads([&] { return Communicator::connect(options).status(); });
  EXPECT_GE(needed, 4) << "heartbeats, engine, supervisor, searcher";
}

TEST(NoThreadTest, AnAggregator) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.cores = 2;
  const int needed = expect_an_error_without_threads([&] { return Aggregator::start(options).status(); });
  EXPECT_GE(needed, 3) << "two cores, deadlines";
}

TEST(NoThreadTest, ASparseAllReduce) {
  auto connected = Communicator::connect(alone());
  ASSERT_TRUE(connected.ok()) << connected.status().to_string();
  Communicator& communicator = **connected;
  std::vector<float> data(100, 1.0f);
  const TensorView tensor{data.data(), data.data(), data.size()};
  threads_left = 0;
  const Status status = sparse_all_reduce(communicator, tensor, {}).wait();
  threads_left = kNever;
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted) << status.to_string();
  EXPECT_EQ(communicator.status().code(), ErrorCode::kAborted) << "the other ranks must not wait";
}

// The search for another aggregator needs none for itself. The engine of the next session does.
TEST(NoThreadTest, AnAggregatorIsLost) {
  auto first = start_aggregator_at("127.0.0.1:0");
  const auto second = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options;
  options.job = "moving";
  options.aggregators = {first->control_address()};
  options.fallback_aggregators = {second->control_address()};
  options.on_failure = FailurePolicy::kFailover;
  std::barrier ready(2);
  run_ranks(2, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    sum_and_check(*communicator, 100);
    ready.arrive_and_wait();
    if (rank == 0) {
      threads_left = 0;
      first.reset();
    }
    ready.arrive_and_wait();
    int32_t value = 1;
    const Work work = communicator->all_reduce(TensorView{&value, &value, 1},
                                               {.type = DataType::kInt32, .timeout = seconds(60)});
    EXPECT_EQ(work.wait(milliseconds(500)).code(), ErrorCode::kTimeout) << "there is no engine";
    ready.arrive_and_wait();
    threads_left = kNever;
    const Status status = work.wait();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(value, 2);
    EXPECT_EQ(communicator->stats().failovers, 1u);
    ready.arrive_and_wait();
  });
}

TEST(NoThreadTest, AnAggregatorIsLostAndThereIsNoThreadForLong) {
  auto first = start_aggregator_at("127.0.0.1:0");
  const auto second = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = alone();
  options.root.clear();
  options.aggregators = {first->control_address()};
  options.fallback_aggregators = {second->control_address()};
  options.on_failure = FailurePolicy::kFailover;
  options.failover_timeout = milliseconds(2'000);
  auto connected = Communicator::connect(options);
  ASSERT_TRUE(connected.ok()) << connected.status().to_string();
  threads_left = 0;
  first.reset();
  const Status status = (*connected)->barrier(seconds(60));
  threads_left = kNever;
  EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("cannot start a thread"));
}

}  // namespace
}  // namespace netsum::no_thread_test
