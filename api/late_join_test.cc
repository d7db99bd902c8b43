// Communicators that join late, whole jobs of them: what they compute apart, when they join, and how they fail.
#include "netsum/late_join.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "netsum/sparse.h"
#include "netsum/watermarks.h"
#include "session/job_testing.h"
#include "src/base/rng.h"

namespace netsum::late_join_test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kLarge = 5'000;  // elements

// In memory: the last rank that comes ends the exchange.
class Exchanges {
 public:
  LateJoin of(int rank) {
    return {.exchange = [this, rank](std::span<const std::byte> own, std::chrono::milliseconds,
                                     Exchanged done) { add(rank, own, std::move(done)); },
            .abort =
                [this](const std::string& reason) {
                  fail({ErrorCode::kAborted, "told: " + reason});
                }};
  }
  // Ends all that wait, and all to come.
  void fail(const Status& status) {
    std::map<size_t, Exchange> ended;
    {
      const std::lock_guard lock(mutex_);
      failure_ = status;
      ended.swap(exchanges_);
    }
    for (auto& [number, exchange] : ended)
      for (Exchanged& done : exchange.done) done(status, {});
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  struct Exchange {
    std::vector<std::byte> all;
    std::vector<Exchanged> done;
  };

  void add(int rank, std::span<const std::byte> own, Exchanged done) {
    Exchange ended;
    Status failure;
    {
      const std::lock_guard lock(mutex_);
      failure = failure_;
      if (failure.ok()) {
        Exchange& exchange = exchanges_[next_[static_cast<size_t>(rank)]++];
        exchange.all.resize(own.size() * kRanks);
        std::memcpy(exchange.all.data() + static_cast<size_t>(rank) * own.size(), own.data(), own.size());
        exchange.done.push_back(std::move(done));
        if (exchange.done.size() < kRanks) return;
        ++count_;
        ended = std::move(exchange);
        exchanges_.erase(next_[static_cast<size_t>(rank)] - 1);
      }
    }
    if (!failure.ok()) return done(failure, {});
    for (Exchanged& one : ended.done) one(Status(), ended.all);
  }

  mutable std::mutex mutex_;
  Status failure_;
  size_t count_ = 0;
  std::vector<size_t> next_ = std::vector<size_t>(kRanks);
  std::map<size_t, Exchange> exchanges_;
};

CommunicatorOptions shards() {
  CommunicatorOptions options;
  options.root = options.bind_address = "127.0.0.1";
  options.root += ":0";
  options.world_size = kRanks;
  options.timeout = std::chrono::seconds(60);
  return options;
}

std::unique_ptr<Communicator> late(CommunicatorOptions options, int rank, LateJoin join) {
  options.rank = rank;
  auto communicator = join_late(options, std::move(join));
  EXPECT_TRUE(communicator.ok()) << communicator.status().to_string();
  return communicator.ok() ? std::move(communicator).value() : nullptr;
}

// Of all ranks, each in a thread.
void run_late(const std::function<void(Communicator& communicator)>& body, Exchanges* exchanges,
              const CommunicatorOptions& options = shards()) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] { body(*late(options, rank, exchanges->of(rank))); });
  for (std::thread& thread : threads) thread.join();
}

bool has_joined(const Communicator& communicator) {
  return communicator.describe().find("not joined") == std::string::npos;
}

void expect_code(const Status& status, ErrorCode code) {
  EXPECT_EQ(status.code(), code) << status.to_string();
}

// --- The same bits as of ranks that have joined ------------------------------------------------------------------

using Bytes = std::vector<uint8_t>;

Bytes random_elements(DataType type, size_t count, uint64_t seed) {
  Bytes bytes(count * size_of(type));
  Rng rng(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng.next());
  if (type != DataType::kInt32 && type != DataType::kInt64) return bytes;
  for (size_t i = size_of(type) - 1; i < bytes.size(); i += size_of(type)) bytes[i] = 0;  // no overflow
  return bytes;
}

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kInt32,
                               DataType::kInt64};

