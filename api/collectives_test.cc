// All collectives through the public API, on every data path: ranks are threads of this process.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "session/placed_job_testing.h"

namespace netsum::collectives_test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kRanks = PlacedJob::kRanks;

uint8_t byte_of(int owner, size_t part, size_t i) {
  return static_cast<uint8_t>(0xF1 + 31 * static_cast<size_t>(owner) + 7 * part + i * i + (i >> 8));
}
std::vector<uint8_t> bytes_of(int owner, size_t part, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = byte_of(owner, part, i);
  return bytes;
}
// Sizes that differ, one of them 0, and with borders inside of lanes.
size_t size_of_part(size_t unit, int part) {
  return part == 1 ? 0 : unit + 5 * static_cast<size_t>(part);
}

void expect_ok(const Work& work) {
  const Status status = work.wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
}

// Parts in one rank's memory, filled with `filler`.
struct Parts {
  explicit Parts(size_t unit, uint8_t filler) {
    for (int part = 0; part < kRanks; ++part) bytes.emplace_back(size_of_part(unit, part), filler);
  }
  std::vector<std::vector<uint8_t>> bytes;
};

void broadcast_and_check(Communicator& communicator, size_t unit, bool in_place) {
  const int root = 2, rank = communicator.rank();
  std::vector<uint8_t> first = bytes_of(rank, 0, unit), second = bytes_of(rank, 1, unit / 3 + 1);
  std::vector<uint8_t> copy(unit, 0xEE);
  const bool copies = rank == root && !in_place;
  const std::array<BufferView, 2> buffers = {
      BufferView{first.data(), copies ? copy.data() : first.data(), unit},
      BufferView{second.data(), rank == root ? nullptr : second.data(), second.size()}};
  expect_ok(communicator.broadcast(buffers, root, {}));
  EXPECT_EQ(first, bytes_of(root, 0, unit));
  EXPECT_EQ(second, bytes_of(root, 1, second.size()));
  if (copies) {
    EXPECT_EQ(copy, first);
  }
}

void all_gather_and_check(Communicator& communicator, size_t unit, bool in_place) {
  const int rank = communicator.rank();
  const auto own = static_cast<size_t>(rank);
  Parts parts(unit, 0xEE);
  std::vector<uint8_t> mine = bytes_of(rank, own, parts.bytes[own].size());
  if (in_place) parts.bytes[own] = mine;
  std::vector<BufferView> views;
  for (auto& part : parts.bytes) views.push_back({nullptr, part.data(), part.size()});
  views[own].input = in_place ? parts.bytes[own].data() : mine.data();
  expect_ok(communicator.all_gather(views, {}));
  for (size_t part = 0; part < kRanks; ++part)
    EXPECT_EQ(parts.bytes[part], bytes_of(static_cast<int>(part), part, parts.bytes[part].size())) << part;
}

void gather_and_check(Communicator& communicator, size_t unit, bool in_place) {
  const int root = 3, rank = communicator.rank();
  const auto own = static_cast<size_t>(rank);
  Parts parts(unit, 0xEE);
  std::vector<uint8_t> mine = bytes_of(rank, own, parts.bytes[own].size());
  if (in_place) parts.bytes[own] = mine;
  std::vector<BufferView> views;
  for (auto& part : parts.bytes)
    views.push_back({nullptr, rank == root ? part.data() : nullptr, part.size()});
  views[own].input = in_place ? parts.bytes[own].data() : mine.data();
  expect_ok(communicator.gather(views, root, {}));
  for (size_t part = 0; part < kRanks; ++part) {
    const size_t size = parts.bytes[part].size();
    const bool has = rank == root || (in_place && part == own);
    EXPECT_EQ(parts.bytes[part],
              has ? bytes_of(static_cast<int>(part), part, size) : std::vector<uint8_t>(size, 0xEE))
        << part;
  }
}

void scatter_and_check(Communicator& communicator, size_t unit, bool in_place) {
  const int root = 0, rank = communicator.rank();
  const auto own = static_cast<size_t>(rank);
  Parts inputs(unit, 0xEE);
  std::vector<uint8_t> output(inputs.bytes[own].size(), 0xDD);
  std::vector<BufferView> views;
  for (size_t part = 0; part < kRanks; ++part) {
    std::vector<uint8_t>& input = inputs.bytes[part];
    if (rank == root) input = bytes_of(root, part, input.size());
    views.push_back({rank == root ? input.data() : nullptr, nullptr, input.size()});
  }
  views[own].output = in_place ? inputs.bytes[own].data() : output.data();
  expect_ok(communicator.scatter(views, root, {}));
  EXPECT_EQ(in_place ? inputs.bytes[own] : output, bytes_of(root, own, output.size()));
}

