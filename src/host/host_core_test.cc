// Ranks as threads that map the same segment, without network: what HostCore sums, and how it fails.
#include "src/host/host_core.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "src/host/test_ranks.h"

namespace netsum::host_core_test {
namespace {

TEST(HostCore, SumsAllTypesAndSizesToTheBitsOfTheReference) {
  uint64_t seed = 1;
  // A direct sum, one block of few chunks, exactly one block, many blocks with a rest.
  for (const size_t count : {size_t{1}, size_t{359}, size_t{2000}, size_t{5001}, size_t{150'000}}) {
    for (const int ranks : {1, 2, 3}) {
      expect_reference<float>(DataType::kFloat32, ReduceOp::kSum, ranks, count, ++seed);
      expect_reference<float>(DataType::kFloat32, ReduceOp::kAvg, ranks, count, ++seed);
      expect_reference<uint16_t>(DataType::kBFloat16, ReduceOp::kSum, ranks, count, ++seed);
      expect_reference<uint16_t>(DataType::kFloat16, ReduceOp::kAvg, ranks, count, ++seed);
      expect_reference<int32_t>(DataType::kInt32, ReduceOp::kSum, ranks, count, ++seed);
      expect_reference<int64_t>(DataType::kInt64, ReduceOp::kSum, ranks, count, ++seed);
    }
  }
  expect_reference<float>(DataType::kFloat32, ReduceOp::kSum, 8, 200'001, ++seed);
}

TEST(HostCore, SumsInFixedPointHaveTheBitsOfTheNetwork) {
  uint64_t seed = 100;
  for (const Reading reading : {Reading::kInPlace, Reading::kNever}) {
    for (const size_t count : {size_t{359}, size_t{5001}, size_t{700'000}}) {
      if (reading == Reading::kInPlace && count < 700'000) continue;
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        expect_reference<float>(DataType::kFloat32, op, 3, count, ++seed, reading, true);
        expect_reference<uint16_t>(DataType::kBFloat16, op, 2, count, ++seed, reading, true);
        expect_reference<uint16_t>(DataType::kFloat16, op, 3, count, ++seed, reading, true);
      }
    }
  }
}

// Whatever lies beside an element, in tensors of any size.
TEST(HostCore, ElementsKeepTheirDigitsBesideLargeOnes) {
  for (const size_t count : {size_t{1'000}, size_t{100'000}, size_t{700'000}}) {
    run_ranks(3, [&](int r, Rank& rank) {
      std::vector<float> data(count, std::ldexp(1.0f + static_cast<float>(r), -30));
      for (size_t i = 0; i < count; i += 7) data[i] = 1e30f;
      rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), count}});
      const Status status = rank.finish();
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(data[i], i % 7 == 0 ? 1e30f + 1e30f + 1e30f : std::ldexp(6.0f, -30)) << i;
    });
  }
}

TEST(HostCore, MoreRanksThanAnAggregatorTakes) {
  expect_reference<float>(DataType::kFloat32, ReduceOp::kSum, 96, 100, 7);     // a direct sum
  expect_reference<float>(DataType::kFloat32, ReduceOp::kAvg, 96, 60'000, 8);  // two blocks
  expect_reference<uint16_t>(DataType::kBFloat16, ReduceOp::kSum, 65, 9'000, 9);
}

// A chunk of 8-bit lanes takes four times the bytes of its packet in memory: more than the pieces that many ranks sum at a time.
TEST(HostCore, AChunkMayBeLargerThanAPieceOfManyRanks) {
  constexpr int kRanks = 30;
  constexpr uint32_t kLargePayload = 8928;
  const std::string name = fresh_name();
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(name, r, kRanks, Reading::kInPlace, kLargePayload, 8);
      rank.submit_first();
      std::vector<float> all(3 * kLargePayload + 5, 1.0f), at_one(1000, 1.0f), part(kRanks * 1000, 1.0f);
      rank.submit(DataType::kFloat32, ReduceOp::kSum, {{all.data(), all.data(), all.size()}}, 20'000'000);
      rank.submit(DataType::kFloat32, ReduceOp::kSum, {{at_one.data(), at_one.data(), at_one.size()}},
                  20'000'000, make_role(Collective::kReduce, 7, r));
      std::vector<TensorView> parts;
      for (size_t p = 0; p < kRanks; ++p) parts.push_back({&part[p * 1000], &part[p * 1000], 1000});
      rank.submit(DataType::kFloat32, ReduceOp::kSum, parts, 20'000'000,
                  make_role(Collective::kReduceScatter, 0, r));
      const Status status = rank.finish();
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(all, std::vector<float>(all.size(), kRanks));
      EXPECT_EQ(at_one, std::vector<float>(at_one.size(), r == 7 ? kRanks : 1));
      for (size_t i = 0; i < part.size(); ++i)
        ASSERT_EQ(part[i], i / 1000 == static_cast<size_t>(r) ? kRanks : 1) << i;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 1 writes what rank 0 has not: its input is poison until it is available.
TEST(HostCore, InputArrivesPieceByPiece) {
  for (const Reading reading : {Reading::kInPlace, Reading::kNever}) {
    run_ranks(
        3,
        [&](int r, Rank& rank) {
          rank.submit_first();
          for (const size_t count : {size_t{100}, size_t{20'000}, size_t{300'000}}) {
            const float own = static_cast<float>(r) + 1;
            std::vector<float> data(count, r == 1 ? NAN : own);
            size_t heard = 0, wrong = 0;
            std::shared_ptr<Watermarks> watermarks;
            if (r == 1)
              watermarks = std::make_shared<Watermarks>(1, [&](size_t bytes) {
                for (; heard < bytes / 4; ++heard) wrong += data[heard] != 6 ? 1 : 0;
              });
            rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), count}}, kLongUs, {},
                        watermarks);
            std::thread feeder([&] {
              for (size_t i = 0; r == 1 && i < count; ++i) {
                data[i] = own;
                if (i % 10'000 == 0 || i + 1 == count) watermarks->make_available(4 * (i + 1));
              }
            });
            const Status status = rank.finish();
            feeder.join();
            ASSERT_TRUE(status.ok()) << status.to_string();
            EXPECT_EQ(data, std::vector<float>(count, 6));
            EXPECT_EQ(wrong, 0u);
            if (r == 1) {
              EXPECT_EQ(watermarks->delivered(), 4 * count);
            }
          }
        },
        reading);
  }
}

TEST(HostCore, InputThatNeverComesEndsAtTheDeadline) {
  run_ranks(2, [&](int r, Rank& rank) {
    std::vector<float> data(100, 1);
    const auto watermarks = std::make_shared<Watermarks>();
    watermarks->make_available(r == 1 ? 396 : 400);
    rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}},
                r == 1 ? 100'000 : 1'000'000, {}, watermarks);
    const Status status = rank.finish();
    EXPECT_EQ(status.code(), ErrorCode::kTimeout);
    EXPECT_EQ(status.rank(), 1);
    const bool says = status.message().find("made available 396 of 400 bytes") != std::string::npos;
    EXPECT_EQ(says, r == 1) << status.message();
  });
}

// The number of operations that a rank looks at.
TEST(HostCore, WhatAnOperationCostsHardlyDependsOnHowManyAreInFlight) {
  const auto visits_for_each = [](size_t count) {
    const auto ranks = open_ranks(2);
    std::vector<int32_t> elements(2 * count, 1);
    for (size_t i = 0; i < 2 * count; ++i)
      ranks[i % 2]->submit(DataType::kInt32, ReduceOp::kSum, {{&elements[i], &elements[i], 1}});
    EXPECT_TRUE(drive(ranks));
    for (const auto& rank : ranks) EXPECT_TRUE(rank->finish().ok());
    EXPECT_EQ(elements, std::vector<int32_t>(2 * count, 2));
    return static_cast<double>(ranks[0]->core().operations_visited()) / static_cast<double>(count);
  };
  EXPECT_LT(visits_for_each(8'192), 4 * visits_for_each(64)) << "a heap of 13 levels instead of 6";
}

// A direct sum, and one of several blocks.
TEST(HostCore, RolesSayWhoContributesAndWhoReceives) {
  for (const size_t count : {size_t{100}, size_t{700'000}}) {
    run_ranks(3, [&](int r, Rank& rank) {
      std::vector<float> input(count, static_cast<float>(1 << r)), output(count, -1);
      Role role{.collective = Collective::kReduce};
      role.contributors = r != 1 ? Ranks::every() : Ranks::none();
      role.receivers = r != 0 ? Ranks::every() : Ranks::none();
      rank.submit(DataType::kFloat32, ReduceOp::kSum,
                  {{r == 1 ? nullptr : input.data(), r == 0 ? nullptr : output.data(), count}}, kLongUs,
                  role);
      const Status status = rank.finish();
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(output, std::vector<float>(count, r == 0 ? -1.0f : 5.0f)) << "rank " << r;
    });
  }
}

// Neighbours in a chunk that differ by more than any lane can hold.
TEST(HostCore, TensorsOfOneOperationKeepTheirOwnPrecision) {
  const std::vector<float> magnitudes = {1e30f, 1.0f, 1e-30f, 3e38f, 1e-38f, 0.0f, 7.0f};
  for (const size_t size : {1, 3, 100, 401}) {  // 401 x 7 floats: one that is not summed directly
    run_ranks(3, [&](int r, Rank& rank) {
      std::vector<std::vector<float>> tensors;
      for (size_t t = 0; t < 2 * magnitudes.size(); ++t)
        tensors.emplace_back(size, magnitudes[t % magnitudes.size()]);
      std::vector<TensorView> views;
      for (auto& tensor : tensors) views.push_back({tensor.data(), tensor.data(), tensor.size()});
      rank.submit(DataType::kFloat32, ReduceOp::kAvg, views);
      const Status status = rank.finish();
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (size_t t = 0; t < tensors.size(); ++t) {
        const float in = magnitudes[t % magnitudes.size()];
        const float expected = (in + in + in) / 3;
        for (const float x : tensors[t]) ASSERT_EQ(x, expected) << "rank " << r << ", tensor " << t;
      }
    });
  }
}

TEST(HostCore, ManyTensorsAndManyOperationsInFlight) {
  run_ranks(3, [](int r, Rank& rank) {
    std::vector<std::vector<int32_t>> tensors(60);
    std::vector<TensorView> views;
    for (size_t t = 0; t < tensors.size(); ++t) {
      tensors[t].assign(t % 7 == 0 ? 0 : t * 1000 % 7919, r + static_cast<int32_t>(t));
      views.push_back({tensors[t].data(), tensors[t].data(), tensors[t].size()});
    }
    rank.submit(DataType::kInt32, ReduceOp::kSum, {});  // nothing at all
    rank.submit(DataType::kInt32, ReduceOp::kSum, views);
    std::vector<int32_t> singles(200, r);
    for (int32_t& single : singles) rank.submit(DataType::kInt32, ReduceOp::kSum, {{&single, &single, 1}});
    const Status status = rank.finish();
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t t = 0; t < tensors.size(); ++t)
      for (const int32_t x : tensors[t]) ASSERT_EQ(x, 3 + 3 * static_cast<int32_t>(t)) << t;
    for (const int32_t x : singles) ASSERT_EQ(x, 3);
  });
}

TEST(HostCore, ABlockIsUsedAgainOnlyWhenTheSlowestRankHasSummedIt) {
  const auto ranks = open_ranks(3);
  const Role own{.collective = Collective::kReduce};  // of which every rank sums what it receives
  std::vector<std::vector<int32_t>> values(3, std::vector<int32_t>(2 * Segment::kSlots));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < values[r].size(); ++i) {
      int32_t& value = values[r][i];
      value = static_cast<int32_t>(100 * i + r + 1);
      ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{&value, &value, 1}}, kLongUs, own);
    }
  }
  while (ranks[0]->core().advance() || ranks[1]->core().advance()) continue;
  EXPECT_TRUE(
      ranks[2]->core().advance());  // stages its first operation, and then does nothing while others go on
  while (ranks[0]->core().advance() || ranks[1]->core().advance()) continue;
  ASSERT_TRUE(drive(ranks));
  for (const auto& of_rank : values) {
    for (size_t i = 0; i < of_rank.size(); ++i) EXPECT_EQ(of_rank[i], static_cast<int32_t>(300 * i + 6)) << i;
  }
}

TEST(HostCore, SmallAndLargeOperationsShareTheBlocks) {
  const auto ranks = open_ranks(2);
  const size_t large =
      Segment::kSlots * (size_t{2} << 20) / sizeof(int32_t) + 1;  // all blocks, and one again
  std::vector<std::vector<int32_t>> values(2, std::vector<int32_t>(large));
  std::vector<int32_t> singles(6, 0);
  for (size_t r = 0; r < 2; ++r) {
    std::fill(values[r].begin(), values[r].end(), static_cast<int32_t>(r + 1));
    int32_t* first = &singles[3 * r];
    *first = *(first + 1) = *(first + 2) = static_cast<int32_t>(10 * (r + 1));
    const Role own{.collective = Collective::kReduce};  // of which every rank sums what it receives
    ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{first, first, 1}}, kLongUs, own);
    ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{values[r].data(), values[r].data(), large}});
    ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{first + 1, first + 1, 1}});
    ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{first + 2, first + 2, 1}}, kLongUs, own);
  }
  while (ranks[0]->core().advance()) continue;
  ASSERT_TRUE(drive(ranks));
  EXPECT_EQ(singles, std::vector<int32_t>(6, 30));
  for (const auto& of_rank : values)
    EXPECT_EQ(std::count(of_rank.begin(), of_rank.end(), 3), std::ptrdiff_t(large));
}