// The outputs of all collectives, one behind the other.
Bytes call_all(Communicator& communicator) {
  Bytes outputs;
  const int rank = communicator.rank();
  const auto ok = [](const Work& work) {
    const Status status = work.wait();
    ASSERT_TRUE(status.ok()) << status.to_string();
  };
  const auto keep = [&](const Bytes& bytes) { outputs.insert(outputs.end(), bytes.begin(), bytes.end()); };
  uint64_t seed = 1;
  for (const DataType type : kTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
      constexpr size_t kCount = 101;
      Bytes data = random_elements(type, 3 * kCount, kRanks * seed++ + static_cast<uint64_t>(rank));
      const size_t part = kCount * size_of(type);
      std::vector<TensorView> views;
      for (size_t i = 0; i < 3; ++i) views.push_back({&data[i * part], &data[i * part], kCount});
      ok(communicator.all_reduce(views, {.type = type, .op = op}));
      keep(data);
      std::ranges::copy(random_elements(type, 3 * kCount, kRanks * seed++ + static_cast<uint64_t>(rank)),
                        data.begin());
      ok(communicator.reduce_scatter(views, {.type = type, .op = op}));
      keep({&data[static_cast<size_t>(rank) * part], &data[static_cast<size_t>(rank) * part] + part});
    }
  }
  Bytes data = random_elements(DataType::kByte, 300, 999 + static_cast<uint64_t>(rank));
  const auto parts = [&data] {
    std::vector<BufferView> views;
    for (size_t i = 0; i < kRanks; ++i) views.push_back({&data[100 * i], &data[100 * i], 100});
    return views;
  };
  const BufferView whole{data.data(), data.data(), data.size()};
  ok(communicator.all_gather(parts(), {}));
  keep(data);
  data[0] = static_cast<uint8_t>(rank);
  ok(communicator.broadcast({&whole, 1}, 2, {}));
  keep(data);
  data[150] = static_cast<uint8_t>(rank);
  ok(communicator.gather(parts(), 1, {}));
  ok(communicator.scatter(parts(), 1, {}));
  keep({data.begin() + 100 * rank, data.begin() + 100 * rank + 100});
  ok(communicator.start_barrier({}));
  return outputs;
}

TEST(LateJoin, ApartAllCollectivesHaveTheResultsOfRanksThatHaveJoined) {
  std::vector<Bytes> joined(kRanks), apart(kRanks);
  CommunicatorOptions common = shards();
  run_ranks(kRanks, common, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    joined[static_cast<size_t>(rank)] = call_all(*communicator);
  });
  Exchanges exchanges;
  run_late(
      [&](Communicator& communicator) {
        apart[static_cast<size_t>(communicator.rank())] = call_all(communicator);
        EXPECT_FALSE(has_joined(communicator)) << communicator.describe();
        const CommunicatorStats stats = communicator.stats();
        EXPECT_EQ(stats.operations, 24u) << "of which barriers are none";
        EXPECT_EQ(stats.operations_submitted, 24u);
        EXPECT_EQ(stats.packets_sent, 0u);
      },
      &exchanges);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_FALSE(joined[rank].empty());
    EXPECT_EQ(apart[rank], joined[rank]) << "rank " << rank;
  }
}

// --- Joining -------------------------------------------------------------------------------------------------

TEST(LateJoin, ALargeOperationMakesTheRanksJoinAndTheNextOnesWait) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        sum_and_check(communicator, kLateBytes / sizeof(int32_t));
        EXPECT_FALSE(has_joined(communicator));
        std::vector<std::vector<int32_t>> data(8);
        std::vector<Work> works;
        for (size_t i = 0; i < data.size(); ++i) {
          data[i].assign(i % 2 == 0 ? kLarge : 1, communicator.rank() + static_cast<int32_t>(i));
          works.push_back(communicator.all_reduce(TensorView{data[i].data(), data[i].data(), data[i].size()},
                                                  {.type = DataType::kInt32}));
        }
        for (size_t i = 0; i < data.size(); ++i) {
          const Status status = works[i].wait();
          ASSERT_TRUE(status.ok()) << status.to_string();
          for (const int32_t x : data[i]) ASSERT_EQ(x, 3 + kRanks * static_cast<int32_t>(i));
        }
        EXPECT_TRUE(has_joined(communicator)) << communicator.describe();
        sum_and_check(communicator, 1);
        EXPECT_EQ(communicator.stats().operations, 10u);
        ASSERT_TRUE(communicator.barrier({}).ok());
      },
      &exchanges);
  EXPECT_EQ(exchanges.count(), 3u) << "the small operation, the first large one, and the address of rank 0";
}