void reduce_and_check(Communicator& communicator, size_t unit, bool in_place) {
  const int root = 1, rank = communicator.rank();
  std::vector<int32_t> input(unit), output(unit, -1);
  for (size_t i = 0; i < unit; ++i) input[i] = static_cast<int32_t>(i) * (rank + 1);
  const std::vector<int32_t> before = input;
  const TensorView view{input.data(), in_place ? input.data() : output.data(), unit};
  expect_ok(communicator.reduce(std::span(&view, 1), root, {.type = DataType::kInt32}));
  const std::vector<int32_t>& result = in_place ? input : output;
  for (size_t i = 0; i < unit; ++i) {
    const int32_t sum = static_cast<int32_t>(i) * kRanks * (kRanks + 1) / 2;
    ASSERT_EQ(result[i], rank == root ? sum : in_place ? before[i] : -1) << i;
  }
}

// The bits are those of an all-reduce of all parts as one tensor.
void reduce_scatter_and_check(Communicator& communicator, size_t unit, bool in_place) {
  const int rank = communicator.rank();
  std::vector<size_t> begin = {0};
  for (int part = 0; part < kRanks; ++part) begin.push_back(begin.back() + size_of_part(unit, part));
  std::vector<float> all(begin.back());
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<float>(i % 1000 + 1) * (i % 7 == 0 ? 1e-3f : 0.3f) * static_cast<float>(rank + 1);
  std::vector<float> sums(all.size());
  const TensorView whole{all.data(), sums.data(), all.size()};
  expect_ok(communicator.all_reduce(whole, {.op = ReduceOp::kAvg}));
  const std::vector<float> before = all;
  const auto own = static_cast<size_t>(rank);
  std::vector<float> output(begin[own + 1] - begin[own], -1.0f);
  std::vector<TensorView> views;
  for (size_t part = 0; part < kRanks; ++part)
    views.push_back({all.data() + begin[part], nullptr, begin[part + 1] - begin[part]});
  float* const mine = in_place ? all.data() + begin[own] : output.data();
  views[own].output = mine;
  expect_ok(communicator.reduce_scatter(views, {.op = ReduceOp::kAvg}));
  EXPECT_EQ(std::memcmp(mine, sums.data() + begin[own], output.size() * sizeof(float)), 0);
  for (size_t i = 0; i < all.size(); ++i)
    if (!in_place || i < begin[own] || i >= begin[own + 1]) {
      ASSERT_EQ(all[i], before[i]) << "an input was written at " << i;
    }
}

void run_and_check_all(Communicator& communicator, size_t unit) {
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE("rank " + std::to_string(communicator.rank()) + ", unit " + std::to_string(unit) +
                 (in_place ? ", in place" : ""));
    broadcast_and_check(communicator, unit, in_place);
    all_gather_and_check(communicator, unit, in_place);
    gather_and_check(communicator, unit, in_place);
    scatter_and_check(communicator, unit, in_place);
    reduce_and_check(communicator, unit, in_place);
    reduce_scatter_and_check(communicator, unit, in_place);
  }
}

class CollectivesTest : public testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(Places, CollectivesTest,
                         testing::Values(Place::kShards, Place::kAggregator, Place::kHierarchy,
                                         Place::kOneHost, Place::kTwoHosts, Place::kFailover),
                         place_name);

TEST_P(CollectivesTest, AllOfThemInEverySize) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    for (const size_t unit : {size_t{1}, size_t{100}, size_t{2'000}, size_t{60'001}})
      run_and_check_all(communicator, unit);
    const CommunicatorStats stats = communicator.stats();
    EXPECT_EQ(stats.operations, 4u * 2u * 7u);
    EXPECT_EQ(stats.operations_failed, 0u);
    EXPECT_TRUE(communicator.barrier(seconds(60)).ok());
  });
}

