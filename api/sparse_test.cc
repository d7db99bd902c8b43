// Sparse all-reduces through the public API, on every data path: ranks are threads of this process.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <barrier>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "netsum/sparse.h"
#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::sparse_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = PlacedJob::kRanks;

class SparseTest : public testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(Places, SparseTest,
                         testing::Values(Place::kShards, Place::kLossyShards, Place::kAggregator,
                                         Place::kHierarchy, Place::kOneHost, Place::kTwoHosts,
                                         Place::kFailover),
                         place_name);

// Small integers, which sum exactly, at random places.
struct Gradients {
  std::array<std::vector<float>, kRanks> of_rank;
  std::vector<float> sum;
};

// Made once: the ranks of all places ask for the same ones.
const Gradients& gradients(uint64_t seed, size_t count, double density) {
  static std::mutex mutex;
  static std::map<std::tuple<uint64_t, size_t, double>, Gradients> made;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = made.try_emplace({seed, count, density});
  if (!is_new) return at->second;
  Gradients& all = at->second;
  all.sum.resize(count);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Rng rng(seed * 100 + rank);
    std::vector<float>& values = all.of_rank[rank];
    values.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (rng.chance(density)) values[i] = static_cast<float>(1 + rng.below(100));
      all.sum[i] += values[i];
    }
  }
  return all;
}

std::vector<float> input_of(int rank, uint64_t seed, size_t count, double density) {
  return gradients(seed, count, density).of_rank[static_cast<size_t>(rank)];
}

const std::vector<float>& sum_of(uint64_t seed, size_t count, double density) {
  return gradients(seed, count, density).sum;
}

struct Coo {
  std::vector<int64_t> indices;
  std::vector<float> values;
};

struct Collected : Coo {
  size_t row_elements = 1;
  CooAllocator allocator() {
    return [this](size_t count) {
      indices.resize(count);
      values.resize(count * row_elements);
      return CooMemory{indices.data(), values.data()};
    };
  }
};

CooView view_of(const Coo& coo, uint64_t rows, size_t row_elements) {
  return {.indices = coo.indices.data(),
          .values = coo.values.data(),
          .count = coo.indices.size(),
          .rows = rows,
          .row_elements = row_elements};
}

// Unsorted, with duplicates; rank 1 has none.
Coo rows_of(int rank, uint64_t seed, uint64_t rows, size_t row_elements) {
  Rng rng(seed * 100 + static_cast<uint64_t>(rank));
  Coo coo;
  for (size_t i = rank == 1 ? 0 : 200 + rng.below(200); i > 0; --i) {
    coo.indices.push_back(static_cast<int64_t>(rng.below(rows)));
    for (size_t e = 0; e < row_elements; ++e) coo.values.push_back(static_cast<float>(rng.below(100)));
  }
  return coo;
}

Coo sum_of_rows(uint64_t seed, uint64_t rows, size_t row_elements) {
  std::map<int64_t, std::vector<float>> sums;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Coo coo = rows_of(rank, seed, rows, row_elements);
    for (size_t i = 0; i < coo.indices.size(); ++i) {
      auto& row = sums[coo.indices[i]];
      row.resize(row_elements);
      for (size_t e = 0; e < row_elements; ++e) row[e] += coo.values[i * row_elements + e];
    }
  }
  Coo sum;
  for (const auto& [index, row] : sums) {
    sum.indices.push_back(index);
    sum.values.insert(sum.values.end(), row.begin(), row.end());
  }
  return sum;
}

TEST_P(SparseTest, SumsDenseTensors) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    constexpr size_t kCount = 300'000;
    for (const SparseMode mode : {SparseMode::kOn, SparseMode::kAuto, SparseMode::kOff}) {
      for (uint64_t seed = 1; const double density : {0.02, 0.02, 0.3, 1.0, 0.0}) {
        auto values = input_of(communicator.rank(), seed, kCount, density);
        const Work work =
            sparse_all_reduce(communicator, TensorView{values.data(), values.data(), kCount}, {.mode = mode});
        ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
        ASSERT_EQ(values, sum_of(seed++, kCount, density)) << "density " << density;
      }
    }
    const SparseStats stats = sparse_stats(communicator);
    EXPECT_EQ(stats.operations, 15u);
    EXPECT_GE(stats.dense, 5u) << "those with kOff";
    EXPECT_EQ(stats.elements, 15 * kCount);
    EXPECT_GT(stats.index_bytes, 0u);
    EXPECT_GT(stats.spared_bytes, 3 * kCount * 4);
    EXPECT_THAT(communicator.describe(), HasSubstr("15 sparse all-reduces"));
  });
}