TEST(LateJoin, AfterManyOperationsTheRanksJoin) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        for (size_t i = 0; i < kLateOperations; ++i) sum_and_check(communicator, 1);
        EXPECT_FALSE(has_joined(communicator));
        sum_and_check(communicator, 1);
        EXPECT_TRUE(has_joined(communicator));
        ASSERT_TRUE(communicator.barrier({}).ok());
      },
      &exchanges);
}

TEST(LateJoin, APriorityMakesTheRanksJoin) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        float value = 1;
        ASSERT_TRUE(communicator.all_reduce({&value, &value, 1}, {.priority = 1}).wait().ok());
        EXPECT_EQ(value, static_cast<float>(kRanks));
        EXPECT_TRUE(has_joined(communicator));
        EXPECT_NE(communicator.describe().find("priorities with a credit"), std::string::npos);
      },
      &exchanges);
}

TEST(LateJoin, SparseOperationsMakeTheRanksJoin) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        std::vector<float> data(50'000);
        data[static_cast<size_t>(communicator.rank())] = 1;
        const Status status = sparse_all_reduce(communicator, {data.data(), data.data(), data.size()},
                                                {.mode = SparseMode::kOn})
                                  .wait();
        ASSERT_TRUE(status.ok()) << status.to_string();
        EXPECT_EQ(std::count(data.begin(), data.end(), 1.0f), kRanks);
        EXPECT_EQ(std::count(data.begin(), data.end(), 0.0f), 50'000 - kRanks);
        ASSERT_TRUE(communicator.barrier({}).ok());
      },
      &exchanges);
}

TEST(LateJoin, AJobOfOneRankNeverJoins) {
  CommunicatorOptions options = shards();
  options.world_size = 1;
  const auto communicator = late(options, 0, {.exchange = [](auto, auto, const Exchanged&) { FAIL(); }});
  for (size_t i = 0; i < 2 * kLateOperations; ++i) sum_and_check(*communicator, kLarge);
  std::vector<float> in = {1, 2}, out = {0, 0};
  EXPECT_TRUE(
      communicator->reduce_scatter(std::vector<TensorView>{{in.data(), out.data(), 2}}, {}).wait().ok());
  EXPECT_EQ(out, in);
  EXPECT_FALSE(has_joined(*communicator));
}

// --- Errors ------------------------------------------------------------------------------------------------------

TEST(LateJoin, CallsThatDifferAreToldOnAllRanks) {
  for (const size_t other : {size_t{11}, kLarge}) {
    Exchanges exchanges;
    run_late(
        [other](Communicator& communicator) {
          std::vector<float> data(communicator.rank() == 1 ? other : 10);
          const Status status = communicator.all_reduce({data.data(), data.data(), data.size()}, {}).wait();
          expect_code(status, ErrorCode::kMismatch);
          EXPECT_EQ(status.rank(), 1);
          expect_code(communicator.status(), ErrorCode::kMismatch);
          expect_code(communicator.start_barrier({}).wait(), ErrorCode::kMismatch);
        },
        &exchanges);
  }
}

TEST(LateJoin, AnAbortEndsTheOperationsOfAllRanks) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        if (communicator.rank() == 2) {
          communicator.abort("enough");
          expect_code(communicator.start_barrier({}).wait(), ErrorCode::kAborted);
          return;
        }
        std::vector<float> data(communicator.rank() == 0 ? 1 : kLarge);
        const Status status = communicator.all_reduce({data.data(), data.data(), data.size()}, {}).wait();
        expect_code(status, ErrorCode::kAborted);
        EXPECT_NE(status.message().find("enough"), std::string::npos) << status.message();
      },
      &exchanges);
}

TEST(LateJoin, AFailedExchangeEndsAllOperations) {
  Exchanges exchanges;
  const auto communicator = late(shards(), 0, exchanges.of(0));
  std::vector<float> data(kLarge);
  std::vector<Work> works;
  works.push_back(communicator->start_barrier({}));
  for (int i = 0; i < 2; ++i)
    works.push_back(communicator->all_reduce({data.data(), data.data(), data.size()}, {}));
  exchanges.fail({ErrorCode::kPeerLost, "rank 1 is gone", 1});
  for (const Work& work : works) expect_code(work.wait(), ErrorCode::kPeerLost);
  expect_code(communicator->status(), ErrorCode::kPeerLost);
  EXPECT_EQ(communicator->stats().operations_failed, 2u);
}

