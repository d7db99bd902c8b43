// Every collective of the ranks of one host, with inputs that are copied and with inputs that are read in place.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "src/host/test_ranks.h"

namespace netsum::host_collectives_test {
namespace {

constexpr Reading kReadings[] = {Reading::kInPlace, Reading::kNever};

TEST(InPlace, SumsHaveTheBitsOfTheNetwork) {
  uint64_t seed = 100;
  // A part of a block, and several blocks, both with borders inside of chunks.
  for (const size_t count : {size_t{40'001}, size_t{150'003}}) {
    for (const int ranks : {2, 8}) {
      const Reading reading = Reading::kInPlace;
      expect_reference<float>(DataType::kFloat32, ReduceOp::kAvg, ranks, count, ++seed, reading);
      if (count > 100'000 && ranks == 8) continue;
      expect_reference<uint16_t>(DataType::kBFloat16, ReduceOp::kSum, ranks, count, ++seed, reading);
      expect_reference<uint16_t>(DataType::kFloat16, ReduceOp::kAvg, ranks, count, ++seed, reading);
      expect_reference<int32_t>(DataType::kInt32, ReduceOp::kSum, ranks, count, ++seed, reading);
      expect_reference<int64_t>(DataType::kInt64, ReduceOp::kSum, ranks, count, ++seed, reading);
    }
  }
}

TEST(InPlace, TensorsAnywhereInMemoryAndEmptyOnes) {
  const std::vector<size_t> sizes = {0, 5001, 0, 0, 1, 90'000, 0, 33'333, 100'001, 0};
  run_ranks(3, [&](int r, Rank& rank) {
    rank.submit_first();
    std::vector<std::vector<float>> tensors;
    std::vector<TensorView> views;
    for (size_t t = 0; t < sizes.size(); ++t) {
      tensors.emplace_back(sizes[t] + 1, static_cast<float>(r + 1) * std::exp2(static_cast<float>(t)));
      float* const data = tensors.back().data() + t % 2;
      views.push_back({data, data, sizes[t]});
    }
    rank.submit(DataType::kFloat32, ReduceOp::kSum, views);
    const Status status = rank.finish();
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_GT(rank.core().counters().bytes_read_in_place.get(), 0u);
    for (size_t t = 0; t < sizes.size(); ++t) {
      const auto* data = static_cast<const float*>(views[t].output);
      const float expected = 6 * std::exp2(static_cast<float>(t));
      EXPECT_EQ(std::count(data, data + sizes[t], expected), static_cast<std::ptrdiff_t>(sizes[t])) << t;
    }
  });
}

TEST(InPlace, ManySmallTensorsAreCopied) {
  run_ranks(2, [&](int, Rank& rank) {
    rank.submit_first();
    std::vector<float> data(100'000, 1.0f);
    std::vector<TensorView> views;
    for (size_t at = 0; at < data.size(); at += 10) views.push_back({&data[at], &data[at], 10});
    rank.submit(DataType::kFloat32, ReduceOp::kSum, views);
    ASSERT_TRUE(rank.finish().ok());
    EXPECT_EQ(std::count(data.begin(), data.end(), 2.0f), 100'000);
    EXPECT_EQ(rank.core().counters().bytes_read_in_place.get(), 0u);
  });
}

// What this rank reads of the others must be what they submitted: not what they do with their memory after they have given
// up.
TEST(InPlace, ARankThatGivesUpFailsThoseThatHaveReadFromIt) {
  const auto ranks = open_ranks(3);
  std::vector<std::vector<float>> data(3, std::vector<float>(100'000, 1.0f));
  for (const auto& rank : ranks) rank->submit_first();
  ASSERT_TRUE(drive(ranks));
  for (size_t r = 0; r < 3; ++r)
    ranks[r]->submit(DataType::kFloat32, ReduceOp::kSum, {{data[r].data(), data[r].data(), data[r].size()}});
  for (const auto& rank : ranks) ASSERT_TRUE(rank->core().advance());  // stages
  for (const size_t r : {size_t{0}, size_t{1}}) {
    while (ranks[r]->core().advance()) continue;  // sums its portion
  }
  ranks[1]->core().fail(Status(ErrorCode::kTimeout, "too late"));
  std::fill(data[1].begin(), data[1].end(), 1e30f);
  const Status status = ranks[2]->finish();
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.to_string();
  EXPECT_EQ(status.rank(), 1) << status.to_string();
  while (ranks[0]->core().advance()) continue;
  EXPECT_FALSE(ranks[0]->core().idle());  // waits for the portion of rank 2
  EXPECT_EQ(data[0][99'999], 1.0f);
}

// Before any thread of this process exists, or after all have ended: it forks.
TEST(InPlace, ADeadProcessIsNamedAtOnce) {
  const std::string name = fresh_name();
  const pid_t victim = fork();
  std::vector<float> data(1'000'000, 1.0f);
  if (victim == 0) {
    Rank rank(name, 1, 2);
    rank.submit_first();
    if (!rank.finish().ok()) _exit(1);
    rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}});
    while (!rank.core().advance()) std::this_thread::yield();  // then its addresses are known
    kill(getpid(), SIGKILL);
  }
  Rank rank(name, 0, 2);
  rank.submit_first();
  ASSERT_TRUE(rank.finish().ok());
  int how = 0;
  ASSERT_EQ(waitpid(victim, &how, 0), victim);
  ASSERT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) << how;
  rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}});
  const Status status = rank.finish();
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.to_string();
  EXPECT_EQ(status.rank(), 1) << status.to_string();
  EXPECT_EQ(data[0], 1.0f);
}

// One rank cannot read the others' memory, so no rank does.
TEST(InPlace, AllOrNone) {
  const std::string name = fresh_name();
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(name, r, 3, r == 1 ? Reading::kNever : Reading::kInPlace);
      rank.submit_first();
      std::vector<float> data(100'000, 1.0f);
      rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}});
      EXPECT_TRUE(rank.finish().ok());
      EXPECT_EQ(std::count(data.begin(), data.end(), 3.0f), 100'000);
      EXPECT_EQ(rank.core().counters().bytes_read_in_place.get(), 0u);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InPlace, DifferentOperationsAreAMismatch) {
  run_ranks(3, [&](int r, Rank& rank) {
    rank.submit_first();
    std::vector<float> data(r == 1 ? 10 : 100'000, 1.0f);
    rank.submit(DataType::kFloat32, ReduceOp::kSum, {{data.data(), data.data(), data.size()}});
    const Status status = rank.finish();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
    EXPECT_EQ(status.rank(), 1) << status.to_string();
    EXPECT_EQ(data[0], 1.0f);
  });
}

// --- Byte transfers ------------------------------------------------------------------------------------------

Role role_of(Collective collective, Ranks contributors, Ranks receivers, int root = 0) {
  Role role;
  role.collective = collective;
  role.parameter = static_cast<uint32_t>(root);
  role.contributors = contributors;
  role.receivers = receivers;
  return role;
}

uint8_t byte_of(size_t part, size_t i) {
  return static_cast<uint8_t>(0xA7 + 29 * part + i * i + (i >> 8));
}

// Sizes that differ, with an empty part and one of a single byte.
size_t part_bytes(size_t most, size_t part) {
  return part == 1 ? 0 : part == 2 ? 1 : most - 13 * part;
}

// One collective of bytes: `parts` parts, of which each rank has its inputs and outputs where its role says.
void expect_moved(const Role& role, int ranks, size_t parts, size_t most, Reading reading) {
  SCOPED_TRACE(std::string(collective_name(role.collective)) + ", " + std::to_string(ranks) + " ranks, " +
               std::to_string(most) + " bytes, " + (reading == Reading::kInPlace ? "in place" : "copied"));
  run_ranks(
      ranks,
      [&](int r, Rank& rank) {
        Role mine = role;
        mine.rank = r;
        std::vector<std::vector<uint8_t>> inputs(parts), outputs(parts);
        std::vector<TensorView> views;
        bool receives = false;
        for (size_t p = 0; p < parts; ++p) {
          const size_t bytes = part_bytes(most, p);
          if (mine.contributes(p)) {
            for (size_t i = 0; i < bytes; ++i) inputs[p].push_back(byte_of(p, i));
          }
          outputs[p].assign(bytes, 0xEE);
          const bool given =
              mine.receives(p) && p % 2 == 0;  // every second one is there already, if it can be
          const void* in = mine.contributes(p) ? inputs[p].data() : nullptr;
          void* out = mine.contributes(p) && !given ? inputs[p].data() : outputs[p].data();
          views.push_back({in, out, bytes});
          receives |= mine.receives(p) && !mine.contributes(p) && bytes > 0;
        }
        rank.submit_first();
        rank.submit(DataType::kByte, ReduceOp::kSum, views, kLongUs, mine);
        const Status status = rank.finish();
        ASSERT_TRUE(status.ok()) << status.to_string();
        const bool large = most > (size_t{64} << 10);
        EXPECT_EQ(rank.core().counters().bytes_read_in_place.get() > 0,
                  large && receives && reading == Reading::kInPlace);
        for (size_t p = 0; p < parts; ++p) {
          const auto* out = static_cast<const uint8_t*>(views[p].output);
          size_t wrong = 0;
          for (size_t i = 0; i < views[p].count; ++i) {
            const bool has = mine.receives(p) || out == inputs[p].data();
            wrong += out[i] != (has ? byte_of(p, i) : 0xEE) ? 1 : 0;
          }
          EXPECT_EQ(wrong, 0u) << "rank " << r << ", part " << p;
        }
      },
      reading);
}

TEST(HostCollectives, BytesArriveWhereTheyBelongAndNowhereElse) {
  for (const Reading reading : kReadings) {
    for (const size_t most : {size_t{100}, size_t{70'001}, size_t{400'001}}) {
      for (const int ranks : {3, 8}) {
        if (most > 100'000 && ranks == 8) continue;
        const auto parts = static_cast<size_t>(ranks);
        const int root = ranks - 1;
        const Ranks all = Ranks::every(), one = Ranks::one(root), own = Ranks::owners();
        expect_moved(role_of(Collective::kBroadcast, one, all, root), ranks, 4, most, reading);
        expect_moved(role_of(Collective::kAllGather, own, all), ranks, parts, most, reading);
        expect_moved(role_of(Collective::kGather, own, one, root), ranks, parts, most, reading);
        expect_moved(role_of(Collective::kScatter, one, own, root), ranks, parts, most, reading);
      }
    }
  }
}

// --- Sums that not every rank receives ---------------------------------------------------------------------

template <typename T>
void expect_reduced(DataType type, const Role& role, int ranks, const std::vector<size_t>& parts,
                    bool in_place, Reading reading) {
  const size_t count = std::accumulate(parts.begin(), parts.end(), size_t{0});
  SCOPED_TRACE(std::string(collective_name(role.collective)) + " " + std::string(data_type_name(type)) +
               ", " + std::to_string(ranks) + " ranks, " + std::to_string(count) + " elements, " +
               (in_place ? "outputs over inputs, " : "") +
               (reading == Reading::kInPlace ? "in place" : "copied"));
  std::vector<std::vector<T>> inputs(static_cast<size_t>(ranks), std::vector<T>(count));
  Rng rng(count + static_cast<size_t>(ranks));
  for (auto& input : inputs)
    for (T& x : input) x = random_element<T>(type, rng);
  const std::vector<T> expected = reference_sum(type, ReduceOp::kSum, inputs);
  run_ranks(
      ranks,
      [&](int r, Rank& rank) {
        Role mine = role;
        mine.rank = r;
        std::vector<T> input = inputs[static_cast<size_t>(r)], output(count, T(77));
        std::vector<T>& target = in_place ? input : output;
        std::vector<TensorView> views;
        size_t at = 0;
        for (const size_t part : parts) {
          views.push_back({&input[at], &target[at], part});
          at += part;
        }
        rank.submit_first();
        for (int round = 0; round < 2; ++round) {  // the second begins while others still take the first
          rank.submit(type, ReduceOp::kSum, views, kLongUs, mine);
          if (in_place) break;
        }
        const Status status = rank.finish();
        ASSERT_TRUE(status.ok()) << status.to_string();
        at = 0;
        for (size_t p = 0; p < parts.size(); ++p) {
          const T* want = mine.receives(p) ? &expected[at]
                          : in_place       ? &inputs[static_cast<size_t>(r)][at]
                                           : nullptr;
          if (want != nullptr) {
            EXPECT_EQ(std::memcmp(&target[at], want, parts[p] * sizeof(T)), 0)
                << "rank " << r << ", part " << p;
          } else {
            EXPECT_EQ(std::count(&target[at], &target[at] + parts[p], T(77)), std::ptrdiff_t(parts[p]));
          }
          at += parts[p];
        }
      },
      reading);
}

// Borders of parts are inside of chunks, whose one scale depends on the elements on both sides.
TEST(HostCollectives, ReduceScatterHasTheBitsOfAnAllReduceOfOneTensor) {
  const Role role = role_of(Collective::kReduceScatter, Ranks::every(), Ranks::owners());
  for (const Reading reading : kReadings) {
    for (const bool in_place : {false, true}) {
      expect_reduced<float>(DataType::kFloat32, role, 2, {10, 11}, in_place, reading);
      expect_reduced<float>(DataType::kFloat32, role, 4, {1000, 0, 359, 2001}, in_place, reading);
      expect_reduced<uint16_t>(DataType::kBFloat16, role, 3, {70'001, 3, 50'000}, in_place, reading);
      expect_reduced<float>(DataType::kFloat32, role, 4, {17'001, 15'003, 1, 46'007}, in_place, reading);
      expect_reduced<float>(DataType::kFloat32, role, 3, {70'001, 60'003, 65'005}, in_place, reading);
      expect_reduced<int64_t>(DataType::kInt64, role, 3, {30'001, 40'003, 20'005}, in_place, reading);
      expect_reduced<int32_t>(DataType::kInt32, role, 8, std::vector<size_t>(8, 12'345), in_place, reading);
    }
  }
}

// Rank 0 goes first: its sum is twice the scale of its input, with which rank 1's elements of the chunk would become 0.
TEST(HostCollectives, AChunkOnTheBorderOfTwoPartsIsReadBeforeItIsWritten) {
  const auto ranks = open_ranks(3, /*fixed_floats=*/true);
  for (const auto& rank : ranks) rank->submit_first();
  ASSERT_TRUE(drive(ranks));
  constexpr size_t kFirst = 50'000, kSecond = 60'000;  // the border is inside of a chunk of 360
  const float small = std::exp2(-28.0f);
  std::vector<std::vector<float>> data(3);
  for (size_t r = 0; r < 3; ++r) {
    data[r].assign(kFirst, 1.0f);
    data[r].resize(kFirst + kSecond, small);
    float* const first = data[r].data();
    ranks[r]->submit(DataType::kFloat32, ReduceOp::kSum,
                     {{first, first, kFirst}, {first + kFirst, first + kFirst, kSecond}, {}}, kLongUs,
                     role_of(Collective::kReduceScatter, Ranks::every(), Ranks::owners()));
  }
  ASSERT_TRUE(drive(ranks));
  EXPECT_GT(ranks[1]->core().counters().bytes_read_in_place.get(), 0u);
  EXPECT_EQ(std::count(data[0].begin(), data[0].begin() + kFirst, 3.0f), std::ptrdiff_t(kFirst));
  EXPECT_EQ(std::count(data[1].begin() + kFirst, data[1].end(), 3 * small), std::ptrdiff_t(kSecond));
}

TEST(HostCollectives, ReduceWritesAtTheRootAlone) {
  for (const Reading reading : kReadings) {
    for (const size_t count : {size_t{100}, size_t{10'000}, size_t{100'001}}) {
      const Role role = role_of(Collective::kReduce, Ranks::every(), Ranks::one(1), 1);
      expect_reduced<float>(DataType::kFloat32, role, 3, {count}, false, reading);
      expect_reduced<float>(DataType::kFloat32, role, 3, {count}, true, reading);
      expect_reduced<int32_t>(DataType::kInt32, role, 4, {count}, false, reading);
    }
  }
}

TEST(HostCollectives, AnOverflowIsAnErrorWhereItIsReceived) {
  for (const Reading reading : kReadings) {
    for (const size_t count : {size_t{10}, size_t{100'000}}) {
      run_ranks(
          2,
          [&](int r, Rank& rank) {
            rank.submit_first();
            std::vector<int64_t> large(2 * count, 1), sum(count, 0);
            large[count + 3] = std::numeric_limits<int64_t>::max() / 2 + 1;  // in rank 1's part
            Role role = role_of(Collective::kReduceScatter, Ranks::every(), Ranks::owners());
            // Rank 0, which nobody tells here, waits until then for rank 1 to be done with its input.
            const int64_t timeout_us = r == 0 ? 2'000'000 : kLongUs;
            rank.submit(DataType::kInt64, ReduceOp::kSum,
                        {{large.data(), sum.data(), count}, {&large[count], sum.data(), count}}, timeout_us,
                        role);
            const Status status = rank.finish();
            if (r == 1) {
              EXPECT_EQ(status.code(), ErrorCode::kOverflow) << status.to_string();
            }
          },
          reading);
    }
  }
}

// Ranks without anything to do in a collective do not wait for it, and do not disturb it.
TEST(HostCollectives, ManyOfThemInFlightOnMoreRanksThanCores) {
  for (const Reading reading : kReadings) {
    run_ranks(
        8,
        [](int r, Rank& rank) {
          constexpr size_t kRounds = 40, kCount = 40'000;
          std::vector<std::vector<float>> sums(kRounds, std::vector<float>(kCount, static_cast<float>(r)));
          std::vector<std::vector<uint8_t>> moved(kRounds,
                                                  std::vector<uint8_t>(3000, static_cast<uint8_t>(r)));
          for (size_t i = 0; i < kRounds; ++i) {
            std::vector<float>& sum = sums[i];
            const int root = static_cast<int>(i % 8);
            rank.submit(DataType::kFloat32, ReduceOp::kSum,
                        {{sum.data(), sum.data(), i % 3 == 0 ? 100 : kCount}});
            rank.submit(DataType::kByte, ReduceOp::kSum,
                        {{moved[i].data(), moved[i].data(), moved[i].size()}}, kLongUs,
                        role_of(Collective::kBroadcast, Ranks::one(root), Ranks::every(), root));
          }
          const Status status = rank.finish();
          ASSERT_TRUE(status.ok()) << status.to_string();
          for (size_t i = 0; i < kRounds; ++i) {
            EXPECT_EQ(sums[i][99], 28.0f) << i;
            EXPECT_EQ(sums[i][kCount - 1], i % 3 == 0 ? static_cast<float>(r) : 28.0f) << i;
            EXPECT_EQ(moved[i][2999], i % 8) << i;
          }
        },
        reading);
  }
}

}  // namespace
}  // namespace netsum::host_collectives_test