TEST_P(CollectivesTest, ManyInFlightKeepTheirOrder) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    const int rank = communicator.rank();
    constexpr size_t kOperations = 120, kBytes = 3'000;
    std::vector<std::vector<uint8_t>> memory;
    std::vector<int32_t> sums(kOperations, 1);
    std::vector<Work> works;
    for (size_t n = 0; n < kOperations; ++n) {
      const int root = static_cast<int>(n) % kRanks;
      memory.push_back(rank == root ? bytes_of(root, n, kBytes) : std::vector<uint8_t>(kBytes));
      const BufferView buffer{memory[n].data(), memory[n].data(), kBytes};
      works.push_back(communicator.broadcast(std::span(&buffer, 1), root, {}));
      works.push_back(communicator.all_reduce(TensorView{&sums[n], &sums[n], 1}, {.type = DataType::kInt32}));
    }
    for (const Work& work : works) expect_ok(work);
    for (size_t n = 0; n < kOperations; ++n) {
      EXPECT_EQ(memory[n], bytes_of(static_cast<int>(n) % kRanks, n, kBytes)) << n;
      EXPECT_EQ(sums[n], kRanks);
    }
  });
}

TEST_P(CollectivesTest, RanksThatDisagreeAreAllTold) {
  for (const size_t bytes : {size_t{64}, size_t{100'000}}) {
    PlacedJob(GetParam()).run([&](Communicator& communicator) {
      std::vector<uint8_t> memory(bytes);
      const BufferView buffer{memory.data(), memory.data(), bytes};
      const int root = communicator.rank() == 2 ? 1 : 0;
      const Status status = communicator.broadcast(std::span(&buffer, 1), root, {}).wait();
      EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("all ranks must call the same collectives in the same order"));
    });
  }
}

TEST_P(CollectivesTest, TagsAndBarriersAreCompared) {
  const auto expect_mismatch = [](const Work& work) {
    const Status status = work.wait();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
  };
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    std::vector<uint8_t> memory(100);
    const BufferView buffer{memory.data(), memory.data(), memory.size()};
    const uint32_t tag = communicator.rank() == 2 ? 7 : 8;
    expect_mismatch(communicator.broadcast(std::span(&buffer, 1), 0, {.tag = tag}));
  });
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    int32_t one = 1;
    const uint32_t tag = communicator.rank() == 2 ? 1 : 0;
    expect_mismatch(
        communicator.all_reduce(TensorView{&one, &one, 1}, {.type = DataType::kInt32, .tag = tag}));
  });
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    int32_t one = 1;  // as large as a barrier
    expect_mismatch(communicator.rank() == 2
                        ? communicator.start_barrier(seconds(60))
                        : communicator.all_reduce(TensorView{&one, &one, 1}, {.type = DataType::kInt32}));
  });
}

TEST_P(CollectivesTest, ABarrierMayBeStartedAndWaitedForLater) {
  std::atomic<int> here{0};
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    for (int round = 1; round <= 3; ++round) {
      ++here;
      const Work barrier = communicator.start_barrier(seconds(60));
      int32_t one = 1;
      const Work sum = communicator.all_reduce(TensorView{&one, &one, 1}, {.type = DataType::kInt32});
      expect_ok(barrier);
      EXPECT_GE(here.load(), round * kRanks);
      expect_ok(sum);
      EXPECT_EQ(one, kRanks);
    }
    const CommunicatorStats stats = communicator.stats();
    EXPECT_EQ(stats.operations_submitted, 3u);
    EXPECT_EQ(stats.operations, 3u);
    EXPECT_EQ(stats.gradient_bytes, 3 * sizeof(int32_t));
  });
}

// Refused before anything is sent: the communicator goes on.
TEST(CollectivesArgumentsTest, BadOnesAreRefusedByName) {
  PlacedJob(Place::kAggregator).run([](Communicator& communicator) {
    std::vector<uint8_t> memory(100);
    const auto expect_refused = [&](const Work& work, ErrorCode code, const std::string& why) {
      const Status status = work.wait();
      EXPECT_EQ(status.code(), code) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(why));
    };
    const auto invalid = ErrorCode::kInvalidArgument;
    const BufferView one{memory.data(), memory.data(), 10};
    for (const int root : {-1, kRanks}) {
      const std::string why = "the root is rank " + std::to_string(root) + "; the job has ranks 0 to 3";
      expect_refused(communicator.broadcast(std::span(&one, 1), root, {}), invalid, "broadcast: " + why);
    }
    const std::vector<BufferView> three(3, {nullptr, nullptr, 0});
    for (const Work& work : {communicator.all_gather(three, {}), communicator.gather(three, 0, {}),
                             communicator.scatter(three, 0, {})})
      expect_refused(work, invalid, "3 parts are given, and the job has 4 ranks");
    expect_refused(communicator.reduce_scatter({}, {}), invalid, "reduce_scatter: 0 parts are given");
    std::vector<BufferView> parts;
    for (size_t part = 0; part < kRanks; ++part)
      parts.push_back({memory.data() + 10 * part, memory.data() + 10 * part, 11});
    expect_refused(communicator.all_gather(parts, {}), invalid, "overlaps");
    for (BufferView& part : parts) part = {nullptr, memory.data(), 10};
    expect_refused(communicator.gather(parts, 0, {}), invalid, "has a null pointer as its input");
    float number = 1;
    const TensorView tensor{&number, &number, 1};
    expect_refused(communicator.reduce(std::span(&tensor, 1), 0, {.type = DataType::kByte}),
                   ErrorCode::kUnsupported, "bytes are moved, not summed");
    expect_refused(communicator.reduce(std::span(&tensor, 1), 0, {.op = ReduceOp::kProduct}),
                   ErrorCode::kUnsupported, "product");
    run_and_check_all(communicator, 50);
    EXPECT_EQ(communicator.stats().operations, 2u * 7u);
  });
}