// Operations before and after a sparse one, none of which waits for the other: all ranks must start them in one order.
TEST_P(SparseTest, OtherOperationsMayBeInFlight) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    constexpr size_t kCount = 60'000;
    constexpr uint64_t kRounds = 12;
    std::vector<std::vector<float>> dense, sparse;
    std::vector<Collected> collected(kRounds, {.row_elements = 3});
    std::vector<Coo> coo;
    for (uint64_t round = 0; round < kRounds; ++round) {
      dense.push_back(input_of(communicator.rank(), 1000 + round, 5'000, 0.5));
      sparse.push_back(input_of(communicator.rank(), round, kCount, 0.01));
      coo.push_back(rows_of(communicator.rank(), round, 7'000, 3));
    }
    std::vector<Work> works;
    for (size_t round = 0; round < kRounds; ++round) {
      works.push_back(sparse_all_reduce(communicator,
                                        TensorView{sparse[round].data(), sparse[round].data(), kCount},
                                        {.mode = SparseMode::kOn}));
      works.push_back(
          communicator.all_reduce(TensorView{dense[round].data(), dense[round].data(), 5'000}, {}));
      works.push_back(
          sparse_all_reduce(communicator, view_of(coo[round], 7'000, 3), collected[round].allocator(), {}));
    }
    ASSERT_TRUE(communicator.barrier(seconds(60)).ok());
    for (const Work& work : works) ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
    for (size_t round = 0; round < kRounds; ++round) {
      ASSERT_EQ(dense[round], sum_of(1000 + round, 5'000, 0.5)) << round;
      ASSERT_EQ(sparse[round], sum_of(round, kCount, 0.01)) << round;
      const Coo expected = sum_of_rows(round, 7'000, 3);
      ASSERT_EQ(collected[round].indices, expected.indices) << round;
      ASSERT_EQ(collected[round].values, expected.values) << round;
    }
  });
}

TEST_P(SparseTest, SumsRowsOfTablesOfAnySize) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    for (uint64_t seed = 0;
         const uint64_t rows : {uint64_t{1}, uint64_t{1000}, uint64_t{200'000}, uint64_t{1} << 40}) {
      for (const size_t row_elements : {size_t{1}, size_t{64}}) {
        const Coo coo = rows_of(communicator.rank(), seed, rows, row_elements);
        Collected result{.row_elements = row_elements};
        const Work work =
            sparse_all_reduce(communicator, view_of(coo, rows, row_elements), result.allocator(), {});
        ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
        const Coo expected = sum_of_rows(seed++, rows, row_elements);
        ASSERT_EQ(result.indices, expected.indices) << rows;
        ASSERT_EQ(result.values, expected.values) << rows;
      }
    }
    // Nobody has anything.
    Collected nothing;
    EXPECT_TRUE(sparse_all_reduce(communicator, CooView{.rows = 1000}, nothing.allocator(), {}).wait().ok());
    EXPECT_TRUE(sparse_all_reduce(communicator, CooView{.rows = 0}, nothing.allocator(), {}).wait().ok());
    EXPECT_TRUE(nothing.indices.empty());
    float none = 0;
    EXPECT_TRUE(sparse_all_reduce(communicator, TensorView{&none, &none, 0}, {}).wait().ok());
  });
}

TEST_P(SparseTest, OtherTypesAndUnits) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    const auto mine = static_cast<size_t>(communicator.rank());
    std::vector<int64_t> longs(50'003, 0);
    longs[7] = int64_t{1} << 50;
    longs.back() = communicator.rank();
    longs[100 * mine] = -1;
    const SparseOptions in_rows{.type = DataType::kInt64, .mode = SparseMode::kOn, .unit = 64};
    ASSERT_TRUE(sparse_all_reduce(communicator, TensorView{longs.data(), longs.data(), longs.size()}, in_rows)
                    .wait()
                    .ok());
    EXPECT_EQ(longs[7], int64_t{kRanks} << 50);
    EXPECT_EQ(longs.back(), kRanks * (kRanks - 1) / 2);
    for (size_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(longs[100 * rank], -1);
    std::vector<uint16_t> halves(70'000, 0);  // bfloat16
    halves[3 * mine] = 0x3F80;                // 1
    halves[69'999] = 0x7FC0;                  // NaN
    const SparseOptions average{.type = DataType::kBFloat16, .op = ReduceOp::kAvg, .mode = SparseMode::kOn};
    ASSERT_TRUE(
        sparse_all_reduce(communicator, TensorView{halves.data(), halves.data(), halves.size()}, average)
            .wait()
            .ok());
    for (size_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(halves[3 * rank], 0x3E80) << "1/4";
    EXPECT_EQ(halves[69'999], 0x7FC0);
    EXPECT_EQ(halves[1], 0);
  });
}

// Every number of elements is a unit: beyond the tensor's own it is one unit, whatever rounding up to whole units would overflow to.
TEST_P(SparseTest, AUnitMayBeLongerThanTheTensor) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    for (const size_t unit : {size_t{40'000}, size_t{1} << 62, std::numeric_limits<size_t>::max()}) {
      std::vector<float> values(30'000, 0);
      values[static_cast<size_t>(communicator.rank())] = 1;
      values.back() = 2;
      const Status status = sparse_all_reduce(communicator, {values.data(), values.data(), values.size()},
                                              SparseOptions{.mode = SparseMode::kOn, .unit = unit})
                                .wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(values[kRanks - 1], 1) << unit;
      EXPECT_EQ(values.back(), 2 * kRanks) << unit;
      float* const none = nullptr;
      EXPECT_TRUE(sparse_all_reduce(communicator, TensorView{none, none, 0}, {.unit = unit}).wait().ok());
    }
  });
}

TEST_P(SparseTest, TagsAreCompared) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    std::vector<float> values(100'000, 0);
    const auto sum = [&](uint32_t tag) {
      return sparse_all_reduce(communicator, {values.data(), values.data(), values.size()},
                               SparseOptions{.mode = SparseMode::kOn, .tag = tag})
          .wait();
    };
    EXPECT_TRUE(sum(7).ok());
    EXPECT_EQ(sum(communicator.rank() == 1 ? 8 : 7).code(), ErrorCode::kMismatch);
  });
}

TEST_P(SparseTest, ErrorsComeToAllRanks) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    Coo coo{{1, communicator.rank() == 2 ? 50 : 2}, {1, 1}};
    Collected result;
    const Status status = sparse_all_reduce(communicator, view_of(coo, 50, 1), result.allocator(), {}).wait();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    if (communicator.rank() == 2) {
      EXPECT_THAT(status.message(), HasSubstr("index 50, number 1 of 2"));
    } else {
      EXPECT_EQ(status.rank(), 2);
    }
    // Refused at once, alike on all ranks.
    const auto refused = [&](const Work& work, ErrorCode code) { EXPECT_EQ(work.wait().code(), code); };
    refused(sparse_all_reduce(communicator, view_of(coo, 50, 1), nullptr, {}), ErrorCode::kInvalidArgument);
    refused(
        sparse_all_reduce(communicator, view_of(coo, 50, 1), result.allocator(), {.mode = SparseMode::kOff}),
        ErrorCode::kInvalidArgument);
    float one = 1;
    refused(sparse_all_reduce(communicator, TensorView{&one, &one, 1}, {.unit = 0}),
            ErrorCode::kInvalidArgument);
    refused(sparse_all_reduce(communicator, TensorView{&one, nullptr, 1}, {}), ErrorCode::kInvalidArgument);
    refused(sparse_all_reduce(communicator, TensorView{&one, &one, 1}, {.type = DataType::kByte}),
            ErrorCode::kUnsupported);
    refused(sparse_all_reduce(communicator, TensorView{&one, &one, 1},
                              {.type = DataType::kInt32, .op = ReduceOp::kAvg}),
            ErrorCode::kUnsupported);
    // The communicator works as before.
    coo.indices[1] = 49;
    EXPECT_TRUE(sparse_all_reduce(communicator, view_of(coo, 50, 1), result.allocator(), {}).wait().ok());
    EXPECT_THAT(result.indices, ElementsAre(1, 49));
    EXPECT_THAT(result.values, ElementsAre(kRanks, kRanks));
    // Without a count as well.
    if (communicator.rank() == 2) coo.indices[1] = 50;
    const Status again = sparse_all_reduce(communicator, view_of(coo, 50, 1), result.allocator(), {}).wait();
    EXPECT_EQ(again.code(), ErrorCode::kInvalidArgument);
    if (communicator.rank() != 2) EXPECT_EQ(again.rank(), 2);
  });
}

// A rank that has much more than in the last operation makes all ranks begin anew.
TEST_P(SparseTest, SumsTablesThatAreKnown) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    for (const int64_t rows : {3, 4, 200, 5}) {
      Coo coo;
      for (int64_t i = 0; i < (communicator.rank() == 1 ? rows : 3); ++i) coo.indices.push_back(i * 7);
      coo.values.assign(coo.indices.size(), 1);
      Collected result;
      const Status status =
          sparse_all_reduce(communicator, view_of(coo, 10'000, 1), result.allocator(), {}).wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      std::vector<int64_t> indices;
      std::vector<float> values;
      for (int64_t i = 0; i < rows; ++i) {
        indices.push_back(i * 7);
        values.push_back(i < 3 ? kRanks : 1);
      }
      EXPECT_EQ(result.indices, indices);
      EXPECT_EQ(result.values, values);
    }
  });
}

// One rank begins with an index, the others with a count.
TEST_P(SparseTest, AnotherTableThanTheKnownOneIsAMismatch) {
  std::barrier known(kRanks);
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    const Coo coo{{1, 2}, {1, 1}};
    Collected result;
    const auto sum = [&](uint64_t rows) {
      return sparse_all_reduce(communicator, view_of(coo, rows, 1), result.allocator(), {}).wait().code();
    };
    EXPECT_EQ(sum(50), ErrorCode::kOk);
    known.arrive_and_wait();  // a mismatch ends what others still wait for
    EXPECT_EQ(sum(communicator.rank() == 1 ? 50 : 51), ErrorCode::kMismatch);
  });
}

TEST_P(SparseTest, RanksThatDifferGetAMismatch) {
  for (const bool other_shape : {false, true}) {
    PlacedJob(GetParam()).run([&](Communicator& communicator) {
      std::vector<float> values(100'000, 0);
      const bool differs = communicator.rank() == 1;
      const size_t count = differs && other_shape ? 99'999 : 100'000;
      const SparseMode mode = differs && !other_shape ? SparseMode::kOff : SparseMode::kOn;
      const Status status =
          sparse_all_reduce(communicator, TensorView{values.data(), values.data(), count}, {.mode = mode})
              .wait();
      EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
      // What was waiting behind it fails, too.
      float one = 1;
      EXPECT_FALSE(communicator.all_reduce(TensorView{&one, &one, 1}, {}).wait().ok());
    });
  }
}

// What the caller gave may take a lock when it is destroyed, Python's for example, whose owner may call the library.
TEST(SparseLifeTest, WhatTheCallerGaveIsDestroyedWithoutALock) {
  PlacedJob(Place::kShards).run([](Communicator& communicator) {
    constexpr int kOperations = 20;
    std::vector<std::future<SparseStats>> others;  // what another thread asks for meanwhile
    std::atomic<int> destroyed = 0, answered = 0;
    for (int i = 0; i < kOperations; ++i) {
      Collected result;
      std::shared_ptr<void> given(nullptr, [&](void*) {
        others.push_back(std::async(std::launch::async, [&] { return sparse_stats(communicator); }));
        if (others.back().wait_for(seconds(10)) == std::future_status::ready) ++answered;
        ++destroyed;
      });
      const Coo rows = rows_of(communicator.rank(), 1, 100, 1);
      const Work work = sparse_all_reduce(
          communicator, view_of(rows, 100, 1),
          [given = std::move(given), allocate = result.allocator()](size_t count) { return allocate(count); },
          {});
      ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
      while (destroyed <= i) std::this_thread::yield();
      ASSERT_EQ(answered, i + 1);
    }
  });
}

TEST(SparseLifeTest, OperationsInFlightEndWhenTheCommunicatorIsClosed) {
  CommunicatorOptions options;
  options.job = "sparse";
  options.root = "127.0.0.1:0";
  options.shared_memory = false;
  options.timeout = seconds(60);
  run_ranks(2, options, [](int rank, std::unique_ptr<Communicator>& communicator) {
    if (rank == 1) return;  // takes no part, and leaves
    std::vector<float> values(1'000'000, 1);
    const Work sparse =
        sparse_all_reduce(*communicator, TensorView{values.data(), values.data(), values.size()}, {});
    const Work behind = communicator->all_reduce(TensorView{values.data(), values.data(), 10}, {});
    communicator.reset();
    EXPECT_FALSE(sparse.wait().ok());
    EXPECT_FALSE(behind.wait().ok());
  });
}

// Ranks that have been in the job before a regroup must not conclude from it what a new one cannot know.
TEST(SparseLifeTest, ARegroupForgetsWhatTheRanksKnew) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options;
  options.job = "sparse";
  options.aggregators = {aggregator->control_address()};
  options.timeout = options.connect_timeout = seconds(60);
  options.shared_memory = false;
  constexpr size_t kCount = 100'000;
  const auto sum = [](Communicator& communicator) {
    std::vector<float> values(kCount, 0);
    values[static_cast<size_t>(communicator.rank())] = 1;
    const Status status = sparse_all_reduce(communicator, TensorView{values.data(), values.data(), kCount},
                                            {.mode = SparseMode::kOn})
                              .wait();
    EXPECT_TRUE(status.ok()) << status.to_string();
    for (int rank = 0; rank < communicator.world_size(); ++rank)
      EXPECT_EQ(values[static_cast<size_t>(rank)], 1);
  };
  std::barrier summed(3), ended(3);
  run_ranks(3, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    sum(*communicator);
    summed.arrive_and_wait();
    if (rank == 2) communicator->abort("dies");
    std::vector<float> values(kCount, 1);
    EXPECT_FALSE(
        sparse_all_reduce(*communicator, TensorView{values.data(), values.data(), kCount}, {}).wait().ok());
    ended.arrive_and_wait();
    if (rank != 2) {
      const auto regrouped = communicator->regroup({.who = RegroupOptions::Who::kAll});
      ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
    } else {
      communicator.reset();
      CommunicatorOptions again = options;
      again.rank = 2;
      again.world_size = 3;
      auto connected = Communicator::connect(again);
      ASSERT_TRUE(connected.ok()) << connected.status().to_string();
      communicator = std::move(connected).value();
    }
    EXPECT_EQ(sparse_stats(*communicator).operations, 0u);
    sum(*communicator);
    EXPECT_EQ(sparse_stats(*communicator).operations, 1u);
  });
}

// The aggregator is lost between the parts of a sparse all-reduce.
TEST(SparseLifeTest, MovesWhenTheAggregatorIsLost) {
  PlacedJob job(Place::kFailover);
  job.run([&](Communicator& communicator) {
    constexpr size_t kCount = 200'000;
    for (uint64_t round = 0; round < 30; ++round) {
      if (communicator.rank() == 0 && round == 10) job.end_aggregator();
      auto values = input_of(communicator.rank(), round, kCount, 0.02);
      const Status status = sparse_all_reduce(communicator, TensorView{values.data(), values.data(), kCount},
                                              {.mode = SparseMode::kOn})
                                .wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_EQ(values, sum_of(round, kCount, 0.02)) << round;
    }
    EXPECT_EQ(communicator.stats().failovers, 1u);
    EXPECT_EQ(sparse_stats(communicator).operations, 30u);
  });
}

}  // namespace
}  // namespace netsum::sparse_test