TEST(HostCore, TheRankThatStagesLastSumsForAll) {
  for (size_t last = 0; last < 3; ++last) {
    const auto ranks = open_ranks(3);
    std::vector<float> values = {1, 2, 4};
    for (size_t r = 0; r < 3; ++r)
      ranks[r]->submit(DataType::kFloat32, ReduceOp::kSum, {{&values[r], &values[r], 1}});
    for (size_t r = 0; r < 3; ++r) {
      if (r != last) {
        ASSERT_TRUE(ranks[r]->core().advance());
      }
    }
    ASSERT_TRUE(ranks[last]->core().advance());
    // All have staged, and nobody but the last rank can go on.
    for (size_t r = 0; r < 3; ++r) {
      if (r != last) {
        EXPECT_FALSE(ranks[r]->core().advance());
      }
    }
    ASSERT_TRUE(ranks[last]->core().advance());
    for (size_t r = 0; r < 3; ++r) {
      if (r != last) {
        EXPECT_TRUE(ranks[r]->finish().ok());
      }
    }
    EXPECT_TRUE(ranks[last]->finish().ok());
    EXPECT_EQ(values, std::vector<float>(3, 7)) << "last: rank " << last;
  }
}

TEST(HostCore, ARankThatStopsWhileItSumsForAllIsNamed) {
  const auto ranks = open_ranks(3);
  std::vector<int32_t> values(3, 1);
  for (size_t r = 0; r < 3; ++r)
    ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{&values[r], &values[r], 1}}, 100'000);
  for (const size_t r : {size_t{0}, size_t{2}, size_t{1}}) ASSERT_TRUE(ranks[r]->core().advance());
  for (const size_t r : {size_t{0}, size_t{2}}) {
    const Status status = ranks[r]->finish();
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
    EXPECT_EQ(status.rank(), 1) << status.to_string();
  }
}

