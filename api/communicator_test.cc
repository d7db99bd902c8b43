// End to end through the public API, over loopback sockets: ranks are threads of this process.
#include "netsum/communicator.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "session/job_testing.h"
#include "src/base/rng.h"
#include "src/base/soak.h"

namespace netsum::communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

using Body = std::function<void(int rank, Communicator& communicator)>;

// How the ranks believe to be spread.
enum class Spread {
  kApart,     // shared memory is off: all goes through the network
  kOneHost,   // as it is
  kTwoHosts,  // odd and even ranks on hosts of their own
};

// Runs `body` on `world_size` ranks that meet at rank 0 (embedded shards) or at `aggregators`.
class Job {
 public:
  Job(Spread spread, int world_size, std::vector<std::string> aggregators = {})
      : spread_(spread), world_size_(world_size), aggregators_(std::move(aggregators)) {}

  CommunicatorOptions options(int rank) const {
    CommunicatorOptions options;
    options.rank = rank;
    options.world_size = world_size_;
    options.job = "communicator_test";
    options.token = "secret";
    options.aggregators = aggregators_;
    options.connect_timeout = options.timeout = seconds(30);
    options.liveness_timeout = seconds(60);  // on a busy machine
    options.shared_memory = spread_ != Spread::kApart;
    if (spread_ == Spread::kTwoHosts) options.host = rank % 2 == 0 ? "even" : "odd";
    if (host_of_) options.host = host_of_(rank);
    options.numerics = numerics_;
    return options;
  }

  Job& with(Numerics numerics) {
    numerics_ = numerics;
    return *this;
  }

  Job& on_hosts(std::function<std::string(int rank)> host_of) {
    host_of_ = std::move(host_of);
    return *this;
  }

  void run(const Body& body) {
    CommunicatorOptions common = options(0);
    if (aggregators_.empty()) common.root = "127.0.0.1:0";
    run_ranks(
        world_size_, common,
        [&](int rank, std::unique_ptr<Communicator>& communicator) { body(rank, *communicator); },
        [&](CommunicatorOptions& mine) { mine.host = options(mine.rank).host; });
  }

 private:
  const Spread spread_;
  const int world_size_;
  const std::vector<std::string> aggregators_;
  std::function<std::string(int rank)> host_of_;
  Numerics numerics_ = Numerics::kAuto;
};

std::unique_ptr<Aggregator> start_aggregator(int cores = 1) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.cores = cores;
  options.in_switch = true;  // sums all
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return std::move(aggregator).value();
}

void expect_sums(int rank, int world_size, Communicator& communicator, size_t count) {
  std::vector<float> data(count);
  std::vector<int64_t> whole(count / 2 + 1);
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 97);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = (rank + 1) * static_cast<int64_t>(i) - 5'000'000'000;
  const Work floats = communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {});
  AllReduceOptions integers;
  integers.type = DataType::kInt64;
  const Work longs = communicator.all_reduce(TensorView{whole.data(), whole.data(), whole.size()}, integers);
  const Status float_status = floats.wait(), long_status = longs.wait();
  ASSERT_TRUE(float_status.ok()) << float_status.to_string();
  ASSERT_TRUE(long_status.ok()) << long_status.to_string();
  const int factor = world_size * (world_size + 1) / 2;
  for (size_t i = 0; i < data.size(); ++i) {
    ASSERT_FLOAT_EQ(data[i], static_cast<float>(factor) * static_cast<float>(i % 97)) << i;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i], factor * static_cast<int64_t>(i) - world_size * 5'000'000'000) << i;
  }
}

class AnySpread : public testing::TestWithParam<Spread> {};

INSTANTIATE_TEST_SUITE_P(Places, AnySpread,
                         testing::Values(Spread::kApart, Spread::kOneHost, Spread::kTwoHosts),
                         [](const testing::TestParamInfo<Spread>& spread) {
                           return spread.param == Spread::kApart     ? "Apart"
                                  : spread.param == Spread::kOneHost ? "OneHost"
                                                                     : "TwoHosts";
                         });