TEST(LateJoin, WhatIsInProgressEndsWithTheCommunicator) {
  Exchanges exchanges;
  auto communicator = late(shards(), 0, exchanges.of(0));
  std::vector<float> data(kLarge);
  const Work work = communicator->all_reduce({data.data(), data.data(), data.size()}, {});
  communicator.reset();
  expect_code(work.wait(), ErrorCode::kAborted);
  exchanges.fail({ErrorCode::kPeerLost, "late"});
}

TEST(LateJoin, AnOperationThatCannotJoinFailsWithTheReason) {
  CommunicatorOptions nowhere = shards();
  nowhere.root.clear();
  nowhere.aggregators = {"127.0.0.1:1"};
  nowhere.connect_timeout = std::chrono::milliseconds(500);
  CommunicatorOptions no_port = shards();  // rank 0 cannot listen there
  no_port.root = "192.0.2.1:1";
  for (const CommunicatorOptions& options : {nowhere, no_port}) {
    Exchanges exchanges;
    run_late(
        [](Communicator& communicator) {
          sum_and_check(communicator, 1);
          std::vector<float> data(kLarge);
          const Status status = communicator.all_reduce({data.data(), data.data(), data.size()}, {}).wait();
          EXPECT_FALSE(status.ok());
          EXPECT_NE(status.code(), ErrorCode::kTimeout) << status.to_string();
          EXPECT_FALSE(communicator.start_barrier({}).wait().ok());
        },
        &exchanges, options);
  }
}

TEST(LateJoin, RefusesWhatItCannotDo) {
  Exchanges exchanges;
  CommunicatorOptions options = shards();
  expect_code(join_late(options, {}).status(), ErrorCode::kInvalidArgument);
  options.verify = Verify::kBoth;
  expect_code(join_late(options, exchanges.of(0)).status(), ErrorCode::kInvalidArgument);
  const auto communicator = late(shards(), 0, exchanges.of(0));
  expect_code(communicator->regroup({}).status(), ErrorCode::kUnsupported);
  expect_code(communicator->all_reduce({nullptr, nullptr, 5}, {}).wait(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(communicator->status().ok()) << "which breaks nothing";
}

// An exchange takes all of the input at once.
TEST(LateJoin, InputThatArrivesPieceByPieceIsWaitedFor) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        std::vector<float> memory(10, NAN);
        std::vector<size_t> heard;
        const auto watermarks =
            std::make_shared<Watermarks>(0, [&](size_t bytes) { heard.push_back(bytes); });
        std::thread feeder([&] {
          for (size_t i = 0; i < memory.size(); ++i) {
            memory[i] = static_cast<float>(i);
            watermarks->make_available(4 * (i + 1));
          }
        });
        const Status status = communicator
                                  .all_reduce(TensorView{memory.data(), memory.data(), memory.size()},
                                              {.watermarks = watermarks})
                                  .wait();
        feeder.join();
        EXPECT_TRUE(status.ok()) << status.to_string();
        for (size_t i = 0; i < memory.size(); ++i) EXPECT_EQ(memory[i], static_cast<float>(kRanks * i));
        EXPECT_EQ(heard, std::vector<size_t>{40});
        EXPECT_FALSE(has_joined(communicator));
      },
      &exchanges);
}

TEST(LateJoin, InputThatNeverComesEndsTheJob) {
  Exchanges exchanges;
  run_late(
      [](Communicator& communicator) {
        float number = 1;
        const auto watermarks = std::make_shared<Watermarks>();
        if (communicator.rank() != 1) watermarks->make_available(4);
        const Status status =
            communicator
                .all_reduce(TensorView{&number, &number, 1},
                            {.timeout = std::chrono::milliseconds(300), .watermarks = watermarks})
                .wait();
        EXPECT_EQ(status.code(), communicator.rank() == 1 ? ErrorCode::kTimeout : ErrorCode::kAborted)
            << status.to_string();
      },
      &exchanges);
}

}  // namespace
}  // namespace netsum::late_join_test