// A rank in a small operation waits for something else than one in a large operation.
TEST(HostCore, RanksInSmallAndLargeOperationsWakeEachOtherToFail) {
  for (const size_t first : {size_t{0}, size_t{1}}) {
    const auto ranks = open_ranks(2);
    std::vector<float> small(10, 1.0f), large(100'000, 1.0f);
    ranks[0]->submit(DataType::kFloat32, ReduceOp::kSum, {{small.data(), small.data(), small.size()}});
    ranks[1]->submit(DataType::kFloat32, ReduceOp::kSum, {{large.data(), large.data(), large.size()}});
    const size_t second = 1 - first;
    ASSERT_TRUE(ranks[first]->core().advance());
    FutexEvent& event = ranks[first]->core().event();
    const uint32_t before = event.notifications();
    ASSERT_TRUE(ranks[second]->core().advance());  // stages last
    EXPECT_EQ(ranks[second]->finish().code(), ErrorCode::kMismatch);
    EXPECT_NE(event.notifications(), before) << "rank " << first << " sleeps on";
    EXPECT_EQ(ranks[first]->finish().code(), ErrorCode::kMismatch);
  }
}

TEST(HostCore, WhatIsCompleteDoesNotWaitForWhatIsNot) {
  std::atomic<bool> first_done{false};
  run_ranks(2, [&](int r, Rank& rank) {
    std::vector<float> a(900'000, 1.0f), b(900'000, 2.0f);
    rank.submit(DataType::kFloat32, ReduceOp::kSum, {{a.data(), a.data(), a.size()}});
    if (r == 0) {
      // The other rank starts the second only when this one has the first.
      rank.submit(DataType::kFloat32, ReduceOp::kSum, {{b.data(), b.data(), b.size()}});
      std::vector<HostCore::Completion> ended;
      while (ended.empty()) {
        rank.core().advance();
        rank.core().take_completions(&ended);
      }
      EXPECT_EQ(a[899'999], 2.0f);
      first_done = true;
    } else {
      ASSERT_TRUE(rank.finish().ok());
      while (!first_done) std::this_thread::yield();
      rank.submit(DataType::kFloat32, ReduceOp::kSum, {{b.data(), b.data(), b.size()}});
    }
    ASSERT_TRUE(rank.finish().ok());
    EXPECT_EQ(b[899'999], 4.0f);
  });
}

// Otherwise each rank that takes a result would wake all those that are done.
TEST(HostCore, ARankWithoutOperationsWaitsForNothing) {
  const auto ranks = open_ranks(2);
  std::vector<int32_t> values(2, 1);
  EXPECT_EQ(ranks[0]->core().awaited(), 0u);
  for (size_t r = 0; r < 2; ++r)
    ranks[r]->submit(DataType::kInt32, ReduceOp::kSum, {{&values[r], &values[r], 1}});
  while (ranks[0]->core().advance()) continue;
  EXPECT_EQ(ranks[0]->core().awaited(), FutexEvent::kStaged | FutexEvent::kReduced);
  ASSERT_TRUE(drive(ranks));
  EXPECT_EQ(ranks[0]->core().awaited(), 0u);
}

TEST(HostCore, IntegersThatDoNotFitAreAnErrorOnEveryRank) {
  for (const size_t count : {size_t{10}, size_t{100'000}}) {
    run_ranks(3, [&](int, Rank& rank) {
      std::vector<int64_t> large(count, 1), sum(count);
      large[count - 1] = std::numeric_limits<int64_t>::max() / 2;
      rank.submit(DataType::kInt64, ReduceOp::kSum, {{large.data(), sum.data(), count}});
      const Status status = rank.finish();
      EXPECT_EQ(status.code(), ErrorCode::kOverflow) << status.to_string();
      EXPECT_EQ(rank.core().status().code(), ErrorCode::kOverflow);
    });
  }
}

TEST(HostCore, DifferentOperationsAreAMismatchThatNamesTheOddRank) {
  for (const size_t count : {size_t{10}, size_t{100'000}}) {
    for (int odd = 0; odd < 3; ++odd) {
      SCOPED_TRACE(std::to_string(count) + " elements, odd rank " + std::to_string(odd));
      run_ranks(3, [&](int r, Rank& rank) {
        std::vector<float> data(count + (r == odd ? 100'000 : 0), 1.0f);
        rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}});
        const Status status = rank.finish();
        EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
        EXPECT_EQ(status.rank(), odd) << status.to_string();
        EXPECT_EQ(data[0], 1.0f);
      });
    }
  }
}

TEST(HostCore, MissingRankIsNamedAtTheDeadline) {
  run_ranks(3, [](int r, Rank& rank) {
    std::vector<float> data(300'000, 1.0f);
    if (r == 2) return;
    rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}}, 200'000);
    const Status status = rank.finish();
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
    EXPECT_EQ(status.rank(), 2) << status.to_string();
  });
}

// Before any thread of this process exists, or after all have ended: it forks.
TEST(HostCore, ARankThatIsKilledInTheMiddleHoldsNothing) {
  const std::string name = fresh_name();
  const pid_t victim = fork();
  if (victim == 0) {
    Rank rank(name, 1, 2);
    std::vector<float> data(4'000'000, 1.0f);
    rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}});
    for (int done = 0; done < 7;) done += rank.core().advance() ? 1 : 0;  // two blocks through, one halfway
    kill(getpid(), SIGKILL);
  }
  Rank rank(name, 0, 2);
  std::vector<float> data(4'000'000, 1.0f);
  rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}}, 3'000'000);
  const Status status = rank.finish();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
  EXPECT_EQ(status.rank(), 1) << status.to_string();
  int how = 0;
  ASSERT_EQ(waitpid(victim, &how, 0), victim);
  EXPECT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

TEST(HostCore, AfterAFailureEverythingFailsLikewise) {
  run_ranks(2, [](int, Rank& rank) {
    int32_t x = 1;
    rank.submit(DataType::kInt32, ReduceOp::kSum, {{&x, &x, 1}});
    rank.core().fail(Status(ErrorCode::kPeerLost, "rank 5 died", 5));
    EXPECT_EQ(rank.finish().rank(), 5);
    rank.submit(DataType::kInt32, ReduceOp::kSum, {{&x, &x, 1}});
    EXPECT_EQ(rank.finish().code(), ErrorCode::kPeerLost);
  });
}

}  // namespace
}  // namespace netsum::host_core_test