TEST(CommunicatorTest, EmbeddedShardsSum) {
  Job(Spread::kApart, 4).run([](int rank, Communicator& communicator) {
    for (const size_t count : {1u, 360u, 100'000u, 1'000'003u}) expect_sums(rank, 4, communicator, count);
    EXPECT_TRUE(communicator.barrier(seconds(10)).ok());
    const CommunicatorStats stats = communicator.stats();
    EXPECT_EQ(stats.stripes.size(), 4u);
    EXPECT_EQ(stats.operations, 8u);
    EXPECT_GT(stats.bytes_sent, stats.gradient_bytes / 2);
    EXPECT_GT(stats.shard_bytes_received, 0u);
    EXPECT_NE(communicator.describe().find("4 embedded shards"), std::string::npos);
  });
}

TEST(CommunicatorTest, SingleRank) {
  Job(Spread::kApart, 1).run([](int rank, Communicator& communicator) {
    expect_sums(rank, 1, communicator, 10'000);
  });
}

TEST(CommunicatorTest, AggregatorWithSeveralCoresSums) {
  const auto aggregator = start_aggregator(2);
  Job(Spread::kApart, 3, {aggregator->control_address()}).run([](int rank, Communicator& communicator) {
    for (const size_t count : {1u, 5'000u, 300'001u}) expect_sums(rank, 3, communicator, count);
    EXPECT_EQ(communicator.stats().stripes.size(), 2u);
    EXPECT_NE(communicator.describe().find("in the network by 1 aggregator"), std::string::npos);
  });
}

TEST(CommunicatorTest, SeveralAggregatorsShareTheChunks) {
  const auto first = start_aggregator(), second = start_aggregator();
  Job(Spread::kApart, 2, {first->control_address(), second->control_address()})
      .run([](int rank, Communicator& communicator) {
        expect_sums(rank, 2, communicator, 200'000);
        const CommunicatorStats stats = communicator.stats();
        ASSERT_EQ(stats.stripes.size(), 2u);
        EXPECT_GT(stats.stripes[0].bytes_sent, stats.bytes_sent / 3);
        EXPECT_GT(stats.stripes[1].bytes_sent, stats.bytes_sent / 3);
      });
}

TEST_P(AnySpread, ManySmallTensorsInOneOperationAndManyOperationsInFlight) {
  Job(GetParam(), 3).run([](int rank, Communicator& communicator) {
    constexpr int kTensors = 50, kOperations = 200;
    std::vector<std::vector<int32_t>> tensors(kTensors);
    std::vector<TensorView> views;
    for (int t = 0; t < kTensors; ++t) {
      tensors[t].assign(static_cast<size_t>(t % 7), rank + t);
      views.push_back({tensors[t].data(), tensors[t].data(), tensors[t].size()});
    }
    AllReduceOptions options;
    options.type = DataType::kInt32;
    ASSERT_TRUE(communicator.all_reduce(views, options).wait().ok());
    for (int t = 0; t < kTensors; ++t) {
      for (const int32_t x : tensors[t]) ASSERT_EQ(x, 3 + 3 * t);
    }
    std::vector<int32_t> values(kOperations, rank);
    std::vector<Work> works;
    for (int32_t& value : values)
      works.push_back(communicator.all_reduce(TensorView{&value, &value, 1}, options));
    for (const Work& work : works) ASSERT_TRUE(work.wait().ok());
    for (const int32_t value : values) ASSERT_EQ(value, 3);
  });
}

TEST_P(AnySpread, NanAndInfSurvive) {
  Job(GetParam(), 2).run([](int rank, Communicator& communicator) {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> data(1000, 1.0f);
    if (rank == 0) data[3] = std::nanf("");
    if (rank == 1) data[500] = inf;
    data[700] = rank == 0 ? inf : -inf;
    ASSERT_TRUE(communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait().ok());
    EXPECT_TRUE(std::isnan(data[3]));
    EXPECT_EQ(data[500], inf);
    EXPECT_TRUE(std::isnan(data[700]));
    EXPECT_EQ(data[0], 2.0f);
    EXPECT_EQ(data[999], 2.0f);
  });
}

// Tensors of one call share packets, but the error of each element is bounded by its own magnitudes (docs/numerics.md),
// whatever its neighbours hold.
TEST_P(AnySpread, TensorsOfOneCallKeepTheirOwnPrecision) {
  constexpr int kRanks = 3;
  constexpr size_t kTensors = 60;
  // Sizes of a few elements to several chunks; magnitudes from 1e-30 to 1e30, in no order.
  std::vector<std::vector<std::vector<float>>> inputs(kRanks);  // [rank][tensor]
  for (size_t t = 0; t < kTensors; ++t) {
    Rng shape(1000 + t);
    const size_t count = shape.chance(0.7) ? shape.below(30) : shape.below(2000);
    const double magnitude = std::pow(10.0, static_cast<double>(shape.below(61)) - 30);
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<float>& tensor = inputs[static_cast<size_t>(rank)].emplace_back(count);
      Rng rng(t * 10 + static_cast<size_t>(rank));
      for (float& x : tensor) x = static_cast<float>((2 * rng.unit() - 1) * magnitude);
      if (t == 40 && count > 0) tensor[0] = NAN;  // its chunk travels in wide lanes
    }
  }
  std::vector<std::vector<std::vector<float>>> results(kRanks);
  Job(GetParam(), kRanks).run([&](int rank, Communicator& communicator) {
    auto& tensors = results[static_cast<size_t>(rank)] = inputs[static_cast<size_t>(rank)];
    std::vector<TensorView> views;
    for (auto& tensor : tensors) views.push_back({tensor.data(), tensor.data(), tensor.size()});
    const Status status = communicator.all_reduce(views, {}).wait();
    ASSERT_TRUE(status.ok()) << status.to_string();
  });
  for (size_t t = 0; t < kTensors; ++t) {
    const size_t count = results[0][t].size();
    for (size_t i = 0; i < count; ++i) {
      double sum = 0, magnitudes = 0;
      for (const auto& rank : inputs) {
        sum += rank[t][i];
        magnitudes += std::fabs(double{rank[t][i]});
      }
      const float got = results[0][t][i];
      ASSERT_EQ(std::isnan(got), std::isnan(sum)) << "tensor " << t << ", element " << i;
      const double bound = (kRanks - 1) * 0x1p-24 * magnitudes;
      ASSERT_FALSE(std::fabs(got - sum) > bound) << "tensor " << t << ", element " << i;
    }
    for (const auto& rank : results)
      ASSERT_EQ(std::memcmp(rank[t].data(), results[0][t].data(), count * sizeof(float)), 0) << t;
  }
}

TEST_P(AnySpread, DifferentTensorsAreAMismatchOnEveryRank) {
  Job(GetParam(), 3).run([](int rank, Communicator& communicator) {
    std::vector<float> data(rank == 1 ? 2000 : 1000, 1.0f);
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
    EXPECT_EQ(communicator.status().code(), ErrorCode::kMismatch);
    // Later operations say so at once.
    EXPECT_EQ(communicator.barrier(seconds(10)).code(), ErrorCode::kMismatch);
  });
}

TEST_P(AnySpread, OverlappingTensorsAreRefusedAndTheJobGoesOn) {
  Job(GetParam(), 3).run([](int, Communicator& communicator) {
    std::vector<float> data(1000, 1.0f);
    const std::array<TensorView, 2> views = {TensorView{&data[0], &data[0], 600},
                                             {&data[500], &data[500], 500}};
    const Status status = communicator.all_reduce(views, {}).wait();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("tensor 0 overlaps the output of tensor 1"));
    EXPECT_EQ(data, std::vector<float>(1000, 1.0f));
    const CommunicatorStats stats = communicator.stats();
    EXPECT_EQ(stats.operations_submitted + stats.operations + stats.operations_failed, 0u);
    ASSERT_TRUE(communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait().ok());
    EXPECT_EQ(data, std::vector<float>(1000, 3.0f));
  });
}

TEST_P(AnySpread, ARankThatAloneIsRefusedKeepsNobodyBeyondTheDeadline) {
  Job(GetParam(), 2).run([](int rank, Communicator& communicator) {
    std::vector<float> data(2000, 1.0f);
    float* second = &data[rank == 1 ? 999 : 1000];
    const std::array<TensorView, 2> views = {TensorView{&data[0], &data[0], 1000}, {second, second, 1000}};
    AllReduceOptions options;
    options.timeout = milliseconds(700);
    const Status status = communicator.all_reduce(views, options).wait();
    if (rank == 1) {
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.to_string();
      while (communicator.status().ok()) std::this_thread::sleep_for(milliseconds(1));  // rank 0 tells
    } else {
      EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
      EXPECT_EQ(status.rank(), 1) << status.to_string();
      EXPECT_EQ(communicator.stats().operations_failed, 1u);
    }
  });
}

TEST_P(AnySpread, OperationsAreCountedWhenTheyEnd) {
  std::latch both_have_passed_the_barrier(2);  // an abort may end the other rank's barrier
  Job(GetParam(), 2).run([&](int rank, Communicator& communicator) {
    std::vector<float> data(1000, 1.0f);
    const TensorView view{data.data(), data.data(), data.size()};
    ASSERT_TRUE(communicator.all_reduce(view, {}).wait().ok());
    EXPECT_TRUE(communicator.barrier(seconds(30)).ok());  // does not count
    both_have_passed_the_barrier.arrive_and_wait();
    const auto expect_counts = [&](uint64_t submitted, uint64_t completed, uint64_t failed) {
      const CommunicatorStats stats = communicator.stats();
      EXPECT_EQ(stats.operations_submitted, submitted);
      EXPECT_EQ(stats.operations, completed);
      EXPECT_EQ(stats.operations_failed, failed);
    };
    expect_counts(1, 1, 0);
    if (rank == 0) {
      const Work work = communicator.all_reduce(view, {});
      expect_counts(2, 1, 0);  // rank 1 takes no part
      communicator.abort("enough");
      EXPECT_EQ(work.wait().code(), ErrorCode::kAborted);
      expect_counts(2, 1, 1);
    }
    while (communicator.status().ok()) std::this_thread::sleep_for(milliseconds(1));
  });
}

TEST_P(AnySpread, MissingRankIsNamedAtTheDeadline) {
  Job(GetParam(), 3).run([](int rank, Communicator& communicator) {
    std::vector<float> data(10'000, 1.0f);
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(1500));  // takes no part, but has not left
      return;
    }
    AllReduceOptions options;
    options.timeout = milliseconds(500);
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, options).wait();
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
    EXPECT_EQ(status.rank(), 2) << status.to_string();
  });
}