// Operations whose aggregator is lost are repeated with the inputs of the ranks that contribute.
TEST(CollectivesFailoverTest, TheyGoOnAtAnotherAggregator) {
  PlacedJob job(Place::kFailover);
  job.run([&](Communicator& communicator) {
    for (int step = 0; step < 12; ++step) {
      if (step == 5 && communicator.rank() == 1) job.end_aggregator();
      run_and_check_all(communicator, 10'000);
    }
    EXPECT_EQ(communicator.stats().failovers, 1u);
  });
}

TEST(CollectivesSingleTest, AJobOfOneRank) {
  CommunicatorOptions options;
  options.job = "one";
  options.root = "127.0.0.1:0";
  run_ranks(1, options, [&](int, std::unique_ptr<Communicator>& communicator) {
    std::vector<uint8_t> from = bytes_of(0, 0, 5'000), to(from.size());
    const BufferView part{from.data(), to.data(), from.size()};
    for (const Work& work : {communicator->all_gather(std::span(&part, 1), {}),
                             communicator->broadcast(std::span(&part, 1), 0, {})})
      expect_ok(work);
    EXPECT_EQ(to, from);
  });
}

// All bits stay what they are: those of NaNs, of small elements beside large ones, of the smallest integer. In memory and over
// the network, also with settings that make elements coarse and sums verified.
TEST(CollectivesSingleTest, AReductionOverOneRankIsItsInput) {
  struct Case {
    bool shared_memory;
    int lane_bits;
    Verify verify;
  };
  for (const auto& [shared_memory, lane_bits, verify] :
       {Case{true, 0, Verify::kPacket}, Case{false, 0, Verify::kPacket}, Case{false, 8, Verify::kPacket},
        Case{false, 0, Verify::kBoth}}) {
    CommunicatorOptions options;
    options.job = "one";
    options.root = "127.0.0.1:0";
    options.shared_memory = shared_memory;
    options.lane_bits = lane_bits;
    options.verify = verify;
    run_ranks(1, options, [&](int, std::unique_ptr<Communicator>& communicator) {
      for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16,
                                  DataType::kInt32, DataType::kInt64}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
          if (op == ReduceOp::kAvg && !is_floating(type)) continue;
          const size_t count = 7'001;
          const std::vector<uint8_t> from = bytes_of(0, 0, count * size_of(type));
          std::vector<uint8_t> in_place = from, to(from.size()), reduced(from.size()), part(from.size());
          expect_ok(communicator->all_reduce({in_place.data(), in_place.data(), count}, {type, op}));
          expect_ok(communicator->all_reduce({from.data(), to.data(), count}, {type, op}));
          const TensorView at_root{from.data(), reduced.data(), count}, own{from.data(), part.data(), count};
          expect_ok(communicator->reduce(std::span(&at_root, 1), 0, {type, op}));
          expect_ok(communicator->reduce_scatter(std::span(&own, 1), {type, op}));
          for (const auto& result : {in_place, to, reduced, part})
            EXPECT_EQ(result, from) << data_type_name(type) << ", " << reduce_op_name(op);
        }
      }
      std::vector<float> data(10, 1.0f);
      EXPECT_EQ(communicator
                    ->all_reduce(TensorView{data.data(), data.data(), data.size()},
                                 {DataType::kFloat32, ReduceOp::kBitOr})
                    .wait()
                    .code(),
                ErrorCode::kUnsupported);
    });
  }
}

}  // namespace
}  // namespace netsum::collectives_test