TEST_P(AnySpread, RankThatHasLeftIsNamedLongBeforeTheDeadline) {
  Job(GetParam(), 3).run([](int rank, Communicator& communicator) {
    if (rank == 1) return;
    const Status status = communicator.barrier(seconds(30));
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.to_string();
    EXPECT_EQ(status.rank(), 1) << status.to_string();
  });
}

TEST_P(AnySpread, AggregatorThatStopsIsReported) {
  auto aggregator = start_aggregator();
  std::latch summed(2), stopped(1);
  std::thread stopper([&] {
    summed.wait();
    aggregator.reset();
    stopped.count_down();
  });
  Job(GetParam(), 2, {aggregator->control_address()}).run([&](int rank, Communicator& communicator) {
    expect_sums(rank, 2, communicator, 1000);
    summed.count_down();
    stopped.wait();
    std::vector<float> data(1000, 1.0f);
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
    EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
  });
  stopper.join();
}

TEST_P(AnySpread, AbortEndsEveryRanksOperations) {
  Job(GetParam(), 2).run([](int rank, Communicator& communicator) {
    if (rank == 1) {
      communicator.abort("the test says so");
      EXPECT_EQ(communicator.status().code(), ErrorCode::kAborted);
      return;
    }
    const Status status = communicator.barrier(seconds(20));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), ErrorCode::kTimeout) << status.to_string();
  });
}

TEST(CommunicatorTest, RanksOfOneHostSendNothing) {
  const auto aggregator = start_aggregator();
  for (const auto& aggregators : {std::vector<std::string>{}, {aggregator->control_address()}}) {
    Job(Spread::kOneHost, 4, aggregators).run([](int rank, Communicator& communicator) {
      for (const size_t count : {1u, 360u, 5'000u, 1'000'003u}) expect_sums(rank, 4, communicator, count);
      EXPECT_TRUE(communicator.barrier(seconds(10)).ok());
      const CommunicatorStats stats = communicator.stats();
      EXPECT_EQ(stats.bytes_sent + stats.bytes_received, 0u);
      EXPECT_EQ(stats.shard_bytes_sent + stats.shard_bytes_received, 0u);
      EXPECT_EQ(stats.operations, 8u);
      EXPECT_GE(stats.shared_memory_bytes_written, stats.gradient_bytes);
      EXPECT_GE(stats.shared_memory_bytes_read, stats.gradient_bytes);
      EXPECT_NE(communicator.describe().find("the 4 ranks of this host are summed in shared memory"),
                std::string::npos)
          << communicator.describe();
    });
  }
}

TEST(CommunicatorTest, EachHostIsOneStreamInTheNetwork) {
  const auto aggregator = start_aggregator();
  constexpr size_t kCount = 400'000;
  std::atomic<uint64_t> sent{0};
  Job(Spread::kTwoHosts, 6, {aggregator->control_address()}).run([&](int rank, Communicator& communicator) {
    const uint64_t before = communicator.stats().bytes_sent;
    std::vector<float> data(kCount, static_cast<float>(rank));
    ASSERT_TRUE(communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait().ok());
    EXPECT_EQ(data[kCount - 1], 15.0f);
    sent += communicator.stats().bytes_sent - before;
    EXPECT_NE(communicator.describe().find("2 hosts with 3 ranks each in the network"), std::string::npos)
        << communicator.describe();
  });
  // Once the gradient for each of the two hosts, with headers, scales, and perhaps some payloads sent again.
  EXPECT_GE(sent, 2 * kCount * sizeof(float));
  EXPECT_LE(sent, 3 * kCount * sizeof(float));
}

// Many ranks on one host and few on another go through tensors of several blocks in the same steps.
TEST(CommunicatorTest, HostsMayDifferInTheirNumbersOfRanks) {
  const auto aggregator = start_aggregator();
  for (const std::vector<int>& spread : {std::vector<int>{10, 1}, {2, 12, 1}}) {
    std::vector<std::string> host_of;
    for (const int ranks : spread)
      host_of.insert(host_of.end(), static_cast<size_t>(ranks), "host" + std::to_string(host_of.size()));
    const int ranks = static_cast<int>(host_of.size());
    Job(Spread::kOneHost, ranks, {aggregator->control_address()})
        .on_hosts([&](int rank) { return host_of[static_cast<size_t>(rank)]; })
        .run([&](int rank, Communicator& communicator) {
          expect_sums(rank, ranks, communicator, 786'432);  // 3 MiB
          EXPECT_TRUE(communicator.barrier(seconds(20)).ok());
        });
  }
}

// One rank's tensors of every type, with an infinity, a NaN, and integers that need wide lanes.
struct AllTypes {
  explicit AllTypes(int rank) {
    Rng rng(static_cast<uint64_t>(rank) + 1);
    for (float& x : floats) x = static_cast<float>(rng.unit() - 0.5) * static_cast<float>(rng.below(1000));
    if (rank == 1) floats[100] = std::numeric_limits<float>::infinity();
    if (rank == 2) floats[50'000] = std::nanf("");
    for (uint16_t& x : brains) x = static_cast<uint16_t>(rng.next() & 0xBFFF);
    for (uint16_t& x : halves) x = static_cast<uint16_t>(rng.next() & 0xBBFF);
    for (int32_t& x : ints) x = static_cast<int32_t>(rng.below(1 << 29)) - (1 << 28);
    for (int64_t& x : longs) x = static_cast<int64_t>(rng.next()) / 1024;
    longs[77] = (rank % 2 == 0 ? 1 : -1) * (std::numeric_limits<int64_t>::max() / 2);
    if (rank == 0) ints[5] = std::numeric_limits<int32_t>::max() - 5;
    if (rank == 1) ints[5] = -1'000'000'000;
  }
  void sum(Communicator& communicator) {
    const auto start = [&](DataType type, ReduceOp op, auto& data) {
      AllReduceOptions options;
      options.type = type;
      options.op = op;
      const size_t half = data.size() / 2 + 3;  // two tensors, which meet within a chunk
      const TensorView views[] = {{data.data(), data.data(), half},
                                  {data.data() + half, data.data() + half, data.size() - half}};
      return communicator.all_reduce(views, options);
    };
    const Work works[] = {
        start(DataType::kFloat32, ReduceOp::kSum, floats), start(DataType::kBFloat16, ReduceOp::kAvg, brains),
        start(DataType::kFloat16, ReduceOp::kSum, halves), start(DataType::kInt32, ReduceOp::kSum, ints),
        start(DataType::kInt64, ReduceOp::kSum, longs)};
    for (const Work& work : works) {
      const Status status = work.wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  bool same_bits(const AllTypes& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(floats, other.floats) && same(brains, other.brains) && same(halves, other.halves) &&
           same(ints, other.ints) && same(longs, other.longs);
  }

  std::vector<float> floats = std::vector<float>(200'011);
  std::vector<uint16_t> brains = std::vector<uint16_t>(70'001);
  std::vector<uint16_t> halves = std::vector<uint16_t>(1'501);
  std::vector<int32_t> ints = std::vector<int32_t>(30'003);
  std::vector<int64_t> longs = std::vector<int64_t>(20'007);
};

// In block fixed point. Floats have the same bits wherever the ranks are added one by one.
TEST(CommunicatorTest, TheSameBitsHoweverTheRanksAreSpread) {
  const auto first = start_aggregator(2), second = start_aggregator();
  const std::vector<std::string> aggregators = {first->control_address(), second->control_address()};
  for (const int ranks : soak() ? std::vector{4, 5} : std::vector{5}) {  // five: the hosts differ in size
    for (const Numerics numerics : {Numerics::kFixed, Numerics::kAuto}) {
      std::vector<AllTypes> results;
      std::mutex mutex;
      const auto run = [&](Spread spread, const std::vector<std::string>& where) {
        Job(spread, ranks, where).with(numerics).run([&](int rank, Communicator& communicator) {
          AllTypes tensors(rank);
          tensors.sum(communicator);
          const std::lock_guard lock(mutex);
          results.push_back(std::move(tensors));
        });
      };
      run(Spread::kApart, aggregators);
      run(Spread::kApart, {});
      run(Spread::kOneHost, aggregators);
      if (numerics == Numerics::kFixed) {
        run(Spread::kTwoHosts, aggregators);
        run(Spread::kTwoHosts, {});
      }
      ASSERT_EQ(results.size(), static_cast<size_t>((numerics == Numerics::kFixed ? 5 : 3) * ranks));
      EXPECT_TRUE(std::isnan(results[0].floats[50'000]));
      for (size_t i = 1; i < results.size(); ++i) EXPECT_TRUE(results[i].same_bits(results[0])) << i;
    }
  }
}

TEST(CommunicatorTest, ASettingThatDiffersBetweenRanksOnlyKeepsThoseApart) {
  const auto aggregator = start_aggregator();
  const Job job(Spread::kOneHost, 3, {aggregator->control_address()});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = job.options(rank);
      options.shared_memory = rank != 1;
      auto communicator = Communicator::connect(options);
      ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
      expect_sums(rank, 3, **communicator, 10'000);
      EXPECT_TRUE((*communicator)->barrier(seconds(10)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CommunicatorTest, BadOptionsAreRefusedWithTheirName) {
  CommunicatorOptions options;
  EXPECT_NE(Communicator::connect(options).status().message().find("root"), std::string::npos);
  options.root = "127.0.0.1:0";
  options.world_size = 65;
  EXPECT_NE(Communicator::connect(options).status().message().find("world_size"), std::string::npos);
  options.world_size = 2;
  options.rank = 2;
  EXPECT_NE(Communicator::connect(options).status().message().find("rank"), std::string::npos);
  options.rank = 0;
  options.mtu = 20;
  EXPECT_NE(Communicator::connect(options).status().message().find("mtu"), std::string::npos);
  options.mtu = 1500;
  options.slots = 3;
  EXPECT_NE(Communicator::connect(options).status().message().find("slots"), std::string::npos);
}

TEST(CommunicatorTest, AbsentAggregatorIsUnreachable) {
  Job job(Spread::kApart, 2, {"127.0.0.1:1"});
  CommunicatorOptions options = job.options(0);
  options.connect_timeout = milliseconds(500);
  const Status status = Communicator::connect(options).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
}

TEST(CommunicatorTest, UnsupportedOperationsAreRefusedAtOnce) {
  Job(Spread::kApart, 1).run([](int, Communicator& communicator) {
    int32_t value = 1;
    AllReduceOptions options;
    options.type = DataType::kInt32;
    options.op = ReduceOp::kAvg;
    EXPECT_EQ(communicator.all_reduce(TensorView{&value, &value, 1}, options).wait().code(),
              ErrorCode::kUnsupported);
    EXPECT_TRUE(communicator.status().ok());
  });
}

}  // namespace
}  // namespace netsum::communicator_test
